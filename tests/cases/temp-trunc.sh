#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A temporary file that a second process opens with O_TRUNC while the first still has it: each has a file of its own,
# the name means the second's, and what the first does then disturbs nothing.
#
# parallel

. "$(dirname "$0")/lib.sh"

# expect_object NAME SEED BYTES: the object is that seed's data.
expect_object() {
	expect_data "$RANK/$1" "$2" "$3"
}

start_bare
mkdir -p "$RANK"

# The first keeps it open.
x=$RANK/.x.tmp
first=$(chunk_hash first)
begin a
begin b
step a 0 open "$x" rwct
step a 0 write 1 1000
step b 0 open "$x" wct
step b 0 write 2 500
step a 0 check 1 1000
step b 0 close
step b 0 rename "$x" "$RANK/$first"
expect_object "$first" 2 500
step a 0 check 1 1000
step a 0 pwrite 1 1000 0
step a 0 check 1 1000
step a 0 close
expect_object "$first" 2 500
expect_errno ENOENT stat "$x"

# The first has closed it: its bytes are gone with its name.
second=$(chunk_hash second)
step a 0 open "$x" wct
step a 0 write 3 1000
step a 0 close
step b 0 open "$x" wct
step b 0 write 4 500
step b 0 close
expect_object .x.tmp 4 500
step b 0 rename "$x" "$RANK/$second"
expect_object "$second" 4 500

# The first removes the name that is the second's now: the second's file is never an object, and harms nobody.
third=$(chunk_hash third)
step a 0 open "$x" wct
step a 0 write 5 1000
step b 0 open "$x" wct
step b 0 write 6 500
step a 0 close
step a 0 unlink "$x"
step b 0 close
step b ENOENT rename "$x" "$RANK/$third"
expect_errno ENOENT stat "$RANK/$third"

# LMCache #4991: the first closes and pauses; the second opens the same name with O_TRUNC and
# writes a part; the first renames; the second ends before it is complete. Never the second's 32 bytes.
tmp=$RANK/.k.tmp
key=$(chunk_hash key)
step a 0 open "$tmp" wct
step a 0 write 7 64
step a 0 close
begin killed
killed=$CLIENT_PID
step killed 0 open "$tmp" wct
step killed 0 write 8 32
step a 0 rename "$tmp" "$RANK/$key"
expect_errno ENOENT stat "$RANK/$key"
kill -KILL "$killed"
wait "$killed" || true
# A lookup may wait for a writer that is closing; then it is certain.
for i in 1 2 3; do
	expect_errno ENOENT open-read "$RANK/$key"
	sleep 0.1
done
expect_errno ENOENT stat "$tmp"
# A third writer stores it as if nothing had been.
step a 0 open "$tmp" wct
step a 0 write 7 64
step a 0 close
step a 0 rename "$tmp" "$RANK/$key"
expect_object "$key" 7 64
wait_until 10 "what was displaced or killed is gone" status_is l1_objects 3
stop_fs

# The same, the second's next write failing because L1 is full: its close says so.
L1_SIZE=64M
start_bare --io-mode=direct --eviction-trigger-watermark 1 --max-object-size 64M
mkdir -p "$RANK"
mkchunk "$WORK/data" 8M
for i in 0 1 2 3 4 5 6; do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i")"
	start_client "holder$i" "$CLIENTS/hold-open" "$RANK/$(chunk_hash "$i")" "$WORK/data"
	client_hear "holder$i" open
done
other=$MNT/$MODEL/@02000200
mkdir -p "$other"
tmp=$other/.k.tmp
begin c
begin d
step c 0 open "$tmp" wct
step c 0 write 7 64
step c 0 close
step d 0 open "$tmp" wct
step d 0 write 8 32
step c 0 rename "$tmp" "$other/$key"
step d ENOSPC pwrite 8 64K 30M
step d ENOSPC close
step d ENOENT unlink "$tmp"
expect_errno ENOENT stat "$other/$key"
expect_errno ENOENT open-read "$other/$key"
step c 0 open "$tmp" wct
step c 0 write 7 64
step c 0 close
step c 0 rename "$tmp" "$other/$key"
"$CLIENTS/pattern" 7 64 >"$WORK/expected"
assert_same "$WORK/expected" "$other/$key"
for i in 0 1 2 3 4 5 6; do
	client_say "holder$i" go
	client_hear "holder$i" equal
done
stop_fs
