#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Without passthrough (--io-mode=direct) writes, reads and mappings give the same bytes.
#
# parallel

. "$(dirname "$0")/lib.sh"

start_fs --io-mode=direct
assert_eq direct "$(status io_mode)" io_mode
mkdir -p "$RANK"
declare -a files=()
i=0
for bytes in 1 4095 4097 65536 1234567 2097153 8M; do
	file=$RANK/$(chunk_hash "$bytes")
	mkchunk "$WORK/data.$i" "$bytes" "$i"
	cp "$WORK/data.$i" "$file"
	assert_same "$WORK/data.$i" "$file"
	files+=("$file")
	i=$((i + 1))
done
"$CLIENTS/mmap-equals-read" "${files[@]}"
restart_fs --io-mode=direct
for i in "${!files[@]}"; do
	assert_same "$WORK/data.$i" "${files[i]}"
done
"$CLIENTS/mmap-equals-read" "${files[@]}"
stop_fs
