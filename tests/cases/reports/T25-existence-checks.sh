#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T25, existence checks too slow (vLLM PR 46713, llm-d PR 621): 10,000 access(F_OK) on lists of 128 blocks, half of them
# missing, without an early exit: right answers, nothing is loaded, L2 is not asked for a name that is known, nor for an
# unknown one where nobody else writes to L2; and the kernel checks permissions itself, so there is no ACCESS.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

# check_lists CREATE: 1 to store the blocks first.
check_lists() {
	python3 - "$MNT/vllm_0123456789ab_r0" "$RANK" "$1" <<'P' || fail "the existence checks"
import os, sys
*roots, create = sys.argv[1:]
LISTS, DEPTH, CHECKS = 8, 128, 10000

def path(root, i, depth):
    name = f"{i * 1000 + depth:064x}"
    return f"{root}/{name}" if "@" in root else f"{root}/{i:03x}/{i:02x}_g0/{name}.bin"

lists = [[path(root, i, depth) for depth in range(DEPTH)] for i in range(LISTS) for root in roots]
if create == "1":
    for one in lists:
        os.makedirs(os.path.dirname(one[0]), exist_ok=True)
        for name in one[: DEPTH // 2]:
            with open(name, "wb") as file:
                file.write(b"block")
done = 0
while done < CHECKS:
    for one in lists:
        assert [os.access(name, os.F_OK) for name in one] == [True] * (DEPTH // 2) + [False] * (DEPTH // 2), one[0]
        done += DEPTH
P
}

start_private() {
	start_bare --l2-adapter "type=fs,base_path=$L2,shared=false"
}

start_private
mkdir -p "$RANK"
check_lists 1
control flush /
control evict /
check_lists 0
# With an index that was only listed.
stop_fs
start_private
check_lists 0
assert_eq "0 0 0" "$(stat_counter mount_lookups_asked_l2) $(stat_counter lookups) $(stat_counter loads)" "questions to L2, and loads"
if ((EUID == 0)); then
	options=$(awk -v mount="$MNT" '$5 == mount { print $NF }' /proc/self/mountinfo)
	[[ ,$options, == *,default_permissions,* ]] || fail "the kernel leaves permissions to the daemon: $options"
fi
stop_fs

# Where others write to L2, each absent name is asked for, and no present one.
start_fs
check_lists 0
assert_eq "5120 0" "$(stat_counter mount_lookups_asked_l2) $(stat_counter loads)" "absent names asked of L2, and loads"
stop_fs
