#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A file whose declared end was never written is no object: its close is 0, its name stays ENOENT, and it is counted.
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

start_fs
mkdir -p "$RANK"

h=$(chunk_hash never-written)
steps "open $RANK/$h wct
	ftruncate 8M
	close"
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
