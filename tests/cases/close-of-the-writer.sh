#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The last close of the last copy of a writer's descriptor is the commit, and nothing before it: not the close of a
# duplicate, of a child's copy, or of one under a Python mmap. Who asks meanwhile waits at most 50 ms.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir -p "$RANK" "$MNT/plain"
n=0

# next: sets name to an object's; every other time to a plain file's.
next() {
	n=$((n + 1))
	name=$RANK/$(chunk_hash "$n")
	((n % 2)) || name=$MNT/plain/$n
}

# invisible WHAT: now, and again after what a lookup waits for.
invisible() {
	expect_errno ENOENT open-read "$name"
	sleep 0.06
	expect_errno ENOENT stat "$name"
	! is_listed "$(dirname "$name")" "$(basename "$name")" || fail "$1: listed"
}

# The subshell's commands each flush the redirected descriptor.
for i in 1 2; do
	next
	(
		echo one
		cat /dev/null
		(echo two)
		invisible "between two commands of a subshell"
		echo three
	) >"$name"
	expect_output $'one\ntwo\nthree' cat "$name"
done

# A duplicate in the same process.
begin a
for i in 1 2; do
	next
	step a 0 open "$name" wct
	step a 0 write 1 1M
	step a 0 dup
	step a 0 close
	invisible "after the close of the first of two"
	step a 0 drop
	expect_data "$name" 1 1M
done

# A child inherits it and outlives its parent.
for i in 1 2; do
	next
	mkfifo "$WORK/go.$n"
	bash -c 'echo from the parent; (read -r _ <"$1"; echo from the child) &' - "$WORK/go.$n" >"$name"
	invisible "while a child has it"
	echo go >"$WORK/go.$n"
	wait_until 5 "the child's close commits" eval '[[ -e $name ]]'
	expect_output $'from the parent\nfrom the child' cat "$name"
done

# A Python mmap has a descriptor of its own: stat between close and the end of the mapping must not hang.
for i in 1 2; do
	next
	python3 - "$name" <<'P'
import errno, mmap, os, sys, time

name = sys.argv[1]
fd = os.open(name, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
os.ftruncate(fd, 1 << 20)
m = mmap.mmap(fd, 1 << 20)
m[:] = b"x" * (1 << 20)
os.close(fd)
begin = time.monotonic()
try:
    os.stat(name)
    raise SystemExit("visible while the mapping's descriptor is open")
except FileNotFoundError:
    pass
waited = time.monotonic() - begin
print("stat beside a mapping: %.1f ms" % (waited * 1000))
assert waited < 0.5, waited
m[:1] = b"y"
m.close()
begin = time.monotonic()
with open(name, "rb") as f:
    assert f.read() == b"y" + b"x" * ((1 << 20) - 1)
print("open after its end: %.1f ms" % ((time.monotonic() - begin) * 1000))
P
done
assert_le 1 "$(stat_counter mount_lookups_waited_commit_in_vain)" mount_lookups_waited_commit_in_vain

# Three children that only end: the last one's end is the close.
for i in 1 2; do
	next
	declare -a pids=()
	exec 8>"$name"
	echo held >&8
	for j in 1 2 3; do
		mkfifo "$WORK/hold.$n.$j"
		(read -r _ <"$WORK/hold.$n.$j") &
		pids+=($!)
	done
	exec 8>&-
	for j in 1 2 3; do
		invisible "with children $j to 3"
		echo go >"$WORK/hold.$n.$j"
		wait "${pids[j - 1]}"
	done
	expect_output held cat "$name"
done
stop_fs
