#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A chain has at most 64 MiB of lines, however it grows: what would make it longer is refused, and nothing of it is
# lost over a restart.
#
# soak
# parallel

. "$(dirname "$0")/lib.sh"

prefix=$RANK/long
limit=$((64 << 20))

start_fs
mkdir -p "$RANK"
mkdir "$prefix"
python3 - "$prefix/.keys" <<'P' || fail "appending to .keys"
import errno, os, sys
keys = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
n, step = 0, 1000
while step:
    lines = b"".join(b"%0128x\n" % i for i in range(n, n + step))
    try:
        assert os.write(keys, lines) == len(lines)
        n += step
    except OSError as e:
        assert e.errno == errno.EFBIG, e
        step = 0 if step == 1 else step // 10
os.close(keys)
P
size=$(stat -c %s "$prefix/.keys")
assert_le "$((limit - 128))" "$size" "size of .keys"
assert_le "$size" "$limit" "size of .keys"

# Nor is there room for an entry of another kind; in the rank directory there is.
chunk=$(chunk_hash 1)
echo data >"$RANK/$chunk"
echo data >"$prefix/.tmp.1"
expect_errno ENOSPC link "$RANK/$chunk" "$prefix/$chunk"
expect_errno ENOSPC rename "$prefix/.tmp.1" "$prefix/$(chunk_hash 2)"
expect_errno ENOSPC create "$prefix/$(chunk_hash 3)"
rm "$prefix/.tmp.1"

restart_fs
cat "$prefix/.keys" >/dev/null
assert_eq "$size" "$(stat -c %s "$prefix/.keys")" "size of .keys after a restart"
rm "$prefix/.keys"
ln "$RANK/$chunk" "$prefix/" || fail "ln into a chain that is short again"
stop_fs
