#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The ways to make a chain: a file created in P, an append to .keys, a whole .keys renamed onto it; a line that is
# no hash is EINVAL; rm in P drops the reference only.
#
# parallel

. "$(dirname "$0")/lib.sh"

prefix=$RANK/p
declare -a h=()
start_fs
mkdir -p "$RANK"
for i in 0 1 2 3 4; do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 100000 "$i"
done
mkdir "$prefix"
# Created in P: the object of the rank directory, appended to the chain.
cp "$WORK/data.2" "$prefix/${h[2]}"
cp "$WORK/data.0" "$prefix/${h[0]}"
assert_same "$WORK/data.2" "$RANK/${h[2]}"
expect_output "${h[2]}"$'\n'"${h[0]}" ls -U "$prefix"
# An append appends.
cp "$WORK/data.1" "$RANK/${h[1]}"
echo "${h[1]}" >>"$prefix/.keys"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}")" ls -U "$prefix"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}")" cat "$prefix/.keys"
# A rename of a temporary file to P/<hash> counts as creating it.
cp "$WORK/data.3" "$prefix/.${h[3]}.tmp.1"
mv -T "$prefix/.${h[3]}.tmp.1" "$prefix/${h[3]}"
expect_output "$(printf '%s\n' "${h[2]}" "${h[0]}" "${h[1]}" "${h[3]}")" ls -U "$prefix"
# Truncate and write replaces.
printf '%s\n' "${h[0]}" "${h[1]}" "${h[2]}" >"$prefix/.keys"
expect_output "$(printf '%s\n' "${h[0]}" "${h[1]}" "${h[2]}")" ls -U "$prefix"
# What is not a hash is refused as it is written and changes nothing.
expect_errno write:EINVAL write-append "$prefix/.keys" $'no-hash\n'
expect_errno write:EINVAL write-append "$prefix/.keys" "${h[3]^^}"$'\n'
expect_output "$(printf '%s\n' "${h[0]}" "${h[1]}" "${h[2]}")" cat "$prefix/.keys"
# rm in P drops the reference, not the object.
rm "$prefix/${h[0]}"
expect_output "$(printf '%s\n' "${h[1]}" "${h[2]}")" ls -U "$prefix"
assert_same "$WORK/data.0" "$RANK/${h[0]}"
expect_errno ENOENT stat "$prefix/${h[0]}"
# A prefix with entries is not empty; without them rmdir drops it.
expect_errno ENOTEMPTY rmdir "$prefix"
rm "$prefix/${h[1]}" "$prefix/${h[2]}"
rmdir "$prefix"
expect_errno ENOENT stat "$prefix"
assert_same "$WORK/data.1" "$RANK/${h[1]}"
# Nothing nests in a prefix directory.
mkdir "$prefix"
expect_errno EINVAL mkdir "$prefix/q"
# Removing .keys empties the chain and leaves the objects.
printf '%s\n' "${h[0]}" "${h[1]}" >"$prefix/.keys"
rm "$prefix/.keys"
expect_output "" ls -U "$prefix"
assert_same "$WORK/data.1" "$RANK/${h[1]}"

# A writer's place is a gap until it commits, also if the object is there; a new .keys comes before it.
mkdir "$RANK/held"
exec 9>"$RANK/held/${h[0]}"
cat "$WORK/data.0" >&9
expect_output "" ls -U "$RANK/held"
expect_errno ENOENT stat "$RANK/held/${h[0]}"
printf '%s\n' "${h[1]}" "${h[2]}" >"$RANK/held/.keys"
expect_output "$(printf '%s\n' "${h[1]}" "${h[2]}")" ls -U "$RANK/held"
exec 9>&-
expect_output "$(printf '%s\n' "${h[1]}" "${h[2]}" "${h[0]}")" ls -U "$RANK/held"
expect_output "$(printf '%s\n' "${h[1]}" "${h[2]}" "${h[0]}")" cat "$RANK/held/.keys"
stop_fs
