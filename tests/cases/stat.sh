#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What stat says of an object: its size, the blocks that are in memory, and mode, owner and times that outlive eviction
# and the daemon. It loads nothing.
#
# quick
# parallel
# not-in: user: it changes owners

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK"
hash=$(chunk_hash 0)
object=$RANK/$hash
in_l2=$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$hash.data
mkchunk "$WORK/data" 4M

# What of stat's format is asked, past the second for which the kernel keeps attributes.
fresh_stat() {
	sleep 1.1
	stat -c "$1" "$object"
}

# A commit sets the times.
before=$(date +%s)
cp "$WORK/data" "$object"
sync "$object"
assert_eq "4194304 4194304 644 0 0 regular file 1" "$(stat -c '%s %o %a %u %g %F %h' "$object")" "a new object"
assert_le "$before" "$(stat -c %Y "$object")" "mtime is the commit's"
assert_le "$(stat -c %Y "$object")" "$(date +%s)" "mtime is not in the future"
assert_eq 8192 "$(stat -c %b "$object")" "blocks of a resident object"

# Blocks are those in memory, but never none; and stat loads nothing.
evict "$object"
expect_output "4194304 1" fresh_stat '%s %b'
ls -lR "$MNT" >/dev/null
assert_eq 0 "$(stat_counter loads)" "stat loaded something"
assert_same "$WORK/data" "$object"
expect_output 8192 fresh_stat %b

# Reading moves atime, and not ctime.
read -r atime ctime mtime < <(stat -c '%X %Z %Y' "$object")
sleep 1.1
cat "$object" >/dev/null
assert_le "$((atime + 1))" "$(fresh_stat %X)" "atime after a read"
assert_eq "$ctime $mtime" "$(stat -c '%Z %Y' "$object")" "ctime and mtime after a read"

# A change of attributes moves ctime, and not mtime.
chmod 640 "$object"
chown 12:34 "$object"
assert_le "$((ctime + 1))" "$(stat -c %Z "$object")" "ctime after a chmod"
assert_eq "$mtime" "$(stat -c %Y "$object")" "mtime after a chmod"

# What was set is kept, over eviction and restart; in L2 it is the mtime of the file and an xattr.
touch -m -d '2001-02-03 04:05:06.123456789Z' "$object"
touch -a -d '2002-02-03 04:05:06Z' "$object"
expect_output "640 12 34 981173106 1012709106" stat -c '%a %u %g %Y %X' "$object"
evict "$object"
expect_output "640 12 34 981173106 1012709106" fresh_stat '%a %u %g %Y %X'
expect_output "981173106 640 0" stat -c '%Y %a %u' "$in_l2"
expect_output "640 12 34" getfattr --only-values --absolute-names -n user.kvcache.attr "$in_l2"
restart_fs
want="2001-02-03 04:05:06.123456789 +0000"
expect_output "640 12 34 $want" stat -c '%a %u %g %y' "$object"
expect_output "$want $want" stat -c '%x %z' "$object"
assert_eq 0 "$(stat_counter loads)" "stat loaded something after the restart"
assert_same "$WORK/data" "$object"
chmod 644 "$object"
chown 0:0 "$object"
restart_fs
expect_output "644 0 0 $want" stat -c '%a %u %g %y' "$object"
! getfattr -n user.kvcache.attr "$in_l2" 2>/dev/null || fail "the default is written down"

# As cp, tar and rsync write: attributes come before the close, or before the rename.
touch -d '1999-12-31 23:59:59Z' "$WORK/data"
chmod 600 "$WORK/data"
cp -p "$WORK/data" "$RANK/$(chunk_hash 1)"
cp -p "$WORK/data" "$RANK/.part"
mv "$RANK/.part" "$RANK/$(chunk_hash 2)"
for i in 1 2; do
	expect_output "600 946684799" stat -c '%a %Y' "$RANK/$(chunk_hash "$i")"
done
mkchunk "$RANK/.part" 64K 3
touch -d '1999-12-31 23:59:59Z' "$RANK/.part"
echo more >>"$RANK/.part"
assert_le "$before" "$(stat -c %Y "$RANK/.part")" "mtime of a temporary file after a write"
mv "$RANK/.part" "$RANK/$(chunk_hash 3)"
assert_le "$before" "$(stat -c %Y "$RANK/$(chunk_hash 3)")" "mtime after a write after a touch"
control flush /
restart_fs
for i in 1 2; do
	expect_output "600 946684799" stat -c '%a %Y' "$RANK/$(chunk_hash "$i")"
done

# A change that overtakes its store is not lost. One that is never seen again neither.
cp "$WORK/data" "$RANK/$(chunk_hash 4)"
chmod 400 "$RANK/$(chunk_hash 4)"
restart_fs
expect_output 400 stat -c %a "$RANK/$(chunk_hash 4)"
assert_eq 0 "$(stat_counter attributes_failed)" "attributes that an L2 could not take"

# Who has a removed object open still sees what it had.
exec 3<"$object"
rm "$object"
expect_output "644 0 4194304 $want" stat -L -c '%a %u %s %y' /proc/self/fd/3
exec 3<&-

# An object of others in L2: 0644, root, the mtime of its file.
other=$(chunk_hash 5)
cp "$WORK/data" "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$other.data"
touch -d '2003-02-03 04:05:06Z' "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$other.data"
expect_output "644 0 0 1044245106" stat -c '%a %u %g %Y' "$RANK/$other"

# Directories.
mkdir "$RANK/prefix"
chmod 700 "$RANK/prefix" "$RANK"
touch -d '2004-02-03 04:05:06Z' "$RANK"
expect_output "700 1075781106" stat -c '%a %Y' "$RANK"
restart_fs
expect_output "700 directory" stat -c '%a %F' "$RANK/prefix"
stop_fs
