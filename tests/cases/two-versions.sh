#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two L2s hold different versions of one file, since a daemon was killed that could write to one of them only: the newer
# one is read, whichever L2 comes first, and never is the older one found under a name that it is renamed to. Newer is
# what was written later, whatever mtime it was given.
#
# parallel

. "$(dirname "$0")/lib.sh"

OLD=$WORK/older
NEW=$WORK/newer
file=$MNT/plain/file
other=$MNT/plain/other

# start_over OPTIONS DIRECTORY...: an L2 in each, with these options.
start_over() {
	local options=$1 directory
	local -a adapters=()
	shift
	for directory in "$@"; do
		adapters+=(--l2-adapter "type=fs,base_path=$directory$options")
	done
	start_bare "${adapters[@]}"
}

# make_first OPTIONS: version 1 is in both.
make_first() {
	rm -rf "$OLD" "$NEW"
	mkdir "$OLD" "$NEW"
	start_over "$1" "$OLD" "$NEW"
	mkdir -p "$MNT/plain"
	rm -f "$other"
	"$CLIENTS/pattern" 1 64K >"$file"
	control flush /
}

# make_versions OPTIONS: version 1 is in both, 2 in NEW only.
make_versions() {
	make_first "$1"
	kill_fs
	start_over "$1" "$NEW"
	"$CLIENTS/pattern" 2 64K >"$file"
	control flush /
	kill_fs
	has "$OLD" file && has "$NEW" file || fail "both have a file"
}

# has DIRECTORY NAME
has() {
	[[ -e $1/plain/plain/$2 ]]
}

has_not() {
	! has "$@"
}

# The file was renamed, and what is older is nowhere.
expect_at_rest() {
	local name
	for name in "$OLD file" "$OLD other" "$NEW file"; do
		# shellcheck disable=SC2086 # two words
		has_not $name || fail "left: $name"
	done
	"$CLIENTS/pattern" 2 64K | cmp - "$NEW/plain/plain/other" || fail "it is not what was renamed"
}

# The file, under one of its two names.
expect_newer() {
	local found=$file
	[[ -e $file ]] || found=$other
	expect_data "$found" 2 64K
	[[ $found == "$other" || ! -e $other ]] || fail "the file is there twice"
}

for options in "" ",shared=false"; do
	make_versions "$options"
	start_over "$options" "$OLD" "$NEW"
	expect_newer
	has "$OLD" file || fail "deleted, though nobody has asked for it"
	kill_fs
	start_over "$options" "$NEW" "$OLD"
	expect_newer
	assert_eq 1 "$(stat_counter older_versions)" older_versions
	mv "$file" "$other"
	kill_fs
	start_over "$options" "$OLD" "$NEW"
	expect_newer
	[[ ! -e $file ]] || mv "$file" "$other"
	stop_fs
	expect_at_rest
done

# write_older_mtime OPTIONS: version 2, in NEW only, has an older mtime than version 1, as cp -p, tar and rsync -a leave it.
write_older_mtime() {
	make_first "$1"
	stop_fs
	start_over "$1" "$NEW"
	"$CLIENTS/pattern" 2 64K >"$WORK/source"
	touch -d 2001-01-01 "$WORK/source"
	cp -p "$WORK/source" "$file"
	control flush /
	stop_fs
}

for options in "" ",shared=false"; do
	write_older_mtime "$options"
	start_over "$options" "$OLD" "$NEW"
	expect_newer
	assert_eq 978307200 "$(stat -c %Y "$file")" mtime
	[[ $(cat "$NEW/plain/plain/file" | cksum) == $("$CLIENTS/pattern" 2 64K | cksum) ]] || fail "lost in L2"
	stop_fs
	start_over "$options" "$NEW" "$OLD"
	expect_newer
	stop_fs
done
