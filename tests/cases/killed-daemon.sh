#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# After a SIGKILL of the daemon its memory returns but for what a client holds open, that client reads on, a start
# on the stale mount point works, and all that sync confirmed is there.

. "$(dirname "$0")/lib.sh"

shmem_kb() {
	awk '$1 == "Shmem:" { print $2 }' /proc/meminfo
}

shmem_at_most() {
	(($(shmem_kb) <= $1))
}

n=10
declare -a h=()
before=$(shmem_kb)
start_fs
mkdir -p "$RANK"
for ((i = 0; i < n; i++)); do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 32M "$i"
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done
for ((i = 0; i < n; i++)); do
	sync "$RANK/${h[i]}"
done
# Closed, but not confirmed.
mkchunk "$WORK/late" 32M 77
late=$(chunk_hash late)
cp "$WORK/late" "$RANK/$late"

start_client holder "$CLIENTS/hold-open" "$RANK/${h[3]}" "$WORK/data.3"
client_hear holder open
during=$(shmem_kb)
assert_le $((before + n * 32 * 1024 - 8 * 1024)) "$during" "Shmem with $n objects of 32 MB"

kill_fs
echo "Shmem: $before kB before, $during during"
wait_until 20 "Shmem falls to the one open object" shmem_at_most $((before + 32 * 1024 + 8 * 1024))

expect_reads_on holder "$CLIENT_PID"

# The stale mount point answers ENOTCONN (a stat may still be answered from the cache); the same command mounts over it, once.
expect_errno ENOTCONN statfs "$MNT"
start_fs
assert_eq 1 "$(grep -c " $MNT " /proc/self/mountinfo)" "mounts on the mount point"
wait_until 20 "Shmem falls to nothing" shmem_at_most $((before + 8 * 1024))
for ((i = 0; i < n; i++)); do
	assert_same "$WORK/data.$i" "$RANK/${h[i]}"
done
# The one that nobody confirmed is there whole or not at all.
if [[ -e $RANK/$late ]]; then
	assert_same "$WORK/late" "$RANK/$late"
fi

# Killed while somebody writes: what was not closed is not there. The start is right after the kill, when the kernel
# still has the attributes of the root and stat succeeds.
start_client writer "$CLIENTS/hold-writer" "$RANK/$(chunk_hash unfinished)" 1 32M
client_hear writer written
stat "$MNT" >/dev/null
kill_fs
start_fs
client_say writer close
client_hear writer close:ENOTCONN
expect_errno ENOENT stat "$RANK/$(chunk_hash unfinished)"
assert_same "$WORK/data.0" "$RANK/${h[0]}"
stop_fs
# No half-written file of the killed daemon keeps its space.
leftovers=$(find "$L2" -type f ! -name '*.data' -size +1M)
assert_eq "" "$leftovers" "what the killed daemon left in L2"
