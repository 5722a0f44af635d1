#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T34, a completion of 0 bytes is an error for NIXL (PR 2224): one asynchronous read of exactly st_size is complete in
# one completion; one of st_size + 1, or of a page more, has st_size; of many beside each other only the one at the end
# is short. With and without O_DIRECT, of what is in L1 and what is loaded.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

declare -a sizes=(1 4095 4096 70272 1124352 4194305)

# read_ends: by Linux AIO, the engine-shaped clients' own.
read_ends() {
	PYTHONPATH=$SRC/tests/clients/engines python3 -B - "$@" <<'P' || fail "the reads at the end"
import os, sys
from aio import PREAD, process_aio
from engine_client import address_of, aligned

for path in sys.argv[1:]:
    size = os.stat(path).st_size
    buffer = aligned(size + 4096)
    for flags in (0, os.O_DIRECT):
        fd = os.open(path, os.O_RDONLY | flags)
        page = max(4096, size // 16 // 4096 * 4096)
        pages = [(start, page) for start in range(0, size, page)]
        for requests in [(0, size)], [(0, size + 1)], [(0, size + 4096)], pages:
            got = process_aio().results(PREAD, fd, address_of(buffer), requests)
            want = [min(n, size - start) for start, n in requests]
            assert got == want and 0 not in got, (path, flags, requests, got)
        with open(path, "rb") as file:
            assert file.read() == buffer[:size], (path, flags)
        os.close(fd)
P
}

start_fs
mkdir -p "$RANK" "$MNT/plain"
declare -a paths=()
for bytes in "${sizes[@]}"; do
	paths+=("$RANK/$(chunk_hash "$bytes")" "$MNT/plain/$bytes")
	"$CLIENTS/pattern" "$bytes" "$bytes" >"$WORK/data"
	cp "$WORK/data" "${paths[-2]}"
	cp "$WORK/data" "${paths[-1]}"
done
read_ends "${paths[@]}"
evict "$RANK" "$MNT/plain"
read_ends "${paths[@]}"
assert_eq "${#paths[@]}" "$(stat_counter loads_completed)" "objects loaded from L2"
expect_data "${paths[-1]}" "${sizes[-1]}" "${sizes[-1]}"
stop_fs
