#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two mounts over one L2: what one has stored the other finds, also under a name that it has looked for in vain before.
# A plain file that one replaces, removes or renames is so in the other, which had it in memory, once --coherence has
# passed; who has the old one open there reads on. What a mount has written itself and not stored yet stays its own.
#
# parallel

. "$(dirname "$0")/lib.sh"

# Longer than --coherence below.
grow_old() {
	sleep 0.3
}

# still_is DATA FD: what was opened is read to its end.
still_is() {
	cmp - "$1" <&"$2" || fail "what is open is not $1 any more"
}

start_both --coherence 0.2 --lookup-wait 2000
a=$MNT/dir b=$MNT_B/dir
mkdir -p "$a" "$b"

# ---- Absent, then found ----------------------------------------------------------------------

expect_errno ENOENT stat "$b/file"
expect_errno ENOENT stat "$b/other"
mkchunk "$a/file" 100000 1
control flush /
mkchunk "$WORK/1" 100000 1
assert_same "$WORK/1" "$b/file"

# ---- Replaced --------------------------------------------------------------------------------

# Of the same size, of another one, and in place.
mkchunk "$WORK/2" 100000 2
mkchunk "$WORK/3" 70000 3
exec {old}<"$b/file" {old_too}<"$b/file"
cp "$WORK/2" "$a/.new.tmp"
mv "$a/.new.tmp" "$a/file"
control flush /
grow_old
assert_same "$WORK/2" "$b/file"
still_is "$WORK/1" "$old"
assert_eq 100000 "$(stat -L -c %s "/proc/self/fd/$old")" "size of the version that is open"
cp "$WORK/3" "$a/file"
control flush /
grow_old
assert_eq 70000 "$(stat -c %s "$b/file")" "size of the third version"
assert_same "$WORK/3" "$b/file"
still_is "$WORK/1" "$old_too"
exec {old}<&- {old_too}<&-
assert_eq 2 "$(on_b stat_counter renewed_replaced)" renewed_replaced
# The same the other way round, though the first one has written it.
mkchunk "$b/file" 50000 4
on_b control flush /
mkchunk "$WORK/4" 50000 4
grow_old
assert_same "$WORK/4" "$a/file"
assert_eq 1 "$(stat_counter renewed_replaced)" renewed_replaced

# ---- A writer goes on from what is there now -------------------------------------------------

printf 'a1\n' >"$a/log"
control flush /
assert_eq a1 "$(cat "$b/log")" "the log"
printf 'a2\n' >>"$a/log"
control flush /
grow_old
printf 'b1\n' >>"$b/log"
on_b control flush /
grow_old
assert_eq $'a1\na2\nb1' "$(cat "$a/log")" "the log of both"

# ---- Removed and renamed ---------------------------------------------------------------------

exec {old}<"$b/file"
rm "$a/file"
control flush /
grow_old
expect_errno ENOENT stat "$b/file"
expect_errno ENOENT open-read "$b/file"
still_is "$WORK/4" "$old"
exec {old}<&-
assert_eq 1 "$(on_b stat_counter renewed_removed)" renewed_removed
mv "$a/log" "$a/moved"
control flush /
grow_old
expect_errno ENOENT stat "$b/log"
assert_eq $'a1\na2\nb1' "$(cat "$b/moved")" "the renamed log"
# Made anew.
cp "$WORK/2" "$a/file"
control flush /
grow_old
assert_same "$WORK/2" "$b/file"
for mount in stat_counter "on_b stat_counter"; do
	assert_eq 0 "$($mount mount_checks_stale)" "mount_checks_stale"
done
stop_both
