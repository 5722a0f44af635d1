#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T5, NIXL #1696, PR 1697, 2224: an asynchronous write of 16 MiB finds room for less, and its client does not look at
# how much was written, closes the temporary file and renames it. Both say ENOSPC, the block is absent, and the memory is
# free again once the client has removed the temporary file.
#
# parallel

. "$(dirname "$0")/../lib.sh"

require_cmd python3
cat >"$WORK/store.py" <<'P'
import errno, mmap, os, sys
from aio import PWRITE, process_aio

temporary, name, flags = sys.argv[1:]
fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, flags, 0), 0o777)
data = mmap.mmap(-1, 16 << 20)  # aligned
try:
    process_aio().transfer(PWRITE, fd, data, len(data))
except OSError as e:
    print("the client does not look at:", e)
else:
    sys.exit("16 MiB were written: memory was never full")
errors = []
for call, *arguments in ((os.close, fd), (os.rename, temporary, name)):
    try:
        call(*arguments)
    except OSError as e:
        errors.append(f"{call.__name__}:{errno.errorcode[e.errno]}")
print(*errors)
assert errors == ["close:ENOSPC", "rename:ENOSPC"]
os.unlink(temporary)
P

L1_SIZE=32M
start_bare --l1-overrun 1M --max-object-size 32M --eviction-trigger-watermark 1
mkdir -p "$MNT/nixl" "$RANK" "$MNT/held"
mkchunk "$WORK/data" 26M
cp "$WORK/data" "$MNT/held/data"
hold "$MNT/held/data"
used=$(status l1_used_bytes)
for flags in O_RDWR O_DIRECT; do
	for name in "$MNT/nixl/m_01000100_0_$(chunk_hash 0).bin" "$RANK/$(chunk_hash 0)"; do
		temporary=$name.tmp.0123456789abcdef0123456789abcdef
		PYTHONPATH=$SRC/tests/clients/engines python3 -B "$WORK/store.py" "$temporary" "$name" "$flags" ||
			fail "$flags: close and rename must say ENOSPC"
		expect_errno ENOENT stat "$name"
		expect_errno ENOENT open-read "$name"
		wait_until 10 "the memory is free again" status_is l1_used_bytes "$used"
	done
done
assert_same "$WORK/data" "$MNT/held/data"
let_go
rm "$MNT/held/data"
stop_fs
