#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Each byte is stored once: a temporary file never, its rename once, what four writers filled together once; a lock
# file that is gone at once not at all.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# l2_state: inode, size and name of each file in L2; an inode that stays was not written again.
l2_state() {
	find "$L2" -type f -path '*.data' -printf '%i %s %P\n' -o -type f -path '*/plain/*' -printf '%i %s %P\n' | sort
}

# stored OBJECTS BYTES: since the start, and what is in L2 now.
stored() {
	control flush /
	assert_eq "$1" "$(stat_counter stores_completed)" "objects stored"
	assert_eq "$2" "$(stat_counter store_bytes)" "bytes stored"
	assert_eq "$1 $2" "$(l2_state | awk '{ n += $2 } END { print NR, n + 0 }')" "objects and bytes in L2"
}

start_fs
mkdir -p "$RANK" "$MNT/plain"
mkchunk "$WORK/data" 1M
n=0 bytes=0

# Temporary name, then rename.
for i in 1 2 3 4; do
	cp "$WORK/data" "$RANK/.$i.tmp"
	cp "$WORK/data" "$MNT/plain/$i.tmp"
	control flush /
	mv -T "$RANK/.$i.tmp" "$RANK/$(chunk_hash "$i")"
	mv -T "$MNT/plain/$i.tmp" "$MNT/plain/$i"
	n=$((n + 2)) bytes=$((bytes + (2 << 20)))
done
stored "$n" "$bytes"
before=$(l2_state)

# Renamed over several temporary names on the way.
cp "$WORK/data" "$MNT/plain/5.part"
mv -T "$MNT/plain/5.part" "$MNT/plain/5.tmp"
mv -T "$MNT/plain/5.tmp" "$MNT/plain/5"
n=$((n + 1)) bytes=$((bytes + (1 << 20)))
stored "$n" "$bytes"

# Written once more under a hash name: the same by definition, not stored again.
cp "$WORK/data" "$RANK/.again.tmp"
mv -T "$RANK/.again.tmp" "$RANK/$(chunk_hash 1)"
cp "$WORK/data" "$RANK/$(chunk_hash 2)"
stored "$n" "$bytes"

# Four processes fill one temporary file in disjoint parts; the last one renames it.
"$CLIENTS/pattern" 1 1M >"$WORK/part"
for name in "$RANK/$(chunk_hash shared)" "$MNT/plain/shared"; do
	declare -a pids=()
	for i in 0 1 2 3; do
		cat <<-END | "$CLIENTS/file-steps" >"$WORK/answers.$i" &
			x open $name.tmp rwc
			x pwrite 1 1M ${i}M
			x close
		END
		pids+=($!)
	done
	for pid in "${pids[@]}"; do
		wait "$pid"
	done
	cat "$WORK"/answers.[0-3] >"$WORK/answers"
	assert_eq 12 "$(grep -cx 'x 0' "$WORK/answers")" "steps of four writers"
	mv -T "$name.tmp" "$name"
	cat "$WORK/part" "$WORK/part" "$WORK/part" "$WORK/part" >"$WORK/expected"
	assert_same "$WORK/expected" "$name"
	n=$((n + 1)) bytes=$((bytes + (4 << 20)))
done
stored "$n" "$bytes"

# They join one that is still open, the first one renames it before the others are done.
begin a b c d
name=$MNT/plain/joined
for writer in a b c d; do
	step "$writer" 0 open "$name.tmp" rwc
done
step a 0 pwrite 1 1M 0
step b 0 pwrite 1 1M 1M
step a 0 close
step a 0 rename "$name.tmp" "$name"
step b 0 close
step c 0 pwrite 1 1M 2M
step c 0 close
expect_errno ENOENT stat "$name"
step d 0 pwrite 1 1M 3M
step d 0 close
assert_same "$WORK/expected" "$name"
n=$((n + 1)) bytes=$((bytes + (4 << 20)))
stored "$n" "$bytes"

# What was in L2 before is what it was: no file was written again.
assert_eq "" "$(comm -23 <(echo "$before") <(l2_state))" "files written again"

# Lock files by O_EXCL, held and removed, beside a file that they protect.
for i in 1 2 3; do
	step a 0 open "$MNT/plain/.lock" wcx
	step b EEXIST open "$MNT/plain/.lock" wcx
	step a 0 close
	step b EEXIST open "$MNT/plain/.lock" wcx
	step a 0 unlink "$MNT/plain/.lock"
done
stored "$n" "$bytes"

# Nothing is stored by reading, listing, restarting.
restart_fs
find "$MNT" -path "$MNT/.kvcache" -prune -o -type f -exec cat {} + >"$WORK/all"
assert_eq "$bytes" "$(stat -c %s "$WORK/all")" "bytes read back"
assert_eq 0 "$(stat_counter stores)" "stores by reading"
stop_fs
assert_eq "" "$(comm -23 <(echo "$before") <(l2_state))" "files written again"
