#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A directory that somebody made is there until somebody removes it, with its mode and owner, also when the daemon is
# restarted or killed, and although no object is below it.
#
# parallel

. "$(dirname "$0")/lib.sh"

# tree: the directories below the mount, with mode and owner. (Prefix directories are stored as objects are.)
tree() {
	find "$MNT" -mindepth 1 \( -path "$MNT/.kvcache" -o -name prefix \) -prune -o -type d -printf '%P %m %U:%G\n' | sort
}

start_fs
mkdir -p "$MNT/org/model/@01000100" "$MNT/org/other" "$MNT/with blank"$'\n'"line"
mkdir -m 0700 "$MNT/private"
mkdir -m 1777 "$MNT/private/below"
chmod 2750 "$MNT/org/other"
if ((EUID == 0)); then
	chown 12:34 "$MNT/org/other" "$MNT/org/model/@01000100"
fi
mkdir "$MNT/gone" "$MNT/gone/deep"
rmdir "$MNT/gone/deep" "$MNT/gone"
mkdir "$MNT/org/model/@01000100/prefix"
prefix=$MNT/org/model/@01000100/prefix
before=$(tree)
echo "$before"
restart_fs
assert_eq "$before" "$(tree)" "directories after a restart"
[[ -d $prefix ]] || fail "the prefix directory is not there after a restart"
kill_fs
start_fs
assert_eq "$before" "$(tree)" "directories after a kill"

# A directory changes when an entry comes or goes, and not when a file in it is written. Who made the change sees it
# at once, whatever was asked before.
# changes DIR COMMAND...: COMMAND moves mtime and ctime of DIR.
changes() {
	local dir=$1 old new
	shift
	old=$(stat -c '%y %z' "$dir")
	"$@"
	new=$(stat -c '%y %z' "$dir")
	[[ ${new% * * *} > ${old% * * *} && ${new#* * * } > ${old#* * * } ]] || fail "$dir: from $old to $new by $*"
}
new_file() { echo "$RANDOM" >"$1"; }
rank=$MNT/org/model/@01000100
changes "$MNT/org" mkdir "$MNT/org/times"
times=$MNT/org/times
changes "$times" new_file "$times/new"
changes "$times" new_file "$times/.new.tmp"
changes "$times" mv "$times/.new.tmp" "$times/committed"
changes "$times" rm "$times/new"
changes "$times" mkdir "$times/below"
changes "$times" mv "$times/committed" "$times/below/committed"
changes "$times/below" mv "$times/below/committed" "$times/committed"
changes "$times" mv "$times/below" "$times/other"
changes "$times" rmdir "$times/other"
changes "$rank" new_file "$rank/$(chunk_hash times)"
changes "$prefix" ln "$rank/$(chunk_hash times)" "$prefix/"
changes "$prefix" rm "$prefix/$(chunk_hash times)"
changes "$prefix" new_file "$prefix/$(chunk_hash times2)"
changes "$rank" rm "$rank/$(chunk_hash times)"
changes "$rank" mkdir "$rank/times"
changes "$rank" rmdir "$rank/times"
chunk_hash times >"$WORK/line"
changes "$prefix" cp "$WORK/line" "$prefix/.keys"
rm "$rank/$(chunk_hash times2)" "$prefix/.keys"
: >"$prefix/.keys"
# The kernel has just been told of the directory when the writer closes.
python3 - "$times" <<-'EOF' || fail "a close does not change the directory"
	import os, sys
	for i in range(20):
	    with open(f"{sys.argv[1]}/file{i}", "w") as file:
	        file.write("x")
	        before = os.stat(sys.argv[1]).st_mtime_ns
	    after = os.stat(sys.argv[1]).st_mtime_ns
	    assert after > before, (i, before, after)
EOF
old=$(stat -c %y "$times")
new_file "$times/committed"
touch -d "2001-02-03 04:05:06" "$times/committed"
assert_eq "$old" "$(stat -c %y "$times")" "mtime of a directory after a file in it was written"
touch -d "2001-02-03 04:05:06" "$times"
expect_output 981173106 stat -c %Y "$times"
rm -r "$times"
touch -d "2001-02-03 04:05:06" "$prefix"
expect_output 981173106 stat -c %Y "$prefix"

# What was done last before a kill counts.
mkdir "$MNT/last"
kill_fs
start_fs
[[ -d $MNT/last ]] || fail "a directory made right before a kill is not there"
rmdir "$MNT/last"
kill_fs
start_fs
[[ ! -e $MNT/last ]] || fail "a directory removed right before a kill is there"
assert_eq "$before" "$(tree)" "directories after several kills"

# Objects make directories too, which need not be remembered: they are there as long as the object is.
mkchunk "$WORK/data" 64K
cp "$WORK/data" "$MNT/org/model/@01000100/$(chunk_hash 0)"
restart_fs
assert_same "$WORK/data" "$MNT/org/model/@01000100/$(chunk_hash 0)"
expect_errno ENOTEMPTY rmdir "$MNT/org/model/@01000100"
rm "$MNT/org/model/@01000100/$(chunk_hash 0)"
assert_eq .keys "$(ls -A "$prefix")" "what is in the empty prefix directory"
rmdir "$prefix" "$MNT/org/model/@01000100" "$MNT/org/model"
restart_fs
[[ -d $MNT/org && ! -e $MNT/org/model ]] || fail "a removed directory is back"

# Nobody sees what is still being written, but its directory is not empty.
for dir in "$MNT/busy" "$MNT/busy/@01000100"; do
	mkdir -p "$dir"
	name=$dir/$(chunk_hash 1)
	writer=writer.${dir##*/}
	begin "$writer"
	step "$writer" 0 open "$name" wc
	step "$writer" 0 write 1 64K
	[[ ! -e $name ]] || fail "$name is visible before its close"
	expect_errno ENOTEMPTY rmdir "$dir"
	step "$writer" 0 close
	expect_data "$name" 1 64K
	rm "$name"
	# Killed: nothing came of it.
	step "$writer" 0 open "$name" wc
	step "$writer" 0 write 1 64K
	kill -KILL "${step_pids[$writer]}"
	wait "${step_pids[$writer]}" || true
	wait_until 10 "the directory can be removed" rmdir "$dir"
	mkdir -p "$MNT/busy"
done
rmdir "$MNT/busy"
stop_fs

# Private; and what is no log of ours, or cannot be written, is named and left as it is.
assert_eq 700 "$(stat -c %a "$STATE")" "mode of the state directory"
# refused WORD: a start fails, and says WORD.
refused() {
	local rc=0
	timeout 20 "$KVCACHEFS" --l1-size "$L1_SIZE" --state-dir "$STATE" "$MNT" >"$WORK/out" 2>&1 || rc=$?
	cat "$WORK/out"
	((rc != 0 && rc < 124)) || fail "exit $rc"
	grep -qF -- "$1" "$WORK/out" || fail "the message does not say \"$1\""
	! is_mounted || fail "mounted"
}
mv "$STATE/directories" "$WORK/aside"
printf 'kvcachefs directories 0\nx\n' >"$STATE/directories"
refused "$STATE/directories"
expect_output $'kvcachefs directories 0\nx' cat "$STATE/directories"
mv "$WORK/aside" "$STATE/directories"
chmod 0777 "$STATE"
refused "$STATE"
chmod 0700 "$STATE"
mkdir "$STATE/directories.new"
refused "$STATE/directories"
rmdir "$STATE/directories.new"
start_fs
[[ -d $MNT/private/below ]] || fail "directories are lost after refused starts"
stop_fs

# A full disk: the mount goes on, says so, and writes what it has once there is room.
((EUID == 0)) || exit 0
mkdir "$WORK/small"
mount -t tmpfs -o size=64k,mode=0700 none "$WORK/small" || skip "no tmpfs"
trap 'umount -l "$WORK/small" 2>/dev/null; case_ended' EXIT
STATE=$WORK/small/state
start_fs
assert_eq ok "$(status directory_log)" directory_log
dd if=/dev/zero of="$WORK/small/filler" bs=4k status=none 2>/dev/null || true
for i in {1..100}; do
	mkdir "$MNT/a-directory-with-a-long-name-that-needs-some-room-in-the-log-of-directories-$i"
done
wait_until 20 "health says so" status_is health degraded
assert_eq "No space left on device" "$(status directory_log)" directory_log
rm "$WORK/small/filler"
wait_until 20 "health is ok" status_is health ok
before=$(tree)
kill_fs
start_fs
assert_eq "$before" "$(tree)" "directories after a full disk"
stop_fs
