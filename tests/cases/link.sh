#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ln OBJECT PREFIX/ appends the object to the chain; other hard links there are none.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/$MODEL/@02000200"
mkdir "$RANK/p" "$RANK/q" "$MNT/$MODEL/@02000200/p"
declare -a h=()
for i in 0 1 2; do
	h+=("$(chunk_hash "$i")")
	"$CLIENTS/pattern" "$i" 1M >"$RANK/${h[i]}"
done

# In the order of the links.
for i in 2 0 1; do
	ln "$RANK/${h[i]}" "$RANK/p/" || fail "ln of object $i"
	assert_eq 2 "$(stat -c %h "$RANK/${h[i]}")" "links of object $i"
done
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}")" ls -U "$RANK/p"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}")" cat "$RANK/p/.keys"
assert_eq "$(stat -c %i "$RANK/${h[0]}")" "$(stat -c %i "$RANK/p/${h[0]}")" "inode numbers of the two names"
expect_errno EEXIST link "$RANK/${h[0]}" "$RANK/p/${h[0]}"
# From one prefix directory to another.
expect_errno 0 link "$RANK/p/${h[1]}" "$RANK/q/${h[1]}"
assert_eq 3 "$(stat -c %h "$RANK/${h[1]}")" "links of an object in two prefix directories"

# rm of the link leaves the object, rm of the object takes it from the chain's listing.
rm "$RANK/p/${h[0]}"
expect_data "$RANK/${h[0]}" 0 1M
rm "$RANK/${h[1]}"
expect_output "${h[2]}" ls -U "$RANK/p"
expect_output "" ls -U "$RANK/q"

# Others.
expect_errno EINVAL link "$RANK/${h[0]}" "$RANK/p/$(chunk_hash other)"
expect_errno EINVAL link "$RANK/${h[0]}" "$RANK/p/name"
expect_errno EXDEV link "$RANK/${h[0]}" "$MNT/$MODEL/@02000200/p/${h[0]}"
expect_errno EPERM link "$RANK/${h[0]}" "$MNT/$MODEL/@02000200/${h[0]}"
expect_errno EPERM link "$RANK/${h[0]}" "$MNT/object"
expect_errno EPERM link "$RANK/p/.keys" "$MNT/keys"
expect_errno EEXIST link "$RANK/${h[0]}" "$RANK/${h[2]}"
expect_errno ENOENT link "$RANK/$(chunk_hash absent)" "$RANK/p/$(chunk_hash absent)"

mkdir "$RANK/r"
ln "$RANK/${h[0]}" "$RANK/r/"
restart_fs
expect_output "${h[0]}" ls -U "$RANK/r"
expect_data "$RANK/r/${h[0]}" 0 1M
stop_fs
