#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# An ordinary name that is being written is invisible, but not to its maker: who made a file can stat, change, open,
# rename and remove it by its path, and what he has removed does not appear at the close. The maker is the thread that
# opened it, until it has closed it, and of a file made with O_EXCL (lock files) the whole process.
#
# parallel

. "$(dirname "$0")/lib.sh"

# absent PATH: for others than its maker.
absent() {
	expect_errno ENOENT stat "$1"
	expect_errno ENOENT open-read "$1"
	expect_errno ENOENT unlink "$1"
	! is_listed "${1%/*}" "${1##*/}" || fail "$1 is listed"
}

start_fs
dir=$MNT/plain
name=$dir/lock
mkdir -p "$dir/sub" "$RANK"
begin a b

# Removed before its close: gone at once, free for others, and not there after the close.
for flags in wcx wct rwc; do
	step a 0 open "$name" "$flags"
	step a 0 write 1 4K
	step a 0 stat "$name"
	absent "$name"
	step a 0 unlink "$name"
	step a ENOENT stat "$name"
	step a ENOENT unlink "$name"
	step b 0 open "$name" wcx
	step b 0 write 2 8K
	step a 0 close
	absent "$name"
	step b 0 close
	expect_data "$name" 2 8K
	rm "$name"
done
assert_eq 3 "$(stat_counter mount_writes_not_published_unlinked)" mount_writes_not_published_unlinked
# What is written after the removal is read back, and the place is free.
step a 0 open "$name" rwcx
step a 0 unlink "$name"
step a 0 write 1 4K
step a 0 check 1 4K
step a 0 mkdir "$name"
step a 0 close
step a 0 rmdir "$name"

# Another thread of the maker sees what was made with O_EXCL. Nothing else: an engine that looks in one thread whether a
# block is there must not find the one that it is writing in another.
step a 0 open "$name" wcx
step a 0 write 1 4K
step a 0 thread stat "$name"
step a 0 thread unlink "$name"
step a 0 close
absent "$name"
step a 0 open "$name" wct
step a 0 write 1 4K
step a ENOENT thread stat "$name"
step a ENOENT thread unlink "$name"
step a 0 stat "$name"
step a 0 close
expect_data "$name" 1 4K
rm "$name"
# The process is what counts, not the thread that it began with.
step a 0 thread open "$name" wcx
step a 0 unlink "$name"
step a 0 close
absent "$name"

# Mode and times set by path go with the file.
step a 0 open "$name" wc
step a 0 write 3 1M
step a 0 chmod "$name" 600
step a 0 utimens "$name" 1000000000
absent "$name"
step b ENOENT chmod "$name" 666
step a 0 truncate "$name" 512K
step a 0 close
"$CLIENTS/pattern" 3 1M >"$WORK/expected"
truncate -s 512K "$WORK/expected"
assert_same "$WORK/expected" "$name"
step a 0 open "$dir/times" wcx
step a 0 write 3 4K
step a 0 chmod "$dir/times" 640
step a 0 utimens "$dir/times" 1000000000
step a 0 close
assert_eq "600 640 1000000000" "$(stat -c %a "$name") $(stat -c '%a %Y' "$dir/times")" "modes and mtime"
rm "$name" "$dir/times"

# Opened again by its maker it is one file, as elsewhere; its last close commits.
step a 0 open "$name" wc
step a 0 write 1 4K
step a 0 keep
step a 0 open "$name" rw
step a 0 check 1 4K
step a 0 pwrite 2 4K 0
step a 0 close
absent "$name"
step a 0 stat "$name"
step a 0 open "$name" r
step a 0 check 2 4K
step a 0 close
step a 0 stat "$name"
step a 0 drop
expect_data "$name" 2 4K
rm "$name"

# Who has closed all that he has opened takes a name that he sees for complete. A duplicate or a mapping may live on.
step a 0 open "$name" wc
step a 0 write 1 4K
step a 0 dup
step a 0 close
step a ENOENT stat "$name"
step a 0 drop
step a 0 unlink "$name"
step a 0 open "$name" wcx
step a 0 write 1 4K
step a 0 dup
step a 0 close
step a 0 stat "$name"
step a 0 unlink "$name"
step a 0 drop
absent "$name"

# Renamed before its close it appears under the new name, at the close; what had that name is seen until then.
"$CLIENTS/pattern" 4 8K >"$dir/taken"
for new in "$dir/renamed" "$dir/taken"; do
	step a 0 open "$name" wcx
	step a 0 write 5 4K
	step b ENOENT rename "$name" "$dir/stolen"
	step a 0 rename "$name" "$new"
	step a ENOENT stat "$name"
	step a 0 chmod "$new" 644
	absent "$name"
	[[ $new != */taken ]] || expect_data "$new" 4 8K
	step b 0 open "$name" wcx
	step b 0 unlink "$name"
	step b 0 close
	step a 0 close
	absent "$name"
	expect_data "$new" 5 4K
done
# What another thread of its maker writes under the new name, with O_EXCL, has lost it.
step a 0 thread open "$dir/other" wcx
step a 0 write 7 8K
step a 0 keep
step a 0 open "$name" wct
step a 0 write 5 4K
step a 0 rename "$name" "$dir/other"
step a 0 close
expect_data "$dir/other" 5 4K
step a 0 drop
expect_data "$dir/other" 5 4K
rm "$dir/other"
step a 0 open "$name" wcx
step a 0 write 6 4K
step a EISDIR rename "$name" "$dir/sub"
step a EXDEV rename "$name" "$RANK/$(chunk_hash 0)"
step a EXDEV rename "$name" "$dir/name.tmp"
step a 0 close
expect_data "$name" 6 4K
rm "$name" "$dir/renamed" "$dir/taken"

# Replaced by another file of its maker, or removed under a file that others have published meanwhile: it stays away.
for how in .new.tmp new; do
	step a 0 open "$name" wcx
	step a 0 write 1 4K
	"$CLIENTS/pattern" 2 8K >"$dir/$how"
	step a 0 rename "$dir/$how" "$name"
	step a 0 close
	expect_data "$name" 2 8K
	rm "$name"
done
step a 0 open "$name" wc
step a 0 write 1 4K
"$CLIENTS/pattern" 2 8K >"$name"
step a 0 unlink "$name"
absent "$name"
step a 0 close
absent "$name"

# Of what exists the committed version is seen; the removal by any of its writers is that of both.
for flags in wct rw; do
	"$CLIENTS/pattern" 1 4K >"$name"
	step a 0 open "$name" "$flags"
	step a 0 write 2 8K
	expect_data "$name" 1 4K
	step a 0 unlink "$name"
	absent "$name"
	step b 0 open "$name" wcx
	step a 0 close
	absent "$name"
	step b 0 write 3 4K
	step b 0 close
	expect_data "$name" 3 4K
	rm "$name"
done

# A hash name has no maker: each open for writing has a file of its own, and the first complete one is the object.
hash=$RANK/$(chunk_hash both)
step a 0 open "$hash" wcx
step a 0 write 1 4K
step a ENOENT stat "$hash"
step a ENOENT unlink "$hash"
step a 0 close
expect_data "$hash" 1 4K

# None of it is there after a restart, no staging file is left now.
wait_until 10 "no staging file is left" status_is l1_staging_objects 0
restart_fs
expect_output sub ls -A "$dir"
stop_fs
