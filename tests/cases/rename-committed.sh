#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rename of what is committed: plain files and directories, and prefix directories, get their new names at once and
# L2 follows; a hash object, a rank or a model has its name for good: EXDEV, and mv copies.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# names_below DIRECTORY
names_below() {
	(cd "$1" && find . -mindepth 1 | sort)
}

start_fs
plain=$MNT/plain
mkdir -p "$RANK" "$plain/a/b"
"$CLIENTS/pattern" 1 1M >"$plain/file"
"$CLIENTS/pattern" 2 1M >"$plain/a/one"
"$CLIENTS/pattern" 3 2M >"$plain/a/b/two"
control flush /
begin r
begin w

# A file, by name and into another directory; who has it open reads on.
step r 0 open "$plain/file" r
mv -T "$plain/file" "$plain/renamed"
expect_errno ENOENT stat "$plain/file"
expect_data "$plain/renamed" 1 1M
mv -T "$plain/renamed" "$plain/a/file"
expect_errno ENOENT stat "$plain/renamed"
expect_data "$plain/a/file" 1 1M
step r 0 check 1 1M
step r 0 close

# Over another one: the new bytes, one name less; a reader of the old one keeps it.
"$CLIENTS/pattern" 4 3M >"$plain/target"
step r 0 open "$plain/target" r
expect_errno EEXIST rename-noreplace "$plain/a/file" "$plain/target"
expect_errno EINVAL rename-exchange "$plain/a/file" "$plain/target"
# A name that somebody is writing is taken, as for O_EXCL, if the rename must not replace.
step w 0 open "$plain/lock" wcx
step w 0 write 9 4K
: >"$plain/lock.tmp"
for from in "$plain/a/file" "$plain/lock.tmp"; do
	expect_errno EEXIST rename-noreplace "$from" "$plain/lock"
	expect_errno 0 stat "$from"
done
rm "$plain/lock.tmp"
step w 0 close
expect_data "$plain/lock" 9 4K
rm "$plain/lock"
expect_errno 0 rename "$plain/a/file" "$plain/target"
expect_data "$plain/target" 1 1M
expect_errno ENOENT stat "$plain/a/file"
step r 0 check 4 3M
step r 0 close

# To itself, of nothing, over a directory, into nothing.
expect_errno 0 rename "$plain/target" "$plain/target"
expect_errno ENOENT rename "$plain/absent" "$plain/target"
expect_errno EISDIR rename "$plain/target" "$plain/a/b"
expect_errno ENOTDIR rename "$plain/a" "$plain/target"
expect_errno ENOENT rename "$plain/target" "$plain/absent/target"
expect_errno EINVAL rename "$plain/a" "$plain/a/b/c"
expect_errno "ENOTEMPTY|EXDEV" rename "$plain/a" "$MNT/meta-llama"
expect_data "$plain/target" 1 1M

# What is only in L2.
evict "$plain/target"
mv -T "$plain/target" "$plain/moved"
expect_errno ENOENT stat "$plain/target"
expect_data "$plain/moved" 1 1M

# A directory with all below it, resident or not.
evict "$plain/a/one"
mv -T "$plain/a" "$plain/z"
expect_errno ENOENT stat "$plain/a"
expect_errno ENOENT stat "$plain/a/one"
assert_eq $'./b\n./b/two\n./one' "$(names_below "$plain/z")" "names below a renamed directory"
expect_data "$plain/z/one" 2 1M
expect_data "$plain/z/b/two" 3 2M
mkdir "$plain/empty"
expect_errno EEXIST rename-noreplace "$plain/z/b" "$plain/empty"
expect_data "$plain/z/b/two" 3 2M
expect_errno 0 rename "$plain/z/b" "$plain/empty"
expect_data "$plain/empty/two" 3 2M
mkdir "$plain/full"
: >"$plain/full/x"
expect_errno ENOTEMPTY rename "$plain/empty" "$plain/full"
expect_data "$plain/empty/two" 3 2M
# One that is replaced while somebody is in it; the name can be had again, and again.
mkdir "$plain/in"
exec {in}<"$plain/in"
expect_errno 0 rename "$plain/empty" "$plain/in"
expect_output "" ls -A "/proc/$$/fd/$in/"
exec {in}<&-
expect_data "$plain/in/two" 3 2M
mkdir "$plain/empty"
expect_errno 0 rename "$plain/in" "$plain/empty"
expect_data "$plain/empty/two" 3 2M
expect_errno ENOENT stat "$plain/in"

# The old name is free for something else at once.
"$CLIENTS/pattern" 5 1M >"$plain/target"
mv -T "$plain/moved" "$plain/target.2"
"$CLIENTS/pattern" 6 1M >"$plain/moved"
expect_data "$plain/target" 5 1M
expect_data "$plain/target.2" 1 1M
expect_data "$plain/moved" 6 1M

# A prefix directory: its name changes, its chain and its objects do not.
declare -a chain=()
mkdir "$RANK/p"
for i in 0 1 2; do
	chain+=("$(chunk_hash "$i")")
	"$CLIENTS/pattern" "1$i" 1M >"$RANK/p/${chain[i]}"
done
mv -T "$RANK/p" "$RANK/q"
expect_errno ENOENT stat "$RANK/p"
expect_output "$(printf '%s\n' "${chain[@]}")" ls -U "$RANK/q"
expect_output "$(printf '%s\n' "${chain[@]}")" cat "$RANK/q/.keys"
expect_data "$RANK/q/${chain[1]}" 11 1M
expect_errno EINVAL rename "$RANK/q" "$RANK/$(chunk_hash directory)"

# Names for good.
expect_errno EXDEV rename "$RANK/${chain[0]}" "$RANK/$(chunk_hash new)"
expect_errno EXDEV rename "$RANK/${chain[0]}" "$plain/object"
mkdir "$MNT/$MODEL/@02000200"
expect_errno EXDEV rename "$RANK/${chain[0]}" "$MNT/$MODEL/@02000200/${chain[0]}"
expect_errno EXDEV rename "$RANK/q" "$MNT/$MODEL/@02000200/q"
expect_errno EXDEV rename "$RANK" "$MNT/$MODEL/@03000300"
expect_errno EXDEV rename "$MNT/meta-llama" "$MNT/other"
expect_errno "EACCES|EXDEV|EPERM" rename "$MNT/.kvcache" "$plain/control"
# mv then copies.
mv -T "$RANK/${chain[2]}" "$MNT/$MODEL/@02000200/${chain[2]}"
expect_data "$MNT/$MODEL/@02000200/${chain[2]}" 12 1M
expect_errno ENOENT stat "$RANK/${chain[2]}"

# L2 follows, and a restart sees the same.
names=$(names_below "$plain")
restart_fs
assert_eq "$names" "$(names_below "$plain")" "names after a restart"
expect_data "$plain/target.2" 1 1M
expect_data "$plain/moved" 6 1M
expect_data "$plain/z/one" 2 1M
expect_data "$plain/empty/two" 3 2M
expect_errno ENOENT stat "$plain/a"
expect_errno ENOENT stat "$RANK/p"
expect_output "$(printf '%s\n' "${chain[@]:0:2}")" ls -U "$RANK/q"
expect_data "$RANK/q/${chain[0]}" 10 1M
assert_eq "$(cd "$plain" && find . -type f | sort)" "$(cd "$L2/plain/plain" && find . -type f | sort)" "plain files in L2"
stop_fs
