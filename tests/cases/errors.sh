#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A start that cannot be says why in one line that names the offender, with exit status 2 where the command line is
# wrong and 1 elsewhere, and leaves nothing mounted.
#
# parallel
# timeout: 300

. "$(dirname "$0")/lib.sh"

n=0

# refused STATUS TEXT COMMAND...: its last and only line begins with "kvcachefs: " and contains TEXT.
refused() {
	local status=$1 text=$2 said rc=0
	shift 2
	said=$("$@" 2>&1 >/dev/null) || rc=$?
	# Where no tmpfs can be made the daemon says so first.
	said=$(grep -v "l1 memory: no private tmpfs" <<<"$said" || true)
	[[ $said == "kvcachefs: "*"$text"* && $said != *$'\n'* ]] || fail "$*: '$text' is not what it says: $said"
	assert_eq "$status" "$rc" "exit status of: $said"
	! is_mounted || fail "mounted all the same: $*"
	n=$((n + 1))
}

# says_only TEXT COMMAND...: it is refused with "kvcachefs: TEXT" and no word more.
says_only() {
	local said
	said=$("${@:2}" 2>&1 >/dev/null) && fail "not refused: ${*:2}"
	said=$(grep -v "l1 memory: no private tmpfs" <<<"$said" || true)
	assert_eq "kvcachefs: $1" "$said" "what is said of ${*:2}"
	n=$((n + 1))
}

# start OPTION...: as a person would, but with a state directory of ours.
start() {
	"$KVCACHEFS" --state-dir "$STATE" --l1-size 64M "$@" "$MNT"
}

fs_at() {
	start --l2-adapter "type=fs,base_path=$1"
}

# ---- The command line ------------------------------------------------------------------------

refused 2 'unknown option "--l1-siz"; did you mean "--l1-size"?' start --l1-siz=1G
refused 2 'unknown option "--zzz"' start --zzz
refused 2 'unknown option "-q"' start -q
refused 2 '--foreground takes no value' start --foreground=false
refused 2 '--help takes no value' start --help=false
refused 2 'no mount point' "$KVCACHEFS" --l1-size 64M
refused 2 '"two" is too many (with a source it is mount -t kvcachefs' "$KVCACHEFS" one two
refused 2 'Missing argument for --l1-size' "$KVCACHEFS" --l1-size
for size in 12X -1 "" 1.5G G " 1G"; do
	refused 2 "--l1-size: \"$size\" is not a size" start --l1-size "$size"
done
refused 2 '--l1-size: must not be 0' start --l1-size 0
refused 2 '--l1-size: 4096 bytes' start --l1-size 4K
refused 2 '--l1-size: 1125899906842624 bytes' start --l1-size 1024T
refused 2 '"99999999999G" is more than 64 bits hold' start --l1-size 99999999999G
refused 2 '--eviction-ratio: 2 is not within 0.001..1' start --eviction-ratio 2
refused 2 '--readahead: 1025 is not within 0..1024' start --readahead 1025
refused 2 '--readahead: "1.5" is not a whole number' start --readahead 1.5
refused 2 '--lookup-wait: -1 is not within' start --lookup-wait -1
refused 2 '--drain-timeout: "soon" is not a number' start --drain-timeout soon
refused 2 '--io-mode: "fast" is none of auto, passthrough, direct' start --io-mode fast
refused 2 'no eviction policy "lur"' start --eviction-policy lur
refused 2 'no store policy "x"' start --l2-store-policy x
refused 2 'no prefetch policy "x"' start --l2-prefetch-policy x
refused 2 '--temp-names: "a/b"' start --temp-names '*.x,a/b'
refused 2 '--temp-names: ""' start --temp-names '*.x,,'
refused 2 '--temp-names: must not be empty' start --temp-names=
for pattern in '[' '[]' '[!]' '*.x[ab' '[a\]' '[[:alpha:]' '[[.].]'; do
	refused 2 "--temp-names: \"$pattern\" has a [ that is not closed" start --temp-names "*.y,$pattern"
done
refused 2 '--temp-names: "[a" has a [ that is not closed' start --temp-names '[a,b]'
refused 2 '--temp-names: "x\" ends in a backslash' start --temp-names 'x\'
refused 2 '--max-object-size: 67108865 bytes are more than L1 holds (--l1-size, 67108864 bytes)' start --max-object-size 67108865
refused 2 '--max-object-size: 10995116277760 bytes are more than L1 holds' start --max-object-size 10T
refused 2 '--state-dir: must not be empty' "$KVCACHEFS" --state-dir= "$MNT"

# Mount options.
refused 2 'mount options: kvcachefs cannot be remounted' start -o remount,ro
refused 2 'mount options: unknown option "noatim"; did you mean "noatime"?' start -o noatim
refused 2 'mount options: unknown option "l1size"; did you mean "l1-size"?' start -o rw,l1size=3
refused 2 'mount options: unknown option "foreground"' start -o foreground
refused 2 'mount options: unknown option "fsnam"; did you mean "fsname"?' start -o fsnam=x
# "suid" is near, but takes no value.
says_only 'mount options: unknown option "uid"' start -o uid=1000
refused 2 'mount options: unknown option "suidd"; did you mean "suid"?' start -o suidd
# A comma has ended the specification.
for option in base_path=/x shared=true; do
	refused 2 "mount options: unknown option \"${option%=*}\"; if it belongs to l2-adapter, write a semicolon before it, not a comma" \
		start -o "l2-adapter=type=fs,$option"
done
says_only 'mount options: unknown option "base_path"' start -o base_path=/x
refused 2 'mount options: "ro" takes no value' start -o ro=1
refused 2 'mount options: "fsname" needs a value' start -o fsname
refused 2 'mount options: subtype "other"' start -o subtype=other
refused 2 'mount options: --lookup-wait: "x" is not a number' start -o lookup-wait=x

# Specifications of adapters: where they are wrong.
refused 2 'at position 9 a key is expected' start --l2-adapter 'type=fs,=x'
refused 2 "at position 18 a '=' is expected" start --l2-adapter 'type=fs,base_path'
refused 2 'key "workers" is there twice, again at position 19' start --l2-adapter 'type=fs,workers=1,workers=2'
refused 2 'a "type" is needed' start --l2-adapter 'base_path=/x'
refused 2 'no L2 adapter "sf"' start --l2-adapter 'type=sf'
refused 2 'no option "base_pat", did you mean "base_path"?' start --l2-adapter 'type=fs,base_pat=/x'
refused 2 'needs the option "base_path"' start --l2-adapter 'type=fs'
refused 2 'option "workers"' start --l2-adapter "type=fs,base_path=$L2,workers=65"
refused 2 'option "io_depth_bytes": "1Q" is not a size' start --l2-adapter "type=fs,base_path=$L2,io_depth_bytes=1Q"
refused 2 'base_path "relative" is not an absolute path' fs_at relative
if grep -q 'base_path' <<<"$("$KVCACHEFS" --help)" && ! start --l2-adapter '{"type":"fs"' 2>&1 | grep -q 'has no JSON'; then
	refused 2 'the object is not closed at position 13' start --l2-adapter '{"type":"fs"'
	refused 2 'Parse error at line 1, position 13: ' start --l2-adapter '{"type":"fs",}'
	refused 2 'key "type" is there twice' start --l2-adapter '{"type":"fs","type":"fs"}'
	refused 2 'key "base_path" is' start --l2-adapter '{"type":"fs","base_path":[1]}'
fi

# Which one, and its type if that is one we know.
mock=type=mock,max_size_gb=1
says_only "--l2-adapter (fs): at position 18 a '=' is expected" start --l2-adapter type=fs,base_path
says_only "the 2nd --l2-adapter (fs): at position 18 a '=' is expected" start --l2-adapter "$mock" --l2-adapter type=fs,base_path
says_only "the 1st --l2-adapter: at position 17 a '=' is expected" start --l2-adapter type=top,hunter2 --l2-adapter "$mock"
says_only 'the 3rd --l2-adapter (fs): base_path "relative" is not an absolute path' \
	start --l2-adapter "$mock" --l2-adapter "$mock" --l2-adapter type=fs,base_path=relative
eleven=()
for ((i = 0; i < 11; i++)); do
	eleven+=(--l2-adapter "$mock")
done
says_only 'the 12th --l2-adapter (mock): nothing after the backslash at the end' start "${eleven[@]}" --l2-adapter 'type=mock,x=\'

# The configuration file.
config() {
	printf '%s\n' "$@" >"$WORK/config"
	start --config "$WORK/config"
}

# What is malformed is not printed: it may be a password, or what comes after the comma in one.
for secret in 'type=mock,password=!top,hunter2' 'type=mock,password=!top,hunter2=' 'password=!top,hunter2=x' \
	'type=mock,password=!top,password=hunter2' '{"type":"mock","password":"!top" "hunter2"}' \
	'{"type":"mock","password":"!top,hunter2"'; do
	said=$(start --l2-adapter "$secret" 2>&1) && fail "mounted with $secret"
	said+=$(config '[kvcachefs]' "l2-adapter=$secret" 2>&1) && fail "mounted with $secret"
	[[ $said == *--l2-adapter* && $said != *hunter2* && $said != *!top* ]] || fail "$secret: it says: $said"
done
refused 2 "--config: $WORK/absent: No such file" start --config "$WORK/absent"
refused 2 "$WORK/config:3: unknown key \"l2-adaptor\"; did you mean \"l2-adapter\"?" \
	config '[kvcachefs]' '# a comment' 'l2-adaptor=type=mock'
refused 2 "$WORK/config:2: unknown key \"lookup-wait.1\"" config '[kvcachefs]' 'lookup-wait.1=3'
refused 2 "$WORK/config:2: unknown key \"help\"" config '[kvcachefs]' 'help=true'
refused 2 "$WORK/config:2: --readahead: \"many\" is not a number" config '[kvcachefs]' 'readahead = many'
refused 2 "$WORK/config:2: foreground: \"perhaps\" is neither true nor false" config '[kvcachefs]' 'foreground = perhaps'
refused 2 "$WORK/config:2: mount options: unknown option \"rwx\"" config '[kvcachefs]' 'options=rwx'
refused 2 'unknown group [other]' config '[kvcachefs]' '[other]'
refused 2 'no group [kvcachefs]' config ''
refused 2 "$WORK/config:3: \"l1-size = 1G\" is in no group: the line [kvcachefs] is missing before it" \
	config '# a comment' '' ' l1-size = 1G' '[kvcachefs]'
refused 2 "$WORK/config:1: \"not a key file\" is in no group: the line [kvcachefs] is missing before it" config 'not a key file'
refused 2 "$WORK/config:3: \"l1-size 1G\" is not KEY = VALUE" config '[kvcachefs]' 'readahead=2' 'l1-size 1G'
refused 2 "$WORK/config:2: \"= 1G\" is not KEY = VALUE" config '[kvcachefs]' '= 1G'
# Twice is a mistake, also where the option is repeatable: that is what the numbers are for.
refused 2 "$WORK/config:4: \"l1-size\" is in line 2 already, as \"l1-size\"" \
	config '[kvcachefs]' 'l1-size = 64M' 'readahead = 2' 'l1-size = 128M'
refused 2 "$WORK/config:4: \"readahead\" is in line 2 already" config '[kvcachefs]' 'readahead=1' '[kvcachefs]' 'readahead=1'
refused 2 "$WORK/config:3: \"temp-names\" is in line 2 already" config '[kvcachefs]' 'temp-names=*.x' 'temp-names=*.y'
refused 2 "$WORK/config:3: \"temp-names.01\" is in line 2 already, as \"temp-names.1\"" \
	config '[kvcachefs]' 'temp-names.1=*.x' 'temp-names.01=*.y'
refused 2 "$WORK/config:3: \"options.0\" is in line 2 already, as \"options\"" config '[kvcachefs]' 'options=ro' 'options.0=noatime'
printf '[kvcachefs]\nreadahead=2\0' >"$WORK/config"
refused 2 "--config: $WORK/config is not a text file" start --config "$WORK/config"
refused 2 "$WORK/config:2: --temp-names: must not be empty" config '[kvcachefs]' 'temp-names='
# What is known to be wrong only when all options are.
refused 2 "$WORK/config:3: --l2-adapter: there is no L2 adapter \"sf\"" config '[kvcachefs]' '# a comment' 'l2-adapter=type=sf'
refused 2 "$WORK/config:3: the 2nd --l2-adapter (fs): base_path \"relative\" is not an absolute path" \
	config '[kvcachefs]' 'l2-adapter.0=type=mock,max_size_gb=1' 'l2-adapter.1=type=fs,base_path=relative'
refused 2 "$WORK/config:2: --l2-adapter (fs): base_path \"$MNT/x\" is inside the mount point $MNT" \
	config '[kvcachefs]' "l2-adapter=type=fs,base_path=$MNT/x"
refused 2 "$WORK/config:2: --eviction-policy: there is no eviction policy \"lur\"" config '[kvcachefs]' 'eviction-policy=lur'
refused 2 "$WORK/config:2: --temp-names: \"a/b\"" config '[kvcachefs]' 'temp-names=a/b'
refused 2 "$WORK/config:2: --max-object-size: 1099511627776 bytes are more" config '[kvcachefs]' 'max-object-size=1T'
# A configuration is a file, and not a large one.
mkfifo "$WORK/fifo"
for other in /dev/zero "$WORK/fifo" "$WORK"; do
	refused 2 "--config: $other is not a regular file" start --config "$other"
done
{ echo '[kvcachefs]' && head -c $((1 << 20)) /dev/zero | tr '\0' '#'; } >"$WORK/large"
refused 2 "--config: $WORK/large has more than 1048576 bytes" start --config "$WORK/large"

# ---- Directories -----------------------------------------------------------------------------

: >"$WORK/file"
ln -s "$MNT" "$WORK/link"
refused 1 "mount point $WORK/absent does not exist" "$KVCACHEFS" --state-dir "$STATE" "$WORK/absent"
refused 1 "mount point $WORK/file is not a directory" "$KVCACHEFS" --state-dir "$WORK/no-state" "$WORK/file"
[[ ! -e $WORK/no-state ]] || fail "a start on a file made a state directory"
refused 1 "mount point $WORK/file/x: Not a directory" "$KVCACHEFS" --state-dir "$STATE" "$WORK/file/x"
refused 1 "state directory $WORK/file/x: Not a directory" start --state-dir "$WORK/file/x"
refused 1 'state directory /proc/absent: ' start --state-dir /proc/absent
for file in deletions directories; do # a fifo keeps nobody
	mkdir -m 700 "$WORK/fifo-$file"
	mkfifo "$WORK/fifo-$file/$file"
	refused 1 "$WORK/fifo-$file/$file is not a regular file" start --state-dir "$WORK/fifo-$file"
	rm "$WORK/fifo-$file/$file"
	truncate -s 3G "$WORK/fifo-$file/$file" # nor does a file that is much too large
	refused 1 "$WORK/fifo-$file/$file has 3221225472 bytes, more than" start --state-dir "$WORK/fifo-$file"
done
refused 1 "l2.0 (fs): cannot make the directory \"$WORK/file\": Not a directory" fs_at "$WORK/file"
refused 1 "l2.1 (fs): cannot make the directory \"$WORK/file\": Not a directory" \
	start --l2-adapter type=mock,max_size_gb=1 --l2-adapter "type=fs,base_path=$WORK/file"
says_only "--l2-adapter (fs): base_path \"$WORK/file/x\": Not a directory" fs_at "$WORK/file/x"
refused 1 '"/proc/absent": ' fs_at /proc/absent
for inside in "$MNT" "$MNT/x" "$WORK/link" "$WORK/link/x/y" "$WORK/../${WORK##*/}/mnt/x"; do
	refused 2 "base_path \"$inside\" is inside the mount point $MNT" fs_at "$inside"
	[[ $inside == *..* ]] || refused 2 "state directory \"$inside\" is inside the mount point $MNT" start --state-dir "$inside"
done
refused 2 "the mount point $MNT is inside base_path \"$WORK\"" fs_at "$WORK"

# ---- Name spaces of our own: what is read-only, missing or not for us --------------------------

require_cmd unshare
unshare -m true 2>/dev/null || skip "no mount name spaces"
export KVCACHEFS MNT STATE WORK L2

# isolated SCRIPT: in a mount name space of its own.
isolated() {
	"$SRC/scripts/lib/private-mounts" "$WORK" bash -c "$1"
}

mkdir "$WORK/read-only"
refused 1 "base_path \"$WORK/read-only\": Read-only file system (-o ro mounts it to be read only)" isolated \
	'mount -t tmpfs -o ro none "$WORK/read-only" && "$KVCACHEFS" --state-dir "$STATE" --l2-adapter "type=fs,base_path=$WORK/read-only" "$MNT"'
refused 1 "state directory $WORK/read-only/x: Read-only file system" isolated \
	'mount -t tmpfs -o ro none "$WORK/read-only" && "$KVCACHEFS" --state-dir "$WORK/read-only/x" "$MNT"'
refused 1 "/dev/fuse: No such device or address" isolated \
	'mount --bind /dev/null /dev/fuse && "$KVCACHEFS" --state-dir "$STATE" "$MNT"'

# As an ordinary user, who reaches no fusermount3 with the right to mount.
require_cmd setpriv
run_as_nobody='setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all env XDG_STATE_HOME="$WORK/home" "$KVCACHEFS"'
mkdir "$WORK/home"
chmod 777 "$WORK/home" "$MNT"
chmod 755 "$WORK"
# device MODE: /dev/fuse with another mode.
device() {
	echo 'mount -t tmpfs -o mode=755 none "$WORK/dev" && mknod "$WORK/dev/fuse" c 10 229 &&' \
		"chmod $1 \"\$WORK/dev/fuse\" && mount --bind \"\$WORK/dev/fuse\" /dev/fuse"
}
mkdir "$WORK/dev"
if setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$KVCACHEFS" -a -w "$MNT"; then
	refused 1 "/dev/fuse: Permission denied" isolated \
		"$(device 600); $run_as_nobody \"\$MNT\""
	refused 1 "mount options: allow_other is for root, unless /etc/fuse.conf has the line user_allow_other" isolated \
		"$(device 666); : >\"\$WORK/fuse.conf\"; mount --bind \"\$WORK/fuse.conf\" /etc/fuse.conf; $run_as_nobody -o allow_other \"\$MNT\""
	refused 1 "cannot mount $MNT: fuse: failed to exec fusermount3" isolated \
		"$(device 666); mount --bind /dev/null \"\$(command -v fusermount3)\"; $run_as_nobody \"\$MNT\""
	refused 1 "cannot mount $MNT: fusermount3: mount failed: Operation not permitted" isolated \
		"$(device 666); cp \"\$(command -v fusermount3)\" \"\$WORK/\"; mount --bind \"\$WORK/fusermount3\" \"\$(command -v fusermount3)\"; $run_as_nobody \"\$MNT\""
	refused 1 "state directory $WORK/state belongs to somebody else; it must be private (mode 0700)" isolated \
		"mkdir -p -m 700 \"\$STATE\"; $run_as_nobody --state-dir \"\$STATE\" \"\$MNT\""
else
	echo "not tried as an ordinary user: it cannot reach $KVCACHEFS or $MNT"
fi
echo "errors: $n"

# ---- A mount that is there -------------------------------------------------------------------

# What is taken, but may not be meant, is said.
said=$(start 2>&1) || fail "a start without an L2"
DAEMON_PID=$(status pid)
echo "$DAEMON_PID" >>"$WORK/daemons"
[[ $said == *"kvcachefs: no L2: what is written is gone with this mount" ]] || fail "a start without an L2 says: $said"
stop_fs
ln -s "$L2" "$WORK/l2-link"
for paths in "$L2 $L2" "$L2 $L2/below" "$WORK/l2-link/below $L2" "$L2 $WORK/other-l2"; do
	read -r one two <<<"$paths"
	said=$(start --l2-adapter "type=fs,base_path=$one" --l2-adapter "$mock" --l2-adapter "type=fs,base_path=$two" 2>&1) ||
		fail "a start over $paths: $said"
	DAEMON_PID=$(status pid)
	echo "$DAEMON_PID" >>"$WORK/daemons"
	want="kvcachefs: two --l2-adapter have the same files: base_path \"${one/l2-link/l2}\" and \"$two\""
	[[ $two != *other-l2 ]] || want=
	assert_eq "$want" "$(grep -v "l1 memory: no private tmpfs" <<<"$said" || true)" "what a start over $paths says"
	stop_fs
done

start_fs
said=$(start 2>&1) && fail "a second mount on a live one"
assert_eq "kvcachefs: $MNT is already mounted" "$said" "a start on a live mount"
said=$("$KVCACHEFS" --state-dir "$WORK/other-state" "$MNT" 2>&1) && fail "a second mount with another state directory"
assert_eq "kvcachefs: $MNT is already mounted" "$said" "a start on a live mount, from another state directory"
# One state directory, another mount point: nothing to wait for. (A start that waits says so, in one more line.)
other=$WORK/"other 'mnt"$'\n'é
mkdir "$other"
said=$("$KVCACHEFS" --state-dir "$STATE" --l1-size 64M "$other" 2>&1) && fail "a second mount with the same state directory"
assert_eq "kvcachefs: the state directory $STATE is that of $MNT (pid $DAEMON_PID)" "$said" "a start with the state directory of a live mount"
# Killed, it leaves a stale mount, which the next start removes.
kill_fs
expect_errno ENOTCONN stat "$MNT/.kvcache"
start_fs
expect_errno 0 stat "$MNT/.kvcache"
stop_fs
! is_mounted || fail "still mounted: the stale mount was below the new one"
# Of a mount that is gone it can be taken over, and is then that of the other mount point, whatever its name.
"$KVCACHEFS" --state-dir "$STATE" --l1-size 64M "$other" || fail "a start with the state directory of an earlier mount"
read -r pid _ <"$STATE/lock"
echo "$pid" >>"$WORK/daemons"
said=$("$KVCACHEFS" --state-dir "$STATE" --l1-size 64M "$MNT" 2>&1) && fail "a second mount with the same state directory"
assert_eq "kvcachefs: the state directory $STATE is that of $other (pid $pid)" "$said" "a start with the state directory of a live mount"
said=$("$KVCACHEFS" --state-dir "$STATE" --l1-size 64M "$other" 2>&1) && fail "a second mount on a live one"
assert_eq "kvcachefs: $other is already mounted" "$said" "a start on a live mount"
umount "$other"
wait_gone "$pid"
