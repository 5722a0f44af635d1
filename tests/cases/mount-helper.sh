#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# "mount -t kvcachefs SOURCE MOUNTPOINT -o ..." and a line of fstab mount by mount.kvcachefs; a read-only mount refuses
# every change and its control files can be read.
#
# parallel
# not-in: direct: what sets the mode goes before the arguments, where mount(8) puts the source

. "$(dirname "$0")/lib.sh"

require_cmd unshare
require_cmd mount
unshare -m true 2>/dev/null || skip "no mount name spaces"
sbin=$(realpath /sbin)
[[ $sbin != "$(realpath /bin)" ]] || skip "/sbin is /bin: it cannot be replaced for the test"

mkdir "$WORK/sbin"
ln -s "$KVCACHEFS" "$WORK/sbin/mount.kvcachefs"
helper=$WORK/sbin/mount.kvcachefs

# ---- The helper by itself --------------------------------------------------------------------

"$helper" some-source "$MNT" -n -v -o "rw,nofail,_netdev,x-systemd.automount,l1-size=64M,state-dir=$STATE,l2-adapter=type=fs;base_path=$L2"
DAEMON_PID=$(status pid)
echo "$DAEMON_PID" >>"$WORK/daemons"
assert_eq "some-source $MNT fuse.kvcachefs" "$(grep " $MNT " /proc/mounts | cut -d' ' -f 1-3)" "its line in the mount table"
assert_eq "$((64 << 20))" "$(status l1_capacity_bytes)" l1-size
assert_eq fs "$(status l2.0.type)" "the adapter"
mkdir -p "$RANK"
mkchunk "$RANK/$(chunk_hash 0)" 64K
control flush /
stop_fs
# "-f" of mount(8): fake, nothing is mounted.
"$helper" none "$MNT" -f -o ro
! is_mounted || fail "mount -f has mounted"
rc=0
"$helper" "$MNT" 2>"$WORK/said" || rc=$?
assert_eq "2" "$rc" "exit status without a source"
grep -q "SOURCE and a MOUNTPOINT" "$WORK/said" || fail "without a source: $(cat "$WORK/said")"
rc=0
"$helper" none "$MNT" -o "fsname=" 2>"$WORK/said" || rc=$?
assert_eq 'kvcachefs: mount options: "fsname" needs a value' "$(cat "$WORK/said")" "an empty fsname"
rc=0
"$helper" none "$MNT" -o "l2adapter=x" 2>"$WORK/said" || rc=$?
assert_eq 'kvcachefs: mount options: unknown option "l2adapter"; did you mean "l2-adapter"?' "$(cat "$WORK/said")" "an unknown option"

# ---- Read-only -------------------------------------------------------------------------------

start_fs -oro
assert_eq ok "$(status health)" "status of a read-only mount"
cmp <("$CLIENTS/pattern" "$SEED" 64K) "$RANK/$(chunk_hash 0)" || fail "its data"
for call in create:$RANK/$(chunk_hash 1) mkdir:$RANK/p unlink:$RANK/$(chunk_hash 0); do
	expect_errno EROFS "${call%%:*}" "${call#*:}"
done
expect_errno open:EROFS write "$MNT/.kvcache/evict" "/"$'\n'
stop_fs

# ---- mount(8) and fstab ----------------------------------------------------------------------

cat >"$WORK/script" <<'END'
set -eu
mount --bind "$WORK/sbin" "$SBIN"
common=l1-size=64M,state-dir=$STATE,drain-timeout=5
wait_end() {
	for _ in {1..500}; do
		flock -n "$STATE/lock" true && return
		sleep 0.02
	done
	echo "the daemon does not end"
	exit 1
}
mount -t kvcachefs kv "$MNT" -o "noatime,$common,l2-adapter=type=fs;base_path=$L2;workers=2,l2-adapter=type=mock;max_size_gb=1;persist_enabled=false"
grep -E '^l2\.[01]\.type ' "$MNT/.kvcache/status"
grep -oE '^l2-adapter.0 type=fs.*,workers=2' "$MNT/.kvcache/config" | grep -o 'workers=2'
findmnt -n -o SOURCE,FSTYPE "$MNT" | tr -s ' '
umount "$MNT"
wait_end
echo "kvcachefs $MNT kvcachefs defaults,nofail,x-test=1,$common,l2-adapter=type=fs;base_path=$L2 0 0" >"$WORK/fstab"
mount -T "$WORK/fstab" "$MNT"
mount -T "$WORK/fstab" -a
grep -c " $MNT " /proc/mounts
umount "$MNT"
wait_end
mount -T "$WORK/fstab" "$MNT" -o ro,lookup-wait=x 2>&1 | grep -o 'lookup-wait: "x" is not a number' || echo "no word about lookup-wait"
END
said=$(env "WORK=$WORK" "SBIN=$sbin" "STATE=$STATE" "MNT=$MNT" "L2=$L2" "$SRC/scripts/lib/private-mounts" "$WORK" bash "$WORK/script" 2>&1) ||
	fail "in the name space: $said"
assert_eq $'l2.0.type fs\nl2.1.type mock\nworkers=2\nkv fuse.kvcachefs\n1\nlookup-wait: "x" is not a number' "$said" \
	"what mount(8) mounted"
! is_mounted || fail "the mount has leaked out of its name space"
