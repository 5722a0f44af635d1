#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T31, O_DIRECT ignored since the size is no multiple of f_bsize (LMCache #1522): f_bsize and f_frsize are 4096 for
# every path of the mount, while st_blksize is 4 MiB, so that O_DIRECT is taken for what is a multiple of 4096.
#
# quick
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/plain/d"
"$CLIENTS/pattern" 1 4K >"$RANK/$(chunk_hash 1)"
"$CLIENTS/pattern" 2 12K >"$MNT/plain/d/file"
for path in "$MNT" "$RANK" "$RANK/$(chunk_hash 1)" "$MNT/plain/d" "$MNT/plain/d/file" "$MNT/.kvcache/status"; do
	expect_output "4096 4096" stat -f -c '%s %S' "$path"
done
expect_output 4194304 stat -c %o "$RANK/$(chunk_hash 1)"
# What LMCache does with it: 12 KiB are a multiple.
"$CLIENTS/direct-io" read "$MNT/plain/d/file" 2 12K >"$WORK/moved"
stop_fs
