#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mmap, with passthrough and without: mappings and read() give the same bytes, a file can be written through a shared
# mapping, committed bytes cannot be changed through one, and a mapping outlives its descriptor, its name and an
# eviction.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
declare -a sizes=(1 4095 4097 65536 1234567 2097153 8M)

# Writes each size, as an object and as a plain file; sets files.
write_files() {
	local i dir
	files=()
	for i in "${!sizes[@]}"; do
		mkchunk "$WORK/data.$i" "${sizes[i]}" "$i"
		for dir in "$RANK" "$MNT/plain"; do
			cp "$WORK/data.$i" "$dir/$(chunk_hash "$i")"
			assert_same "$WORK/data.$i" "$dir/$(chunk_hash "$i")"
			files+=("$dir/$(chunk_hash "$i")")
		done
	done
}

# A writer that only uses a shared mapping.
write_by_mapping() {
	local mode=$1 name
	for name in "$RANK/$(chunk_hash mapped)" "$MNT/plain/mapped" "$RANK/.mapped.tmp" "$MNT/plain/mapped.tmp"; do
		step "$mode.a" 0 open "$name" rwct
		step "$mode.a" 0 map-write 1 3000000
		step "$mode.a" 0 check 1 3000000
		step "$mode.a" 0 close
		expect_data "$name" 1 3000000
		step "$mode.b" 0 open "$name" r
		step "$mode.b" 0 map-check 1 3000000
		step "$mode.b" 0 close
	done
	mv -T "$RANK/.mapped.tmp" "$RANK/$(chunk_hash moved)"
	expect_data "$RANK/$(chunk_hash moved)" 1 3000000
	rm "$MNT/plain/mapped.tmp"
}

# What a reader can do with a mapping of committed bytes.
map_committed() {
	python3 - "$1" <<'P'
import ctypes, errno, mmap, os, sys

path = sys.argv[1]
with open(path, "rb") as f:
    data = f.read()
fd = os.open(path, os.O_RDONLY)
try:
    mmap.mmap(fd, len(data), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    raise SystemExit("a writable shared mapping of a descriptor for reading")
except PermissionError:
    pass
private = mmap.mmap(fd, len(data), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[0:4] = b"mine"
shared = mmap.mmap(fd, len(data), mmap.MAP_SHARED, mmap.PROT_READ)
libc = ctypes.CDLL(None, use_errno=True)
address = libc.mmap
address.restype = ctypes.c_void_p
address.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
raw = address(None, len(data), mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
assert raw not in (None, ctypes.c_void_p(-1).value)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if libc.mprotect(raw, len(data), mmap.PROT_READ | mmap.PROT_WRITE) == 0:
    raise SystemExit("mprotect made a mapping of committed bytes writable")
assert ctypes.get_errno() == errno.EACCES
assert shared[:] == data, "a private mapping changed the file"
with open(path, "rb") as f:
    assert f.read() == data, "a private mapping changed the file"
print("equal")
P
}

# A mapping keeps its bytes, whatever becomes of descriptor and name.
keep_mapping() {
	local path=$1
	python3 - "$path" "$MNT/.kvcache" <<'P'
import mmap, os, sys

path, control = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
data = os.read(fd, 1 << 23)
m = mmap.mmap(fd, len(data), mmap.MAP_SHARED, mmap.PROT_READ)
second = os.dup(fd)
os.close(fd)
os.unlink(path)
with open(control + "/flush", "w") as f:
    f.write("/\n")
assert m[:] == data, "after unlink"
# Other files come, and take what memory there is.
for i in range(12):
    with open(os.path.dirname(path) + "/%064x" % (0xabc0000 + i), "wb") as f:
        f.write(os.urandom(1 << 20) * 8)
assert m[:] == data, "after others took the memory"
m.close()
os.close(second)
P
	expect_errno ENOENT stat "$path"
}

check_in_mode() {
	local mode=$1 i
	L1_SIZE=128M
	start_fs "--io-mode=$mode"
	assert_eq "$mode" "$(status io_mode)" io_mode
	mkdir -p "$RANK" "$MNT/plain"
	begin "$mode.a" "$mode.b"
	write_files
	"$CLIENTS/mmap-equals-read" "${files[@]}"
	write_by_mapping "$mode"
	expect_output equal map_committed "$RANK/$(chunk_hash 4)"
	expect_output equal map_committed "$MNT/plain/$(chunk_hash 4)"
	restart_fs "--io-mode=$mode"
	for i in "${!files[@]}"; do
		assert_same "$WORK/data.$((i / 2))" "${files[i]}"
	done
	"$CLIENTS/mmap-equals-read" "${files[@]}"
	keep_mapping "$RANK/$(chunk_hash 6)"
	keep_mapping "$MNT/plain/$(chunk_hash 6)"
	stop_fs
	rm -rf "${L2:?}"/* "${L2:?}"/.[!.]*
}

if [[ $EXPECTED_IO_MODE == passthrough ]]; then
	check_in_mode passthrough
fi
check_in_mode direct
