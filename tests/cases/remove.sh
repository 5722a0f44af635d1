#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rm in the rank directory deletes an object from L1 and L2 for good; whoever has it open reads on.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir -p "$RANK"
declare -a h=()
for i in 0 1 2 3; do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 4M "$i"
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done
control flush /
assert_eq 4 "$(find "$L2" -maxdepth 1 -name '*.data' | wc -l)" "objects in L2"

in_l2() {
	[[ -e "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$1.data" ]]
}

# 0: an open reader. 1: only in L2. 2: not stored yet when it is removed.
start_client holder "$CLIENTS/hold-open" "$RANK/${h[0]}" "$WORK/data.0"
client_hear holder open
evict "$RANK/${h[1]}"
rm "$RANK/${h[0]}" "$RANK/${h[1]}"
fresh=$(chunk_hash fresh)
cp "$WORK/data.2" "$RANK/$fresh"
rm "$RANK/$fresh"
for hash in "${h[0]}" "${h[1]}" "$fresh"; do
	expect_errno ENOENT stat "$RANK/$hash"
	expect_errno ENOENT open-read "$RANK/$hash"
done
assert_eq "$(printf '%s\n' "${h[2]}" "${h[3]}" | sort)" "$(ls "$RANK")" "what is left"
client_say holder go
client_hear holder equal
wait "$CLIENT_PID"
for hash in "${h[0]}" "${h[1]}" "$fresh"; do
	wait_until 10 "$hash leaves L2" eval "! in_l2 $hash"
done

# Written again it is there again.
cp "$WORK/data.1" "$RANK/${h[1]}"
sync "$RANK/${h[1]}"
assert_same "$WORK/data.1" "$RANK/${h[1]}"
in_l2 "${h[1]}" || fail "written again and not in L2"

# Two writers of one name, and rm when both have closed it: whichever commits last does not bring it back. (A mapping
# makes a commit late.)
mkdir "$MNT/plain" "$RANK/prefix"
python3 - "$MNT" "$RANK" <<'P' || fail "what was closed before the rm came back"
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
mount, rank = sys.argv[1:]

def create(path):
    fds = []  # a thread of its own: a plain file is another one to each
    maker = threading.Thread(target=lambda: fds.append(os.open(path, os.O_CREAT | os.O_RDWR)))
    maker.start()
    maker.join()
    return fds[0]

for directory in rank, f"{rank}/prefix", f"{mount}/plain":
    for is_mapped in True, False:
        for i in range(10 if is_mapped else 50):
            path = f"{directory}/{i:08x}"
            first, second = create(path), create(path)
            os.write(first, b"first")
            os.write(second, b"second")
            os.close(first)
            assert os.path.exists(path), path
            if is_mapped:
                address = libc.mmap(None, 6, 3, 1, second, 0)
            os.close(second)
            os.unlink(path)
            if is_mapped:
                libc.munmap(address, 6)
            time.sleep(0.02)
            assert not os.path.exists(path), f"{path}, mapped: {is_mapped}"
            if directory.endswith("prefix"):
                os.unlink(f"{rank}/{i:08x}")

# Who is still open is a writer of a new object.
path = f"{rank}/00000001"
first, second = create(path), create(path)
os.write(first, b"first")
os.write(second, b"second")
os.close(first)
os.unlink(path)
os.close(second)
assert open(path).read() == "second"
os.unlink(path)
P
rmdir "$RANK/prefix"

# Removed just before the unmount: does not come back.
rm "$RANK/${h[2]}"
restart_fs
expect_errno ENOENT stat "$RANK/${h[0]}"
expect_errno ENOENT stat "$RANK/${h[2]}"
assert_eq "$(printf '%s\n' "${h[1]}" "${h[3]}" | sort)" "$(ls "$RANK")" "what is left after a restart"
assert_same "$WORK/data.3" "$RANK/${h[3]}"
stop_fs
