#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# .keys is the chain, for readers and writers: whole right after a restart, replaced at once by a rename, refused as
# it is written when it is wrong, and an error to fsync when it cannot be kept.
#
# parallel

. "$(dirname "$0")/lib.sh"

prefix=$RANK/p
printf '%064x\n' {1..300} >"$WORK/long"
printf '%064x\n' {1001..1150} >"$WORK/short"
holders=8

start_fs
mkdir -p "$RANK"
mkdir "$prefix"
cat "$WORK/long" >"$prefix/.keys"
assert_same "$WORK/long" "$prefix/.keys"

# The first thing that anybody asks.
for i in 1 2 3 4 5; do
	restart_fs
	assert_eq "$(stat -c %s "$WORK/long")" "$(stat -c %s "$prefix/.keys")" "size of .keys after restart $i"
	cat "$prefix/.keys" >"$WORK/read" || fail "cat of .keys after restart $i"
	assert_same "$WORK/long" "$WORK/read"
done

# A rename onto it: a reader sees the one chain or the other, never a part of one.
start_client watcher "$CLIENTS/watch-file" "$prefix/.keys" "$WORK/long" "$WORK/short"
watcher=$CLIENT_PID
client_hear watcher watching
for ((i = 0; i < 20; i++)); do
	for chain in short long; do
		cat "$WORK/$chain" >"$prefix/.keys.tmp.$i"
		mv -fT "$prefix/.keys.tmp.$i" "$prefix/.keys"
	done
done
client_say watcher stop
wait "$watcher" || fail "a reader of .keys: $(cat "$WORK/watcher.out")"
cat "$WORK/watcher.out"
expect_errno ENOENT stat "$prefix/.keys.tmp.0"
assert_same "$WORK/long" "$prefix/.keys"

# An append appends, one line or many.
head -n 1 "$WORK/short" >>"$prefix/.keys"
tail -n +2 "$WORK/short" >>"$prefix/.keys"
cat "$WORK/long" "$WORK/short" >"$WORK/both"
assert_same "$WORK/both" "$prefix/.keys"

# What is no hash is refused and leaves the chain, wherever it stands.
one=$(chunk_hash one)
expect_errno write:EINVAL write-append "$prefix/.keys" $'no-hash\n'
expect_errno write:EINVAL write-append "$prefix/.keys" "$one"$'\nno-hash\n'
expect_errno write:EINVAL write-append "$prefix/.keys" "$one"$'\n\n'
expect_errno write:EINVAL write-append "$prefix/.keys" "${one^^}"$'\n'
expect_errno "write:EINVAL|close:EINVAL" write-append "$prefix/.keys" "${one}a"
assert_same "$WORK/both" "$prefix/.keys"

# So is a file that is no chain, however large; it stays what it was.
echo no-hash >"$prefix/.bad.tmp"
expect_errno EINVAL rename "$prefix/.bad.tmp" "$prefix/.keys"
expect_output no-hash cat "$prefix/.bad.tmp"
head -c 100M /dev/zero >"$prefix/.huge.tmp"
expect_errno "EFBIG|EINVAL" rename "$prefix/.huge.tmp" "$prefix/.keys"
head -c 1M /dev/zero >"$prefix/.zeros.tmp"
expect_errno EINVAL rename "$prefix/.zeros.tmp" "$prefix/.keys"
assert_same "$WORK/both" "$prefix/.keys"
assert_eq ok "$(status health)" health
rm "$prefix/.bad.tmp" "$prefix/.huge.tmp" "$prefix/.zeros.tmp"

# A replacement takes effect as a whole, when its writer closes it; not when he failed or was killed. Who empties it by
# hand, as editors do, replaces it.
expect_errno write:EINVAL write "$prefix/.keys" $'NOTHEX\n'
assert_same "$WORK/both" "$prefix/.keys"
python3 - "$prefix/.keys" "$WORK/both" "$WORK/short" <<-'EOF' || fail "a replacement of .keys"
	import errno, os, signal, sys
	keys, both, short = sys.argv[1], open(sys.argv[2], "rb").read(), open(sys.argv[3], "rb").read()


	def read():
	    with open(keys, "rb") as file:
	        return file.read()


	def open_by_o_trunc():
	    return os.open(keys, os.O_WRONLY | os.O_TRUNC)


	def open_by_ftruncate():
	    fd = os.open(keys, os.O_WRONLY)
	    os.ftruncate(fd, 0)
	    return fd


	for begin in open_by_o_trunc, open_by_ftruncate:
	    # Refused in the middle.
	    fd = begin()
	    os.write(fd, short[:65])
	    try:
	        os.write(fd, b"NOTHEX\n")
	        sys.exit("a bad line is taken")
	    except OSError as error:
	        assert error.errno == errno.EINVAL, error
	    os.close(fd)
	    assert read() == both, begin
	    # Killed in the middle.
	    child = os.fork()
	    if child == 0:
	        fd = begin()
	        os.write(fd, short[:65])
	        os.kill(os.getpid(), signal.SIGKILL)
	    os.waitpid(child, 0)
	    assert read() == both, begin
	    # As a whole.
	    fd = begin()
	    for at in range(0, len(short), 100):
	        os.write(fd, short[at:at + 100])
	        assert read() == both, begin
	    os.close(fd)
	    assert read() == short, begin
	    with open(keys, "wb") as file:
	        file.write(both)
	    assert read() == both, begin
EOF

# Its mtime is that of the last change, or what was set: rsync goes by it.
printf '%s\n' "$(chunk_hash a)" "$(chunk_hash b)" >"$prefix/.keys"
old=$(stat -c %y "$prefix/.keys")
printf '%s\n' "$(chunk_hash b)" "$(chunk_hash a)" >"$prefix/.keys"
[[ $(stat -c %y "$prefix/.keys") > $old ]] || fail "mtime of .keys after it was replaced: $old"
old=$(stat -c %y "$prefix/.keys")
chunk_hash c >>"$prefix/.keys"
[[ $(stat -c %y "$prefix/.keys") > $old ]] || fail "mtime of .keys after an append: $old"
touch -d "2001-02-03 04:05:06" "$prefix/.keys"
expect_output 981173106 stat -c %Y "$prefix/.keys"
cat "$WORK/both" >"$prefix/.keys.tmp"
touch -d "2001-02-03 04:05:07" "$prefix/.keys.tmp"
mv -f "$prefix/.keys.tmp" "$prefix/.keys"
expect_output 981173107 stat -c %Y "$prefix/.keys"
assert_same "$WORK/both" "$prefix/.keys"

# rm of it empties the chain, for good.
rm "$prefix/.keys"
expect_errno ENOENT stat "$prefix/.keys"
expect_output "" ls -UA "$prefix"
# Also under the name of another, whose .keys was known.
mkdir "$RANK/other"
expect_output .keys ls -UA "$RANK/other"
mv -T "$prefix" "$RANK/other"
sleep 0.2
expect_output "" ls -UA "$RANK/other"
mv "$RANK/other" "$prefix"
restart_fs
expect_output "" ls -U "$prefix"
cat "$WORK/short" >"$prefix/.keys"
assert_same "$WORK/short" "$prefix/.keys"

# Removed, it is no obstacle for a rename that replaces nothing.
rm "$prefix/.keys"
cat "$WORK/long" >"$prefix/.keys.tmp"
expect_errno 0 rename-noreplace "$prefix/.keys.tmp" "$prefix/.keys"
assert_same "$WORK/long" "$prefix/.keys"
cat "$WORK/short" >"$prefix/.keys.tmp"
expect_errno EEXIST rename-noreplace "$prefix/.keys.tmp" "$prefix/.keys"
mv -f "$prefix/.keys.tmp" "$prefix/.keys"
assert_same "$WORK/short" "$prefix/.keys"
stop_fs

# L1 full of what readers hold: the chain cannot be written, and fsync and flush say so.
L1_SIZE=64M
start_fs --eviction-trigger-watermark 1
mkchunk "$WORK/data" 8M
for ((i = 0; i < holders; i++)); do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i")"
	start_client "holder$i" "$CLIENTS/hold-open" "$RANK/$(chunk_hash "$i")" "$WORK/data"
	client_hear "holder$i" open
done
wait_until 10 "L1 is full of locked objects" status_is l1_used_bytes "$(status l1_capacity_bytes)"
assert_eq "$holders" "$(status l1_read_locks)" l1_read_locks
cat "$WORK/long" >"$prefix/.keys"
! sync "$prefix/.keys" 2>"$WORK/errors" || fail "sync of a chain that cannot be written succeeds"
cat "$WORK/errors"
got=$("$CLIENTS/try-call" write "$MNT/.kvcache/flush" "$prefix"$'\n')
[[ $got == write:* ]] || fail "flush of a chain that cannot be written: $got"
assert_le 1 "$(stat_counter mount_chains_save_failed)" mount_chains_save_failed
assert_same "$WORK/long" "$prefix/.keys"
# With room again it is kept.
for ((i = 0; i < holders; i++)); do
	client_say "holder$i" go
	client_hear "holder$i" equal
done
wait
sync "$prefix/.keys"
control flush "$prefix"
kill_fs
start_fs
assert_same "$WORK/long" "$prefix/.keys"
stop_fs
