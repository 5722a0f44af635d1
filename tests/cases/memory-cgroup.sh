#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A client in a memory cgroup of 64 MiB writes and reads 1 GB of 32 MB objects: the memory is the daemon's, not the
# client's (but for the first object of a directory, whose size nobody knew).
#
# parallel
# timeout: 240

. "$(dirname "$0")/lib.sh"

L1_SIZE=512M
group=kvc-test-$$
for root in /sys/fs/cgroup/memory /sys/fs/cgroup/unified /sys/fs/cgroup; do
	[[ -e $root/memory.limit_in_bytes ]] && limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes && break
	grep -qw memory "$root/cgroup.controllers" 2>/dev/null && limit=memory.max peak=memory.peak && break
	root=
done
[[ -n $root ]] || skip "no memory controller"
if [[ $limit == memory.max ]]; then
	echo +memory >"$root/cgroup.subtree_control" 2>/dev/null || skip "the memory controller cannot be delegated"
fi
mkdir "$root/$group" 2>/dev/null || skip "no cgroup can be made in $root"
trap 'rmdir "$root/$group" 2>/dev/null; case_ended' EXIT
echo $((64 << 20)) >"$root/$group/$limit"

start_bare --max-object-size 64M
mkdir -p "$RANK"
mkchunk "$WORK/data" 32M
cp "$WORK/data" "$RANK/$(chunk_hash first)"

# The loop is in the group, and so are its children.
(
	echo "$BASHPID" >"$root/$group/cgroup.procs"
	for ((i = 0; i < 32; i++)); do
		"$CLIENTS/pattern" "$i" 32M >"$RANK/$(chunk_hash "$i" cgroup)" || exit 1
		# A busy machine may take longer for a commit than a lookup waits for it.
		for ((try = 0; try < 100; try++)); do
			[[ ! -e $RANK/$(chunk_hash "$i" cgroup) ]] || break
			sleep 0.1
		done
		"$CLIENTS/pattern" "$i" 32M | cmp - "$RANK/$(chunk_hash "$i" cgroup)" || exit 1
	done
) || fail "a contained client failed: $(grep -h oom "$root/$group"/memory.* 2>/dev/null | tr '\n' ' ')"
used=$(cat "$root/$group/$peak")
echo "peak of the client's group: $used bytes"
assert_le "$used" $((40 << 20)) "peak of the client's group"
assert_eq 33 "$(stat_counter mount_writes_published)" mount_writes_published
stop_fs
