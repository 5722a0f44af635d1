#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# scripts/run mounts what it is told to, prints three commands that work and how to stop, and that stops it.
#
# parallel
# not-in: user: it builds

. "$(dirname "$0")/lib.sh"

# A tree whose build/ is the one that was just built: nothing is built again.
tree=$WORK/tree
mkdir "$tree"
ln -s "$SRC"/* "$tree"
rm -rf "$tree/scripts" "$tree"/build*
cp -r "$SRC/scripts" "$tree/scripts"
ln -s "$BUILD" "$tree/build"
KVCACHEFS=$tree/build/fs/kvcachefs
rmdir "$MNT" "$L2"

expect_rc() {
	local want=$1 rc=0
	shift
	"$@" || rc=$?
	assert_eq "$want" "$rc" "exit code of $*"
}
expect_rc 0 "$tree/scripts/run" --help
expect_rc 2 "$tree/scripts/run" --l1-size 256M

# Only a mount is called one.
"$tree/scripts/run" "$MNT" --version >"$WORK/version" || fail "scripts/run M --version"
[[ $(<"$WORK/version") == "$("$KVCACHEFS" --version)" ]] || fail "scripts/run M --version prints $(<"$WORK/version")"
[[ ! -e $MNT ]] || fail "scripts/run M --version made $MNT"

# An L2 of the user's is the only one, whichever way it is named.
echo "[kvcachefs]" >"$WORK/run.conf"
echo "l2-adapter.0 = type=mock,max_size_gb=1" >>"$WORK/run.conf"
for option in "--config $WORK/run.conf" "--config=$WORK/run.conf" "-o l2-adapter=type=mock;max_size_gb=1" \
	"-o noatime,config=$WORK/run.conf" "--l2-adapter=type=mock,max_size_gb=1"; do
	read -ra words <<<"$option"
	"$tree/scripts/run" "$MNT" --l1-size 256M --state-dir "$STATE" "${words[@]}" >"$WORK/output" 2>&1 ||
		fail "scripts/run M $option: $(<"$WORK/output")"
	grep -q '^building kvcachefs' "$WORK/output" || fail "scripts/run says nothing while it builds"
	DAEMON_PID=$(find_daemon) || fail "kvcachefs is not running after $option"
	echo "$DAEMON_PID" >>"$WORK/daemons"
	assert_eq mock "$(status l2.0.type)" "l2.0.type with $option"
	! grep -q "^l2\.1\." "$MNT/.kvcache/status" || fail "a second L2 with $option"
	umount "$MNT"
	wait_gone "$DAEMON_PID"
done

"$tree/scripts/run" "$MNT" --l1-size 256M --state-dir "$STATE" --l2-adapter "type=fs,base_path=$L2" >"$WORK/output" ||
	fail "scripts/run"
cat "$WORK/output"
is_mounted || fail "scripts/run returned 0 and $MNT is not mounted"
DAEMON_PID=$(find_daemon) || fail "kvcachefs is not running"
echo "$DAEMON_PID" >>"$WORK/daemons"
assert_eq ok "$(status health)" health
assert_eq fs "$(status l2.0.type)" l2.0.type

mapfile -t commands < <(sed -n 's/^  //p' "$WORK/output")
assert_eq 3 "${#commands[@]}" "commands that scripts/run printed"
for command in "${commands[@]}"; do
	echo "+ $command"
	bash -c "$command" >"$WORK/command.out" 2>&1 || fail "\"$command\" fails: $(cat "$WORK/command.out")"
	cat "$WORK/command.out"
done
assert_eq 1 "$(find "$MNT" -path "$MNT/.kvcache" -prune -o -type f -size 4M -print | wc -l)" "objects of 4 MB"

stop=$(sed -n 's/^To stop: //p' "$WORK/output")
[[ -n $stop ]] || fail "scripts/run does not say how to stop"
echo "+ $stop"
bash -c "$stop" || fail "\"$stop\" fails"
wait_gone "$DAEMON_PID"
! is_mounted || fail "$MNT is still mounted"
assert_eq 1 "$(find "$L2" -name '*.data' -size 4M | wc -l)" "objects in L2"
