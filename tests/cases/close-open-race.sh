#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# 10,000 times a process writes and closes an object and another opens it at once: it is always there, whole,
# and equal. Nor is it missed by who looks at it through a prefix directory that names it, where the kernel asks anew.
#
# timeout: 180

. "$(dirname "$0")/lib.sh"

L1_SIZE=512M
start_bare
mkdir -p "$RANK"
"$CLIENTS/close-open-race" "$RANK" 10000 200
wait_until 10 "no object is left" status_is l1_objects 0
wait_until 10 "no byte is left" status_is l1_used_bytes 0
assert_eq 0 "$(status l1_read_locks)" l1_read_locks

mkdir "$RANK/p"
seq -f '%064.0f' 1 15000 >"$WORK/names"
cat "$WORK/names" >"$RANK/p/.keys"
while read -r name; do
	printf 'w open %s wct\nw write 1 4K\nw close\nstat stat %s\n' "$RANK/$name" "$RANK/p/$name"
done <"$WORK/names" | "$CLIENTS/file-steps" >"$WORK/answers"
assert_eq "60000" "$(awk '$2 == 0' "$WORK/answers" | wc -l)" "steps that succeeded: $(awk '$2 != 0' "$WORK/answers" | sort | uniq -c)"
stop_fs
