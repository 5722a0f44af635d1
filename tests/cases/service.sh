#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What service managers and shells rely on: READY and STOPPING on $NOTIFY_SOCKET, a unit file that systemd accepts,
# completion that offers every option.
#
# parallel

. "$(dirname "$0")/lib.sh"

# ---- Readiness -------------------------------------------------------------------------------

require_cmd python3
cat >"$WORK/listen.py" <<'END'
import socket, sys
name = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\0" + name[1:] if name.startswith("@") else name)
print("listening", flush=True)
while True:
    for line in s.recv(4096).decode().splitlines():
        print(line, flush=True)
END

ready_and_stopping() {
	local socket=$1 name=$2
	start_client "$name" python3 "$WORK/listen.py" "$socket"
	client_hear "$name" listening
	NOTIFY_SOCKET=$socket "$KVCACHEFS" -f --state-dir "$STATE" --l1-size 64M "$MNT" >>"$DAEMON_LOG" 2>&1 &
	DAEMON_PID=$!
	echo "$DAEMON_PID" >>"$WORK/daemons"
	client_hear "$name" READY=1
	is_mounted || fail "READY without a mount"
	assert_eq "$DAEMON_PID" "$(status pid)" "pid in status"
	assert_eq "$MNT" "$(status mount_point)" "mount_point in status"
	assert_le "$(status uptime_seconds)" 100 uptime_seconds
	! client_said "$name" STOPPING=1 || fail "STOPPING before the end"
	kill -TERM "$DAEMON_PID"
	client_hear "$name" STOPPING=1
	wait "$DAEMON_PID" || fail "exit status $? after SIGTERM"
	! is_mounted || fail "still mounted"
}
ready_and_stopping "$WORK/notify" path
ready_and_stopping "@kvcachefs-test-$$-$SEED" abstract

# A socket that is not there is said, and changes nothing else.
NOTIFY_SOCKET=$WORK/absent start_bare
grep -q "NOTIFY_SOCKET $WORK/absent: No such file" "$DAEMON_LOG" || echo "(said elsewhere: the journal)"
stop_fs

# ---- The unit --------------------------------------------------------------------------------

unit=$SRC/scripts/kvcachefs@.service
for line in Type=notify NotifyAccess=main 'RestartPreventExitStatus=2'; do
	grep -qxF "$line" "$unit" || fail "$unit: no line $line"
done
# Its command line is one that we take.
mapfile -t command < <(sed -n 's/^ExecStart=//p' "$unit" | tr ' ' '\n')
assert_eq kvcachefs "${command[0]}" "the program of ExecStart"
help=$("$KVCACHEFS" --help)
for word in "${command[@]:1}"; do
	[[ $word != --* ]] || grep -qF -- "$word" <<<"$help" || fail "ExecStart has an unknown option $word"
done
if command -v systemd-analyze >/dev/null; then
	mkdir "$WORK/units"
	cp "$unit" "$WORK/units/kvcachefs@mnt-x.service"
	sed -i "s|^ExecStart=kvcachefs|ExecStart=$KVCACHEFS|" "$WORK/units/kvcachefs@mnt-x.service"
	systemd-analyze verify --man=no "$WORK/units/kvcachefs@mnt-x.service" || fail "systemd-analyze verify"
fi

# ---- Completion ------------------------------------------------------------------------------

. "$SRC/scripts/kvcachefs.bash"
# completed WORD...: what is offered for the last word.
completed() {
	COMP_WORDS=("$KVCACHEFS" "$@")
	COMP_CWORD=$#
	_kvcachefs
	printf '%s\n' "${COMPREPLY[@]}" | sort
}
options=$(awk '/^Options:/ { on = 1; next } !NF { on = 0 } on' <<<"$help" | grep -oE -- '(^|[ ,])--?[a-zA-Z][a-z0-9-]*' | tr -d ' ,')
assert_eq "$(sort <<<"$options")" "$(completed -)" "completion of options"
assert_eq $'--l1-size' "$(completed --l1-s)" "completion of one option"
assert_eq $'auto\ndirect\npassthrough' "$(completed --io-mode '')" "completion of --io-mode"
assert_eq passthrough "$(completed --io-mode = p)" "completion of --io-mode=p"
assert_eq $'type=fs\ntype=mock' "$(completed --l2-adapter type= | grep -xE 'type=(fs|mock)')" "completion of --l2-adapter"
assert_eq mock "$(completed --l2-adapter type = mo)" "completion of --l2-adapter type=mo, split at '='"
grep -qx lru <<<"$(completed --eviction-policy = '')" || fail "completion of --eviction-policy"
# What is offered for -o is what it takes, and all of ours.
completed -o '' >"$WORK/offered"
grep -E -- '^[a-z0-9-]+=$' "$WORK/offered" | grep -vx fsname= >"$WORK/ours"
assert_eq "$(awk '/^Options:/ { on = 1; next } !NF { on = 0 } on' <<<"$help" | grep -oE -- '--[a-z0-9-]+=' | sed 's/^--//' |
	grep -vx options= | sort)" "$(cat "$WORK/ours")" "completion of -o: our options"
while read -r word; do
	said=$("$KVCACHEFS" -o "${word/%=/=1}" 2>&1) && fail "a start without a mount point"
	[[ $said != *"unknown option"* && $said != *"takes no value"* && $said != *"needs a value"* ]] ||
		fail "completion of -o offers $word: $said"
done <"$WORK/offered"
assert_eq $'allow_other\nasync\natime\nauto_unmount' "$(completed -o a)" "completion of -o a"
assert_eq ro,l1-size= "$(completed -o ro,l1-s)" "completion of -o ro,l1-s"
assert_eq rw "$(completed --options = rw)" "completion of --options=rw"
grep -qx ro <<<"$(completed --options =)" || fail "completion of --options="
assert_eq "" "$(completed -o l1-size =)" "completion of a value"
assert_eq "" "$(completed -o l1-size = 6)" "completion of a value"
assert_eq 64M,ro "$(completed -o l1-size = 64M,ro)" "completion of -o l1-size=64M,ro"
assert_eq "" "$(completed -o fsname = x,l1-size = 6)" "completion of the second value"
assert_eq "$MNT" "$(completed -o ro "${MNT%?}" | grep -xF "$MNT")" "completion of a mount point behind -o"
touch "$WORK/some.conf"
assert_eq "$WORK/some.conf" "$(completed --config "$WORK/so")" "completion of --config"
