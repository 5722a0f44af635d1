#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A file that is replaced by the close of a writer, whom the kernel has not seen open it, follows the rename of its
# directory like any other.
#
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$MNT/dir"
begin writer
echo first >"$MNT/other"
cat "$MNT/other"
step writer 0 open "$MNT/dir/name" wce
step writer 0 write 1 64K
sleep 1.1 # what was just published is not kept by the kernel
cat "$MNT/other" >/dev/null
mv "$MNT/other" "$MNT/dir/name"
step writer 0 close
expect_data "$MNT/dir/name" 1 64K
mv "$MNT/dir" "$MNT/moved"
expect_data "$MNT/moved/name" 1 64K
assert_eq 65536 "$(stat -c %s "$MNT/moved/name")" "size"
stop_fs
