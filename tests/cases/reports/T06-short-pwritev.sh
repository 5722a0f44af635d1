#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T6, Mooncake PR 3766: a pwritev of two buffers under the final name is short, because of RLIMIT_FSIZE or because
# memory is full, and the file is closed and not removed. The name is absent, and the memory is free again.
#
# parallel

. "$(dirname "$0")/../lib.sh"

require_cmd python3
cat >"$WORK/store.py" <<'P'
import errno, os, resource, signal, sys

why, name = sys.argv[1:]
if why == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, resource.RLIM_INFINITY))
fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
parts = [bytes(4 << 20), bytes(12 << 20)]
try:
    written = os.pwritev(fd, parts, 0)
except OSError as e:
    written = 0
    print(e)
print(f"{written} bytes written")
assert written < 16 << 20, "not short"
assert why == "full" or written == 5 << 20, written
try:
    os.close(fd)
except OSError as e:
    print("close:", e)
P

L1_SIZE=32M
start_bare --l1-overrun 1M --max-object-size 32M --eviction-trigger-watermark 1
dir=$MNT/mooncake/a/b
mkdir -p "$dir" "$RANK" "$MNT/held"
mkchunk "$WORK/data" 26M
for why in limit full; do
	if [[ $why == full ]]; then
		cp "$WORK/data" "$MNT/held/data"
		hold "$MNT/held/data"
	fi
	used=$(status l1_used_bytes)
	for name in "$dir/key-$why" "$RANK/$(chunk_hash "$why")"; do
		python3 "$WORK/store.py" "$why" "$name"
		expect_errno ENOENT stat "$name"
		expect_errno ENOENT open-read "$name"
		expect_output "" ls -A "${name%/*}"
		wait_until 10 "the memory is free again" status_is l1_used_bytes "$used"
	done
done
let_go
rm "$MNT/held/data"
stop_fs
