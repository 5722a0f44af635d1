#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rm is for good: the name is gone at once and stays gone, whatever happens to the daemon and to L2 before L2 has
# confirmed it; who has the object open reads on; what is written again under the name is a new object, which no
# deletion of an earlier life takes away.
#
# timeout: 240
# parallel

. "$(dirname "$0")/lib.sh"

l2_file() {
	echo "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$1.data"
}

in_l2() {
	[[ -e $(l2_file "$1") ]]
}

not_in_l2() {
	! in_l2 "$1"
}

# break_l2 HASH: L2 fails to delete this one (a directory is in its place); mend_l2 puts the file back.
break_l2() {
	mkdir "$WORK/aside.$1"
	expect_errno 0 rename-exchange "$WORK/aside.$1" "$(l2_file "$1")"
}

# In one step: a deletion in between would find nothing, and be done.
mend_l2() {
	expect_errno 0 rename-exchange "$WORK/aside.$1" "$(l2_file "$1")"
	rmdir "$WORK/aside.$1"
}

absent() {
	expect_errno ENOENT stat "$RANK/$1"
	expect_errno ENOENT open-read "$RANK/$1"
	! is_listed "$RANK" "$1" || fail "$1 is listed"
}

pending_is() {
	status_is deletion_log_pending "$1"
}

start_fs
assert_eq ok "$(status deletion_log)" deletion_log
mkdir -p "$RANK"
declare -a h=()
for i in 0 1 2 3 4 5 6; do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 1M "$i"
	cp "$WORK/data.$i" "$RANK/${h[i]}"
	sync "$RANK/${h[i]}"
done

# Gone at once for everybody but who has it open; L2 follows.
expect_errno ENOENT unlink "$RANK/$(chunk_hash never)"
start_client holder "$CLIENTS/hold-open" "$RANK/${h[0]}" "$WORK/data.0"
client_hear holder open
evict "$RANK/${h[1]}"
rm "$RANK/${h[0]}" "$RANK/${h[1]}"
absent "${h[0]}"
absent "${h[1]}"
expect_errno ENOENT unlink "$RANK/${h[0]}"
wait_until 20 "it leaves L2" not_in_l2 "${h[0]}"
wait_until 20 "it leaves L2" not_in_l2 "${h[1]}"
client_say holder go
client_hear holder equal
wait "$CLIENT_PID"
wait_until 20 "the deletions are confirmed" pending_is 0
assert_eq 0 "$(status l2.0.deletes_pending)" l2.0.deletes_pending

# L2 cannot delete: it is tried again until it can.
break_l2 "${h[2]}"
rm "$RANK/${h[2]}"
absent "${h[2]}"
wait_until 20 "health says so" status_is health degraded
assert_eq 1 "$(status l2.0.deletes_pending)" l2.0.deletes_pending
assert_eq 1 "$(status deletion_log_pending)" deletion_log_pending
mend_l2 "${h[2]}"
wait_until 20 "it leaves L2" not_in_l2 "${h[2]}"
wait_until 20 "the deletion is confirmed" pending_is 0
wait_until 20 "health is ok" status_is health ok

# Killed in between, and L2 is back when the daemon is: absent, never listed, and then gone from L2.
break_l2 "${h[3]}"
rm "$RANK/${h[3]}"
kill_fs
mend_l2 "${h[3]}"
start_fs
absent "${h[3]}"
wait_until 20 "it leaves L2" not_in_l2 "${h[3]}"
assert_eq 1 "$(stat_counter deletes_replayed)" deletes_replayed
wait_until 20 "the deletion is confirmed" pending_is 0
absent "${h[3]}"
assert_same "$WORK/data.4" "$RANK/${h[4]}"

# Killed, and L2 still cannot: hidden for as long as that lasts. The same after an unmount. (A directory is nothing
# that could be listed, so the file comes back while the deletion waits for its next try.)
break_l2 "${h[4]}"
rm "$RANK/${h[4]}"
kill_fs
start_fs --lookup-wait 1000
wait_until 20 "it was tried" status_is l2.0.deletes_pending 1
absent "${h[4]}"
stop_fs
mend_l2 "${h[4]}"
start_fs --lookup-wait 1000
absent "${h[4]}"
wait_until 20 "it leaves L2" not_in_l2 "${h[4]}"
stop_fs

# Another L2 is not touched by it, and the deletion is kept until its own is back.
start_fs
break_l2 "${h[5]}"
rm "$RANK/${h[5]}"
kill_fs
mend_l2 "${h[5]}"
mkdir "$WORK/other"
cp -a "$(l2_file "${h[5]}")" "$WORK/other/"
start_bare --l2-adapter "type=fs,base_path=$WORK/other"
assert_same "$WORK/data.5" "$RANK/${h[5]}"
assert_eq 1 "$(status deletion_log_unknown)" deletion_log_unknown
stop_fs
start_bare --l2-adapter "type=fs,base_path=$WORK/other" --l2-adapter "type=fs,base_path=$L2"
wait_until 20 "it leaves its L2" not_in_l2 "${h[5]}"
assert_same "$WORK/data.5" "$RANK/${h[5]}"
stop_fs

# Written again: there at once, stored after the deletion, and still there after a kill; several times, since what
# counts is the order on disk at the moment of the kill.
for i in 0 1 2 3 4 5; do
	start_fs
	[[ -e $RANK/${h[6]} ]] || fail "the object written again is not there after kill $i"
	assert_same "$WORK/data.6" "$RANK/${h[6]}"
	rm "$RANK/${h[6]}"
	mkchunk "$WORK/data.6" 1M "$((60 + i))"
	cp "$WORK/data.6" "$RANK/${h[6]}"
	assert_same "$WORK/data.6" "$RANK/${h[6]}"
	sync "$RANK/${h[6]}"
	kill_fs
done
start_fs
assert_same "$WORK/data.6" "$RANK/${h[6]}"

# Killed right after the rm, L2 well or not: gone.
for i in 0 1 2 3; do
	cp "$WORK/data.$i" "$RANK/${h[i]}"
	sync "$RANK/${h[i]}"
	rm "$RANK/${h[i]}"
	kill_fs
	start_fs
	absent "${h[i]}"
done
wait_until 20 "all is confirmed" pending_is 0
absent "${h[0]}"

# Who has closed it has written it before it is removed, though the commit comes after close(2); the first of two writers
# has made it already, and the kernel knows the name.
mkdir "$RANK/chain"
python3 - "$RANK" "$RANK/chain" <<'P' || fail "removed beside the end of a second writer"
import os, sys, time
for directory in sys.argv[1:]:
    names = [f"{directory}/{0xabc000 + i:032x}" for i in range(200)]
    for name in names:
        writers = [os.open(name, os.O_WRONLY | os.O_CREAT) for _ in range(2)]
        for writer in writers:
            os.write(writer, b"data")
        os.close(writers[0])
        os.stat(name)
        os.close(writers[1])
        os.unlink(name)
    time.sleep(0.1)
    left = [name for name in names if os.path.exists(name)]
    assert not left, f"{len(left)} of {len(names)} are there again in {directory}"
P
stop_fs

# What is no log of ours is named, and left as it is.
echo "something else" >"$STATE/deletions"
if "$KVCACHEFS" --l1-size "$L1_SIZE" --state-dir "$STATE" --l2-adapter "type=fs,base_path=$L2" "$MNT" >"$WORK/out" 2>&1; then
	fail "started over a state directory that is not ours"
fi
cat "$WORK/out"
grep -qF "$STATE/deletions" "$WORK/out" || fail "the message does not name the file"
expect_output "something else" cat "$STATE/deletions"
! is_mounted || fail "mounted"
