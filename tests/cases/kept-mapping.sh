#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The memory of an object that is evicted or removed counts as used while a reader's mapping keeps it: a writer is
# refused instead of cut short. It returns with the mapping.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=128M
cat >"$WORK/map.py" <<'P'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for name in sys.argv[1:]:
    fd = os.open(name, os.O_RDONLY)
    size = os.fstat(fd).st_size
    address = libc.mmap(None, size, 1, 1, fd, 0)
    os.close(fd)
    ctypes.string_at(address, size)
print("mapped", flush=True)
sys.stdin.readline()
P
start_fs --max-object-size 128M --eviction-trigger-watermark 1
mkdir -p "$RANK"
mkchunk "$WORK/data" 32M
declare -a files=()
for i in 0 1 2; do
	files+=("$RANK/$(chunk_hash "$i")")
	cp "$WORK/data" "${files[i]}"
done
start_client mapper python3 "$WORK/map.py" "${files[@]}"
client_hear mapper mapped
if [[ $EXPECTED_IO_MODE == direct ]]; then
	# There a mapping keeps the file open, and so the lock.
	control flush "${files[0]}"
	expect_errno write:EBUSY write "$MNT/.kvcache/evict" "${files[0]}"
	assert_eq 3 "$(status l1_read_locks)" l1_read_locks
	client_say mapper end
	wait_until 10 "the mappings have gone" status_is l1_read_locks 0
	evict "${files[0]}"
	assert_same "$WORK/data" "${files[0]}"
	stop_fs
	exit 0
fi
evict "${files[0]}" "${files[1]}"
rm "${files[2]}"
assert_eq 0 "$(status l1_objects)" l1_objects
assert_eq 3 "$(status l1_lingering_objects)" l1_lingering_objects
assert_eq $((96 << 20)) "$(status l1_lingering_bytes)" l1_lingering_bytes
assert_eq $((96 << 20)) "$(status l1_used_bytes)" l1_used_bytes

# One object of 32 MB has room, a second one has not.
cp "$WORK/data" "$RANK/$(chunk_hash 3)"
exec 8<"$RANK/$(chunk_hash 3)"
expect_errno ENOSPC create "$RANK/$(chunk_hash 4)"
assert_same "$WORK/data" "$RANK/$(chunk_hash 3)"
client_say mapper end
wait_until 10 "the mappings have gone" status_is l1_lingering_objects 0
assert_eq $((32 << 20)) "$(status l1_used_bytes)" l1_used_bytes
cp "$WORK/data" "$RANK/$(chunk_hash 4)"
assert_same "$WORK/data" "$RANK/$(chunk_hash 4)"
exec 8<&-
assert_same "$WORK/data" "${files[0]}"
stop_fs
