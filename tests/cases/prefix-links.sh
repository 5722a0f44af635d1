#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# st_nlink of an object is 1 and the references to it: no places that writers only hold, none of directories that are
# gone. (Not beside others: it drops the kernel's caches.)

. "$(dirname "$0")/lib.sh"

a=$(chunk_hash a)

# expect_links N WHEN
expect_links() {
	assert_eq "$1" "$(stat --cached=never -c %h "$RANK/$a")" "links $2"
}

# What the kernel keeps of a directory that it has seen lasts a second; without privileges we cannot make it go.
forget_directories() {
	control flush /
	if [[ $EUID -eq 0 && -w /proc/sys/vm/drop_caches ]]; then
		echo 2 >/proc/sys/vm/drop_caches
	fi
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

# A directory that is removed while somebody has its .keys open.
for mode in replace append; do
	[[ -d $RANK/p ]] || mkdir "$RANK/p"
	if [[ $mode == replace ]]; then
		exec 9>"$RANK/p/.keys"
	else
		exec 9>>"$RANK/p/.keys"
	fi
	rmdir "$RANK/p"
	echo "$a" >&9
	exec 9>&-
	expect_links 1 "after the close of a .keys that is gone ($mode)"
done
forget_directories
expect_links 1 "some time after"
# And while somebody writes an entry.
mkdir "$RANK/p"
exec 9>"$RANK/p/$a"
echo data >&9
rmdir "$RANK/p"
exec 9>&-
sync "$RANK/$a"
expect_links 1 "after the commit into a directory that is gone"

stop_fs
