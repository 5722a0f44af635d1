#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A file whose declared end was never written is no object: its close is 0, its name stays ENOENT, and it is counted.
# (An end in the page of the last byte written counts as written.)
# What was written to its end is one, holes before that included.
#
# parallel

. "$(dirname "$0")/lib.sh"

n=0
# not_published NAME: neither now nor listed; one more is counted.
not_published() {
	n=$((n + 1))
	expect_errno ENOENT stat "$RANK/$1"
	expect_errno ENOENT open-read "$RANK/$1"
	assert_eq "$n" "$(stat_counter mount_writes_not_published_tail)" mount_writes_not_published_tail
}

require_cmd python3
start_fs
mkdir -p "$RANK"

h=$(chunk_hash never-written)
steps "open $RANK/$h wct
	ftruncate 8M
	close"
not_published "$h"

# Read by its writer, in the middle as well.
h=$(chunk_hash read-before-close)
python3 - "$RANK/$h" <<'P' || fail "reading what was declared"
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 8 << 20)
assert os.pread(fd, 8 << 20, 0) == bytes(8 << 20)
assert os.pread(fd, 100, (8 << 20) - 10) == bytes(10)
assert os.pread(fd, 100, 8 << 20) == b""
os.close(fd)
P
not_published "$h"

h=$(chunk_hash first-page-only)
steps "open $RANK/$h wct
	ftruncate 32M
	write 1 4K
	close"
not_published "$h"

h=$(chunk_hash declared-after)
steps "open $RANK/$h rwct
	write 1 4K
	ftruncate 32M
	close"
not_published "$h"

# One byte into the next 2 MiB: another page, however large pages are.
for order in "ftruncate 2097153|pwrite 1 4K 2044K" "pwrite 1 4K 2044K|ftruncate 2097153"; do
	h=$(chunk_hash "next-page-$n")
	steps "open $RANK/$h rwct
		${order/|/$'\n'}
		close"
	not_published "$h"
done

# In the same 2 MiB it depends on the pages that the kernel has given: with small ones it is not published, with larger
# ones it is, and then it has zeros.
for size in 1M 2M; do
	h=$(chunk_hash "same-page-$size")
	steps "open $RANK/$h rwct
		write 1 4K
		ftruncate $size
		close"
	if [[ $("$CLIENTS/try-call" stat "$RANK/$h") == 0 ]]; then
		echo "end at $size: published"
		[[ $(status l1_memory) != memfd || $(</sys/kernel/mm/transparent_hugepage/shmem_enabled) != *"[never]"* ]] ||
			fail "an end at $size counts as written, and all pages are small"
		"$CLIENTS/pattern" 1 4K >"$WORK/expected"
		truncate -s "$size" "$WORK/expected"
		assert_same "$WORK/expected" "$RANK/$h"
		rm "$RANK/$h"
	else
		echo "end at $size: not published"
		not_published "$h"
	fi
done

# Declared twice, growing. (A file is guessed to be as large as the last one of its directory.)
for sizes in "4K 10000" "4096 558593" "558593 1M" "2M 3M" "3M 3584K"; do
	for guess in 100K 1M; do
		mkchunk "$WORK/last" "$guess" 7
		h=$(chunk_hash "last-$n")
		cp "$WORK/last" "$RANK/$h"
		rm "$RANK/$h"
		h=$(chunk_hash "twice-$n")
		steps "open $RANK/$h wct
			ftruncate ${sizes% *}
			ftruncate ${sizes#* }
			close"
		not_published "$h"
	done
done

# Under a temporary name: the rename is accepted, and nothing comes of it.
h=$(chunk_hash renamed)
steps "open $RANK/.$h.tmp wct
	ftruncate 32M
	write 1 4K
	close
	rename $RANK/.$h.tmp $RANK/$h"
not_published "$h"
expect_errno ENOENT stat "$RANK/.$h.tmp"
expect_output "" ls -A "$RANK"

# Written after it was declared, in two pieces, the second first.
h=$(chunk_hash whole)
steps "open $RANK/$h rwct
	ftruncate 8M
	pwrite 2 4M 4M
	pwrite 1 4M 0
	close"
{
	"$CLIENTS/pattern" 1 4M
	"$CLIENTS/pattern" 2 4M
} >"$WORK/expected"
assert_same "$WORK/expected" "$RANK/$h"

# The last page is enough: what is before it is zeros that somebody wants.
h=$(chunk_hash last-page)
steps "open $RANK/$h wct
	ftruncate 8M
	pwrite 1 4K 8188K
	close"
{
	head -c 8188K /dev/zero
	"$CLIENTS/pattern" 1 4K
} >"$WORK/expected"
assert_same "$WORK/expected" "$RANK/$h"

# A name that was refused is as good as new.
h=$(chunk_hash never-written)
steps "open $RANK/$h wct
	write 3 8M
	close"
"$CLIENTS/pattern" 3 8M >"$WORK/expected"
assert_same "$WORK/expected" "$RANK/$h"
assert_eq 3 "$(status l1_objects)" l1_objects
assert_eq "$n" "$(stat_counter mount_writes_not_published_tail)" mount_writes_not_published_tail
restart_fs
assert_eq 3 "$(find "$RANK" -type f | wc -l)" "objects after a restart"
stop_fs
