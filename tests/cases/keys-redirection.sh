#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A shell redirection to .keys closes a descriptor before anything is written. The chain stays until something is, or
# until the last descriptor is closed: not when the write fails or the writer is killed. Whoever looks after the last
# close sees the empty chain at once; one whose descriptor lives on holds up one look only.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3

prefix=$RANK/p
keys=$prefix/.keys

# expect_chain FILE WHAT: whoever looks sees the chain FILE, whose objects all exist.
expect_chain() {
	assert_eq "$(stat -c %s "$1")" "$(stat -c %s "$keys")" "size of .keys, $2"
	assert_eq "$(cat "$1")" "$(cat "$keys")" "$2"
	assert_eq "$(cat "$1")" "$(ls -U "$prefix")" "listing, $2"
}

# begin_writer COMMANDS: a shell that runs them with its output redirected to .keys. Its PID is in $writer.
begin_writer() {
	rm -f "$WORK/has-begun"
	sh -c "{ : >$WORK/has-begun; $1; } >$keys" &
	writer=$!
	wait_until 10 "the writer begins" test -e "$WORK/has-begun"
}

start_fs
mkdir -p "$RANK"
mkdir "$prefix"
for i in 1 2 3 4; do
	mkchunk "$RANK/$(chunk_hash "$i")" 4K "$i"
done
for i in 1 2 3; do chunk_hash "$i"; done >"$WORK/three"
chunk_hash 4 >"$WORK/one"
: >"$WORK/none"
cp "$WORK/three" "$keys"
expect_chain "$WORK/three" "at first"

# ---- The write fails ---------------------------------------------------------------------------

! sh -c "echo zz >$keys" 2>"$WORK/errors" || fail "a redirected write of no hash succeeds"
cat "$WORK/errors"
expect_chain "$WORK/three" "after a write that failed"
! sh -c "{ cat /dev/null; printf 'zz\n'; } >$keys" 2>"$WORK/errors" || fail "so does one behind another command"
expect_chain "$WORK/three" "after the second write that failed"

# ---- Nothing is written yet --------------------------------------------------------------------

mkfifo "$WORK/go"
begin_writer "read -r _ <$WORK/go; cat $WORK/one"
expect_chain "$WORK/three" "before a slow writer writes"
# Another command of the writer ends: it may have been the last.
echo >"$WORK/go"
wait "$writer"
expect_chain "$WORK/one" "after a slow writer"
cp "$WORK/three" "$keys"

begin_writer "cat /dev/null; sh -c :; read -r _ <$WORK/go; cat $WORK/one; cat /dev/null"
expect_chain "$WORK/three" "after commands that write nothing"
echo >"$WORK/go"
wait "$writer"
expect_chain "$WORK/one" "after several commands"
cp "$WORK/three" "$keys"

# ---- Killed ------------------------------------------------------------------------------------

for signal in KILL TERM; do
	begin_writer "exec sleep 1000"
	kill -s "$signal" "$writer"
	! wait "$writer" || fail "a writer survives SIG$signal"
	expect_chain "$WORK/three" "after SIG$signal"
done
# What it has begun lives longer, and ends well.
begin_writer "sh -c ': >$WORK/lives; read -r _ <$WORK/go' & wait"
wait_until 10 "it has begun what lives longer" test -e "$WORK/lives"
kill -s KILL "$writer"
! wait "$writer" || fail "a writer survives SIGKILL"
expect_chain "$WORK/three" "after one of two was killed"
echo >"$WORK/go"
sleep 0.3
expect_chain "$WORK/three" "after the other has ended"

# ---- Emptied -----------------------------------------------------------------------------------

for ((i = 0; i < 10; i++)); do
	for look in "cat $keys" "ls -U $prefix" "stat -c %s $keys"; do
		cp "$WORK/three" "$keys"
		got=$(sh -c ": >$keys; exec $look")
		[[ -z $got || $got == 0 ]] || fail "$look after it was emptied, $i: $got"
	done
	cp "$WORK/three" "$keys"
	cp /dev/null "$keys"
	expect_output "" cat "$keys"
done
expect_chain "$WORK/none" "emptied"

python3 - "$keys" "$WORK/three" "$WORK/one" "$MNT/.kvcache/stats" <<-'EOF' || fail "see above"
	import errno, os, sys, threading, time
	keys, stats = sys.argv[1], sys.argv[4]
	three, one = [open(path, "rb").read() for path in sys.argv[2:4]]
	prefix = os.path.dirname(keys)
	entry = os.path.join(prefix, three[:three.index(b"\n")].decode())


	def read():
	    with open(keys, "rb") as file:
	        return file.read()


	def write(chain):
	    with open(keys, "wb") as file:
	        file.write(chain)


	def truncate():
	    return os.open(keys, os.O_WRONLY | os.O_TRUNC)


	def ftruncate():
	    fd = os.open(keys, os.O_WRONLY)
	    os.ftruncate(fd, 0)
	    return fd


	def expect(chain, what):
	    got = read()
	    if got != chain:
	        sys.exit("%s: %d bytes instead of %d" % (what, len(got), len(chain)))


	def waits():
	    with open(stats) as file:
	        return [line for line in file if line.startswith("mount_lookups_waited_commit")]


	def append():
	    with open(keys, "ab") as file:
	        file.write(one)
	    return read() != one


	looks = {
	    "read": lambda: len(read()),
	    "list": lambda: len([name for name in os.listdir(prefix) if name != ".keys"]),
	    "stat": lambda: os.stat(keys).st_size,
	    "append": append,
	    "entry": lambda: os.path.exists(entry),
	}
	for what, look in looks.items():
	    for i in range(50 if what == "append" else 200):
	        write(three)
	        os.close(truncate() if i % 10 else ftruncate())
	        got = look()
	        if got:
	            sys.exit("%s after it was emptied, %d: %d" % (what, i, got))


	# A look before the last close waits for it; not for long, so on a busy machine it may miss it.
	def close_late(fd):
	    time.sleep(0.005)
	    os.close(fd)


	def waits_for_close(look):
	    write(three)
	    fd = truncate()
	    closer = threading.Thread(target=close_late, args=(os.dup(fd),))
	    os.close(fd)
	    closer.start()
	    is_seen = not look()
	    closer.join()
	    return is_seen


	for what, look in looks.items():
	    if not any(waits_for_close(look) for i in range(20)):
	        sys.exit("%s never waits for the last close" % what)

	# Dup'ed descriptors: the last one counts.
	for begin in truncate, ftruncate:
	    write(three)
	    fd = begin()
	    other = os.dup(fd)
	    os.close(fd)
	    expect(three, "one of two is closed")
	    before = waits()
	    for i in range(50):
	        expect(three, "one of two is closed")
	        os.listdir(prefix)
	    assert waits() == before, (before, waits())
	    os.close(other)
	    expect(b"", "both are closed")
	    write(three)
	    fd = begin()
	    other = os.dup(fd)
	    os.close(fd)
	    os.write(other, one)
	    expect(three, "one of two is closed, the other has written")
	    last = os.dup(other)
	    os.close(other)
	    expect(three, "the second of three is closed")
	    os.close(last)
	    expect(one, "all are closed")

	# Refused, as it is not the next byte.
	write(three)
	fd = truncate()
	os.close(os.dup(fd))
	try:
	    os.pwrite(fd, one, 1000)
	    sys.exit("a write in the middle of nothing succeeds")
	except OSError as error:
	    assert error.errno == errno.EINVAL, error
	os.close(fd)
	expect(three, "a write was refused")

	# Two writers: the one that closes last.
	for is_first in True, False:
	    write(three)
	    first, second = truncate(), truncate()
	    for fd in first, second:
	        os.close(os.dup(fd))
	    os.write(second, one)
	    expect(three, "two writers")
	    for fd in (first, second) if is_first else (second, first):
	        os.close(fd)
	    expect(one if is_first else b"", "two writers, %d" % is_first)
EOF

# What follows it is not behind it, however soon.
for ((i = 0; i < 10; i++)); do
	cp "$WORK/three" "$keys"
	sh -c ": >$keys; ln $RANK/$(chunk_hash 4) $prefix/"
	expect_chain "$WORK/one" "linked after it was emptied, $i"
done
cp "$WORK/three" "$keys"
sync "$keys"
: >"$keys"
control flush "$prefix"
kill_fs
start_fs
expect_chain "$WORK/none" "after a flush and a crash"
cp "$WORK/three" "$keys"
: >"$keys"
restart_fs
expect_chain "$WORK/none" "after a restart"

# ---- No file to allocate -----------------------------------------------------------------------

require_cmd fallocate
cp "$WORK/three" "$keys"
! fallocate -l 4096 "$keys" 2>"$WORK/errors" || fail "fallocate of .keys succeeds"
grep -F "not supported" "$WORK/errors" || fail "fallocate of .keys: $(cat "$WORK/errors")"
expect_chain "$WORK/three" "after a fallocate"
stop_fs
