#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A prefix directory is copied by the tools that make a directory, then its entries in any order, then .keys by O_EXCL:
# who made it sees no .keys until it was written, or the directory listed; everybody else does.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK"
declare -a h=()
for i in 0 1 2; do
	h+=("$(chunk_hash "$i")")
	"$CLIENTS/pattern" "$i" 100K >"$RANK/${h[i]}"
done
begin a

# Entries in one order, .keys with another.
p=$RANK/p
step a 0 mkdir "$p"
step a ENOENT stat "$p/.keys"
expect_errno 0 stat "$p/.keys"
for i in 0 1 2; do
	step a 0 open "$p/${h[i]}" wcx
	step a 0 write "$i" 100K
	step a 0 close
done
step a ENOENT stat "$p/.keys"
expect_output "$(printf '%s\n' "${h[@]}")" cat "$p/.keys"
expect_output "$(printf '%s\n' "${h[@]}" .keys)" ls -UA "$p"
step a 0 open "$p/.keys" wcx
step a 0 close
step a 0 stat "$p/.keys"
step a EEXIST open "$p/.keys" wcx
printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" >"$p/.keys"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}")" ls -U "$p"

# Listed by its maker, or written by another: there is one.
step a 0 mkdir "$RANK/q"
step a ENOENT stat "$RANK/q/.keys"
step a 0 list "$RANK/q"
step a 0 stat "$RANK/q/.keys"
step a 0 mkdir "$RANK/r"
echo "${h[1]}" >>"$RANK/r/.keys"
step a 0 stat "$RANK/r/.keys"
step a EEXIST open "$RANK/r/.keys" wcx

# cp, and cp of the copy on a disk.
cp -r "$p" "$RANK/copy" || fail "cp -r of a prefix directory"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" .keys)" ls -UA "$RANK/copy"
cp -r "$p" "$WORK/disk"
# Into another rank: here the objects exist, and cp, which goes by the disk's inode numbers, may write .keys first.
other=$MNT/$MODEL/@01000101
mkdir "$other"
cp -r "$WORK/disk" "$other/from-disk" || fail "cp -r from a disk"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" .keys)" ls -UA "$other/from-disk"
cp -a "$p" "$RANK/links" || fail "cp -a of a prefix directory"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" .keys)" ls -UA "$RANK/links"
tar -C "$p" -cf - . | (mkdir "$RANK/tar" && tar -C "$RANK/tar" -xf -) || fail "tar of a prefix directory"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" .keys)" ls -UA "$RANK/tar"
restart_fs
for copy in "$RANK"/{copy,links,tar} "$other/from-disk"; do
	expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" .keys)" ls -UA "$copy"
done
stop_fs
