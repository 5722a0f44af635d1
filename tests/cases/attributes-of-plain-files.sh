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

# What is set by its path while it is written again stays at the close, as of a file that is changed in place.
echo old >"$MNT/plain/again"
setfattr -n user.gone -v 1 "$MNT/plain/again"
for redirection in '>' '<>'; do
	chmod 644 "$MNT/plain/again"
	eval "exec {fd}$redirection\"\$MNT/plain/again\""
	echo new >&"$fd"
	chmod 600 "$MNT/plain/again"
	touch -d '2001-02-03 04:05:06Z' "$MNT/plain/again"
	setfattr -n user.y -v "$redirection" "$MNT/plain/again"
	[[ $redirection == '<>' ]] || setfattr -x user.gone "$MNT/plain/again"
	expect_output "600 981173106" stat -L -c '%a %Y' "/proc/self/fd/$fd"
	exec {fd}>&-
	expect_output "600 981173106" stat -c '%a %Y' "$MNT/plain/again"
	expect_output new cat "$MNT/plain/again"
	expect_output "$redirection" getfattr --absolute-names --only-values -n user.y "$MNT/plain/again"
	! getfattr --absolute-names -n user.gone "$MNT/plain/again" 2>/dev/null || fail "a removed attribute is back"
done

# A later write sets the time once more; what was set by the descriptor last counts.
exec {fd}>"$MNT/plain/again"
touch -d '2001-02-03 04:05:06Z' "$MNT/plain/again"
echo newer >&"$fd"
chmod 640 "$MNT/plain/again"
chmod 604 "/proc/self/fd/$fd"
exec {fd}>&-
expect_output 604 stat -c %a "$MNT/plain/again"
(($(stat -c %Y "$MNT/plain/again") > 981173106)) || fail "the time is older than the write"
stop_fs
