#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T8, llm-d #721: an engine that probes for O_DIRECT is killed before it removes its probe file. That is never stored,
# is no object, and is gone with the mount.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
dir=$MNT/base
mkdir -p "$dir"
files=$(stat -f -c %c "$MNT")
begin open closed
step open 0 open "$dir/.o_direct_probe_7.tmp" wctd
step closed 0 open "$dir/.o_direct_probe_8.tmp" wctd
for probe in open closed; do
	step "$probe" 0 write 1 4096
done
step closed 0 close
for probe in open closed; do
	kill_client "$probe"
done
control flush /
expect_errno 0 stat "$dir/.o_direct_probe_8.tmp"
assert_eq 0 "$(stat_counter stores)" stores
assert_eq 0 "$(status l1_dirty_objects)" l1_dirty_objects
assert_eq "$files" "$(stat -f -c %c "$MNT")" "files of statfs"
assert_eq "" "$(l2_files)" "files in L2"
restart_fs
expect_output "" ls -A "$dir"
assert_eq "" "$(l2_files)" "files in L2"
assert_eq 0 "$(status l1_objects)" l1_objects
stop_fs
