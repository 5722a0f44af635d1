#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# st_nlink of an object is 1 and the references to it: no places that writers only hold.
#
# parallel

. "$(dirname "$0")/lib.sh"

a=$(chunk_hash a)

# expect_links N WHEN
expect_links() {
	assert_eq "$1" "$(stat --cached=never -c %h "$RANK/$a")" "links $2"
}

start_fs
mkdir -p "$RANK/p"
echo data >"$RANK/$a"
exec 9>"$RANK/p/$a"
echo data >&9
expect_links 1 "while a writer holds a place"
exec 9>&-
expect_output "$a" ls -U "$RANK/p"
expect_links 2 "after its commit"
exec 9>"$RANK/p/$a"
rm "$RANK/p/$a"
expect_links 1 "after rm in the prefix"
exec 9>&-

stop_fs
