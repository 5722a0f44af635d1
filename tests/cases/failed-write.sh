#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A write that failed is never part of an object: memory that ran out, also when it is free again at the close, and a
# file that RLIMIT_FSIZE cut. close() says so where it is known, the name stays ENOENT, the space returns. In both io
# modes.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=64M
cat >"$WORK/write.py" <<'P'
import errno, os, resource, signal, sys
how, name = sys.argv[1:3]
def close(fd, want):
    try:
        os.close(fd)
    except OSError as e:
        assert e.errno in want, e
    else:
        assert 0 in want, "close succeeded"
def fill(fd, n):
    done = 0
    try:
        while done < n:
            k = os.write(fd, b"z" * (1 << 20))
            done += k
            if k < 1 << 20:
                break
    except OSError as e:
        assert e.errno in (errno.ENOSPC, errno.EFBIG), e
    return done
if how == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20 | 5, resource.RLIM_INFINITY))
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    assert fill(fd, 8 << 20) == (3 << 20 | 5)
    close(fd, (errno.EIO,))
if how == "limit-inherited":
    # The child is cut, and ends by itself; the parent knows no limit.
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
        fill(fd, 8 << 20)
        os._exit(0)
    os.waitpid(pid, 0)
    close(fd, (errno.EIO,))
if how == "limit-above":
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    assert fill(fd, 4 << 20) == 4 << 20
    close(fd, (0,))
if how == "full":
    # Others take all memory, and give it back before the close.
    names = [os.path.dirname(name) + "/.big%d.tmp" % i for i in range(2)]
    bigs = [os.open(big, os.O_CREAT | os.O_RDWR) for big in names]
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    for big in bigs:
        fill(big, 1 << 33)
    assert fill(fd, 8 << 20) < 8 << 20, "the memory was never full"
    for big in bigs:
        os.ftruncate(big, 0)
    close(fd, (errno.ENOSPC,))
    for big in names:
        os.unlink(big)
P
for mode in "${IO_MODES[@]}"; do
	start_bare --io-mode="$mode" --l1-overrun 16M --max-object-size 64M --eviction-trigger-watermark 1
	mkdir -p "$RANK"
	n=0
	for how in limit limit-inherited; do
		n=$((n + 1))
		h=$(chunk_hash "$how")
		python3 "$WORK/write.py" "$how" "$RANK/$h"
		wait_until 10 "$how: counted" eval "((\$(stat_counter mount_writes_not_published_file_limit) == n))"
		expect_errno ENOENT stat "$RANK/$h"
		expect_errno ENOENT open-read "$RANK/$h"
	done
	python3 "$WORK/write.py" limit-above "$RANK/$(chunk_hash above)"
	assert_eq $((4 << 20)) "$(stat -c %s "$RANK/$(chunk_hash above)")" "bytes below the limit"
	h=$(chunk_hash full)
	python3 "$WORK/write.py" full "$RANK/$h"
	wait_until 10 "full: counted" eval '(($(stat_counter mount_writes_not_published_memory_full) >= 1))'
	expect_errno ENOENT stat "$RANK/$h"
	expect_errno ENOENT open-read "$RANK/$h"
	rm -f "$RANK/$(chunk_hash above)"
	wait_until 10 "$mode: all memory is back" status_is l1_used_bytes 0
	assert_eq 0 "$(status l1_overrun_used_bytes)" "l1_overrun_used_bytes at rest"
	# The daemon's own limit is an error for who writes, and not its end.
	prlimit --pid "$DAEMON_PID" --fsize=$((1 << 20)):unlimited
	! dd if=/dev/zero of="$RANK/$h" bs=1M count=8 status=none || fail "$mode: written beyond the limit"
	expect_errno ENOENT stat "$RANK/$h"
	prlimit --pid "$DAEMON_PID" --fsize=unlimited
	head -c 8M /dev/zero >"$RANK/$h"
	assert_eq $((8 << 20)) "$(stat -c %s "$RANK/$h")" "bytes once the limit is gone"
	rm "$RANK/$h"
	stop_fs
done
