#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mmap and read give the same bytes, and payload does not pass through the daemon: while a client writes and reads
# 2 GB its rchar + wchar grow by less than 1 % of it.
#
# timeout: 180
# not-in: user: it is about passthrough

. "$(dirname "$0")/lib.sh"

daemon_chars() {
	awk '$1 == "rchar:" || $1 == "wchar:" { n += $2 } END { printf "%.0f\n", n }' "/proc/$DAEMON_PID/io"
}

L1_SIZE=1G
start_bare --io-mode=passthrough
assert_eq passthrough "$(status io_mode)" io_mode
mkdir -p "$RANK"

# Sizes around pages and huge pages.
declare -a files=()
for bytes in 1 4095 4096 4097 65536 1234567 2097152 2097153 8M 33554431; do
	file=$RANK/$(chunk_hash "$bytes")
	mkchunk "$file" "$bytes"
	files+=("$file")
done
"$CLIENTS/mmap-equals-read" "${files[@]}"
rm "${files[@]}"

before=$(daemon_chars)
moved=$("$CLIENTS/copy-volume" "$RANK" 4 16 32M)
grown=$(($(daemon_chars) - before))
echo "moved $moved bytes each way; the daemon's rchar + wchar grew by $grown"
assert_eq $((2 << 30)) "$moved" "bytes moved"
assert_le "$grown" $((moved / 100)) "growth of rchar + wchar"
stop_fs
