#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Of two files of one hash the one that was closed first is the object, also where its RELEASE comes after that of the
# other one: a mapping delays it.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir -p "$MNT/m/@01000100/p"
python3 - "$MNT/m/@01000100" <<-'PYTHON' || fail "the one that was closed later is the object"
	import ctypes, os, sys

	# Python's own would duplicate the descriptor.
	libc = ctypes.CDLL(None, use_errno=True)
	libc.mmap.restype = ctypes.c_void_p
	libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
	libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
	PROT_READ, MAP_SHARED, MAP_FAILED = 1, 1, ctypes.c_void_p(-1).value

	later = 0
	for i in range(40):
	    name = f"{i:016x}"
	    # In the rank directory, and as an entry of a prefix.
	    first = os.open(f"{sys.argv[1]}/{'p/' if i % 2 else ''}{name}", os.O_RDWR | os.O_CREAT)
	    os.write(first, b"f" * 5000)
	    kept = libc.mmap(None, 4096, PROT_READ, MAP_SHARED, first, 0)
	    assert kept != MAP_FAILED
	    second = os.open(f"{sys.argv[1]}/{name}", os.O_WRONLY | os.O_CREAT)
	    os.write(second, b"second")
	    os.close(first)
	    os.close(second)
	    libc.munmap(kept, 4096)
	    with open(f"{sys.argv[1]}/{name}", "rb") as file:
	        later += file.read() != b"f" * 5000
	sys.exit(later > 0 and f"{later} of 40")
PYTHON
[[ $(stat_counter mount_writes_published) == 40 && $(stat_counter mount_writes_duplicate) == 40 ]] || fail "counters"
stop_fs
