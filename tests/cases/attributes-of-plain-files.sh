#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Mode, times, extended attributes and the pin of a plain file go along when it is renamed, and stay when it is written
# again; also over a restart.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"
require_cmd getfattr
require_cmd setfattr

start_fs
mkdir -p "$MNT/plain/d"
mkchunk "$MNT/plain/a" 64K 1
setfattr -n user.x -v 1 "$MNT/plain/a"
chmod 600 "$MNT/plain/a"
touch -d '2001-02-03 04:05:06Z' "$MNT/plain/a"
setfattr -n user.kvcache.pinned -v 1 "$MNT/plain/a"
mv "$MNT/plain/a" "$MNT/plain/d/b"
b=$MNT/plain/d/b
expect_output "600 981173106 1" stat -c '%a %Y %h' "$b"
expect_output 1 getfattr --absolute-names --only-values -n user.x "$b"
expect_output 1 getfattr --absolute-names --only-values -n user.kvcache.pinned "$b"
assert_eq 1 "$(status l1_pinned_objects)" pinned
control flush /
restart_fs
expect_output "600 981173106" stat -c '%a %Y' "$b"
expect_output 1 getfattr --absolute-names --only-values -n user.x "$b"

# Written again it is the same file with other bytes.
echo more >>"$b"
expect_output "600 65541" stat -c '%a %s' "$b"
expect_output 1 getfattr --absolute-names --only-values -n user.x "$b"

# Changes just before and after a rename: the last one counts.
chmod 640 "$b"
mv "$b" "$MNT/plain/c"
chmod 444 "$MNT/plain/c"
restart_fs
expect_output "444 65541" stat -c '%a %s' "$MNT/plain/c"
expect_output 1 getfattr --absolute-names --only-values -n user.x "$MNT/plain/c"
stop_fs
