#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two mounts over one L2, which hangs for one of them: plain files and prefix directories that it has in memory are
# found, opened and listed there as they are known, after --lookup-wait at most, and counted as stale. Once L2 goes on
# it sees what the other has made of them meanwhile. Who lists a directory while it is being listed again waits as well.
#
# parallel

. "$(dirname "$0")/lib.sh"

# What A writes to directly B sees through a file system that can be stopped.
STORE=$WORK/store
mkdir "$STORE" "$MNT_B"
"$CLIENTS/mirror-fs" "$STORE" "$L2" &
mirror=$!
wait_until 10 "the mirror is mounted" mountpoint -q "$L2"
start_bare --l2-adapter "type=fs,base_path=$STORE"
mkdir -p "$MNT/dir" "$RANK/prompt"
mkchunk "$MNT/dir/file" 64K 1
mkchunk "$WORK/1" 64K 1
mkchunk "$WORK/2" 64K 2
hash=$(chunk_hash 0)
cp "$WORK/1" "$RANK/prompt/$hash"
control flush /
on_b start_fs --coherence 0.2 --lookup-wait 100
b=$MNT_B/dir prompt_b=$MNT_B/$MODEL/@01000100/prompt
assert_same "$WORK/1" "$b/file"
assert_same "$WORK/1" "$prompt_b/$hash"
expect_output "$hash" ls -U "$prompt_b"

kill -STOP "$mirror"
cp "$WORK/2" "$MNT/dir/file"
printf '' >"$RANK/prompt/.keys"
control flush /
sleep 0.3
stale=$(on_b stat_counter mount_checks_stale)
listings=$(on_b stat_counter mount_listings_stale)
# Far longer than --lookup-wait, far shorter than the deadline of a load.
cat >"$WORK/steps" <<-END
	stat stat $b/file
	open open $b/file r
	close close
	list list $prompt_b
	again list $prompt_b
	dir list $b
	again list $b
	open open $b/file r
	close close
END
"$CLIENTS/file-steps" -t <"$WORK/steps" >"$WORK/answers"
cat "$WORK/answers"
assert_eq "" "$(awk '$2 != 0 || $3 > 3000' "$WORK/answers")" "answers beside an L2 that hangs"
assert_same "$WORK/1" "$b/file"
assert_le $((stale + 2)) "$(on_b stat_counter mount_checks_stale)" "what was counted as stale"
assert_eq $((listings + 2)) "$(on_b stat_counter mount_listings_stale)" "listings that were counted as stale"

kill -CONT "$mirror"
is_new() {
	cmp -s "$WORK/2" "$b/file" && [[ -z $(ls -U "$prompt_b") ]]
}
wait_until 20 "what the other mount has made is seen" is_new

# Two list it while the listing is on its way.
on_b restart_fs --coherence 1 --lookup-wait 30000
expect_output file ls "$b"
mkchunk "$MNT/dir/new" 1K
control flush /
# The kernel keeps attributes of the mirror for a second.
sleep 1.5
kill -STOP "$mirror"
ls "$b" >"$WORK/first" &
first=$!
sleep 0.3
ls "$b" >"$WORK/second" &
second=$!
sleep 0.3
kill -CONT "$mirror"
wait "$first" "$second"
for list in first second; do
	assert_eq $'file\nnew' "$(<"$WORK/$list")" "the $list listing"
done
stop_both
umount "$L2"
wait_gone "$mirror" 10
