#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A file declared or grown beyond --max-object-size: EFBIG at ftruncate and fallocate, in direct mode at the write,
# else at close; it is not published, and the log names the option. One byte less is an object.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=256M
cat >"$WORK/big.py" <<'P'
import errno, os, sys
how, name, limit, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
def expect(call, *args):
    try:
        call(*args)
    except OSError as e:
        assert e.errno == errno.EFBIG, e
    else:
        raise SystemExit(f"{how}: no EFBIG")
fd = os.open(name, os.O_CREAT | os.O_RDWR)
if how == "declared":
    expect(os.ftruncate, fd, limit + 1)
    expect(os.posix_fallocate, fd, 0, limit + 1)
    os.ftruncate(fd, limit)
    os.pwrite(fd, b"x" * limit, 0)
    os.close(fd)
if how == "grown":
    if mode == "direct":
        expect(os.pwrite, fd, b"x" * 2, limit - 1)
    else:
        os.write(fd, b"x" * (limit + 1))
    expect(os.close, fd)
if how == "renamed":
    if mode == "passthrough":
        os.write(fd, b"x" * (limit + 1))
    else:
        expect(os.pwrite, fd, b"x" * 2, limit - 1)
    expect(os.close, fd)
    expect(os.rename, name, os.path.dirname(name) + "/" + "ab" * 32)
    os.unlink(name)
P
for mode in "${IO_MODES[@]}"; do
	# In the foreground: it logs to stderr.
	"$KVCACHEFS" -f --l1-size "$L1_SIZE" --state-dir "$STATE" --io-mode="$mode" --max-object-size 3M "$MNT" \
		>>"$DAEMON_LOG" 2>&1 &
	DAEMON_PID=$!
	echo "$DAEMON_PID" >>"$WORK/daemons"
	wait_until 20 "the mount answers" test -e "$MNT/.kvcache/status"
	mkdir -p "$RANK"
	declared=$RANK/$(chunk_hash declared)
	python3 "$WORK/big.py" declared "$declared" $((3 << 20)) "$mode"
	assert_eq $((3 << 20)) "$(stat -c %s "$declared")" "$mode: bytes of what is just not too big"
	grown=$RANK/$(chunk_hash grown)
	python3 "$WORK/big.py" grown "$grown" $((3 << 20)) "$mode"
	wait_until 10 "$mode: it is counted" eval '(($(stat_counter mount_writes_not_published_too_big) == 1))'
	expect_errno ENOENT stat "$grown"
	python3 "$WORK/big.py" renamed "$RANK/.t.tmp" $((3 << 20)) "$mode"
	expect_errno ENOENT stat "$RANK/$(printf 'ab%.0s' {1..32})"
	grep -q -- '--max-object-size' "$DAEMON_LOG" || fail "$mode: the log does not name the option"
	# Which file it was, too.
	for name in "declared" "grown"; do
		grep -q "@01000100@0/$(chunk_hash $name): a file of [0-9]* bytes is refused" "$DAEMON_LOG" ||
			fail "$mode: the log does not name the file: $(grep refused "$DAEMON_LOG")"
	done
	grep -qF "kvcachefs: ${RANK#"$MNT"/}/.t.tmp: a file of " "$DAEMON_LOG" || fail "$mode: the log does not name the temporary file"
	: >"$DAEMON_LOG"
	rm "$declared"
	wait_until 10 "$mode: all memory is back" status_is l1_used_bytes 0
	stop_fs
done

# The default is an eighth of L1.
start_bare
mkdir -p "$RANK"
python3 "$WORK/big.py" declared "$RANK/$(chunk_hash default)" $((32 << 20)) "$EXPECTED_IO_MODE"
assert_eq $((32 << 20)) "$(stat -c %s "$RANK/$(chunk_hash default)")" "bytes"
assert_eq $((256 << 20)) "$(status l1_overrun_bytes)" l1_overrun_bytes
stop_fs
start_bare --l1-overrun 8M
assert_eq $((8 << 20)) "$(status l1_overrun_bytes)" l1_overrun_bytes
assert_eq 0 "$(status l1_overrun_used_bytes)" l1_overrun_used_bytes
stop_fs
