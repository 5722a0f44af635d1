#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A daemon that may have few open files, as in a container: objects beyond that are evicted, nothing is refused with
# EMFILE, and everything reads back.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd setpriv python3

# start_with N: with that limit, and without the right to raise it.
start_with() {
	printf '#!/bin/bash\nulimit -n %d\nexec %s %q "$@"\n' "$1" "$drop" "$daemon" >"$WORK/few"
	chmod +x "$WORK/few"
	KVCACHEFS=$WORK/few start_fs
}

drop=
((EUID != 0)) || drop='setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource'
daemon=$KVCACHEFS
# The daemon is found by its name.
find_daemon() {
	local pid
	read -r pid _ <"$STATE/lock" && echo "$pid"
}

for limit in 64 256; do
	start_with "$limit"
	assert_eq $((limit / 2)) "$(status l1_objects_limit)" "l1_objects_limit with $limit descriptors"
	mkdir -p "$MNT/plain"
	for ((i = 0; i < 3 * limit; i++)); do
		echo "text $i" >"$MNT/plain/$limit.$i" || fail "the ${i}th file with $limit descriptors"
		# What is not stored yet cannot go.
		((i % (limit / 8))) || control flush /
	done
	control flush /
	assert_le "$(status l1_objects)" $((limit / 2)) "objects in L1"
	python3 - "$MNT/plain/$limit" <<'P' || fail "what was written with $limit descriptors"
import sys
for i in range(3 * int(sys.argv[1].rpartition("/")[2])):
    with open(f"{sys.argv[1]}.{i}") as f:
        assert f.read() == f"text {i}\n", i
P
	assert_eq ok "$(status health)" "health with $limit descriptors"
	stop_fs
done
