#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# st_nlink of an object is 1 and the references to it: no places that writers only hold, none of directories that are
# gone, and those of directories that the kernel has forgotten.
#
# parallel

. "$(dirname "$0")/lib.sh"

a=$(chunk_hash a) b=$(chunk_hash b)

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

# One that has replaced another, and one that the kernel has forgotten.
mkdir "$RANK/p" "$RANK/q"
echo "$a" >"$RANK/p/.keys"
printf '%s\n' "$b" "$a" >"$RANK/q/.keys"
expect_links 3 "of two directories"
mv -T "$RANK/p" "$RANK/q"
expect_links 2 "after a rename onto another directory"
forget_directories
sleep 1.5
forget_directories
expect_links 2 "once the kernel has forgotten it"
rmdir "$RANK/q" && fail "rmdir of what lists an entry"
rm "$RANK/q/$a"
expect_links 1 "after rm in it"
rmdir "$RANK/q"

# After a restart a chain is counted from when it was loaded.
mkdir "$RANK/r"
echo "$a" >"$RANK/r/.keys"
restart_fs
expect_output "$a" ls -U "$RANK/r"
expect_links 2 "after a restart"
forget_directories
sleep 1.5
forget_directories
expect_links 2 "after a restart, once the kernel has forgotten the directory"

# Nor does a .keys come back that was removed.
rm "$RANK/r/.keys"
mkdir "$RANK/s"
mv -T "$RANK/r" "$RANK/s"
forget_directories
sleep 1.5
forget_directories
expect_output "" ls -UA "$RANK/s"
# Nor the chain of a directory that was removed.
echo "$a" >"$RANK/s/.keys"
rm "$RANK/s/$a"
rmdir "$RANK/s"
mkdir "$RANK/s"
expect_output .keys ls -UA "$RANK/s"
expect_links 1 "in the end"
stop_fs
