#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T40, an external evictor never stops (SGLang's nixl_cleaner at 80 and 70 %, llm-d's pvc_evictor at 85 and 70 %): a
# mount that is full of what can be evicted counts as empty, so they stay off; what is pinned counts: with 87 % of it
# the evictor goes on, removes the oldest, sees the usage fall, and goes off.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3
require_cmd setfattr

# evictor ROUNDS: pvc_evictor's activator, crawler and deleter, at most so many batches; prints how many files it
# removed. ROUNDS 0: only looks whether it would go on.
evictor() {
	python3 - "$MNT" "$1" <<'P'
import os, subprocess, sys
root, rounds = sys.argv[1], int(sys.argv[2])
ON, OFF, BATCH = 85, 70, 1

def usage():
    st = os.statvfs(root)
    assert st.f_frsize == 4096 and st.f_bavail == st.f_bfree
    return 100 * (st.f_blocks - st.f_bfree) / st.f_blocks

def files_below(directory):
    for entry in os.scandir(directory):
        if entry.name == ".kvcache":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path)
        else:
            yield entry.stat().st_atime_ns, entry.path

n_removed = 0
is_on = usage() >= ON
while is_on and rounds > 0:
    batch = [path for _, path in sorted(files_below(root))[:BATCH]]
    assert batch, "it removes for ever"
    subprocess.run(["xargs", "-0", "rm", "-f"], input=b"\0".join(map(os.fsencode, batch)), check=True)
    n_removed += len(batch)
    rounds -= 1
    is_on = usage() > OFF
print(n_removed, "on" if is_on else "off")
P
}

L1_SIZE=64M
BLOCK=4M
# Full of blocks that can be evicted: they are all there is, or also in L2.
for l2 in "" "type=mock,max_size_gb=64"; do
	start_bare ${l2:+--l2-adapter "$l2"}
	mkdir -p "$RANK"
	for ((i = 0; i < 24; i++)); do
		"$CLIENTS/pattern" "$i" "$BLOCK" >"$RANK/$(chunk_hash "$i")"
	done
	control flush /
	# Watermark 0.8 less ratio 0.2.
	assert_le $((32 << 20)) "$(status l1_used_bytes)" "bytes in L1"
	expect_output "0 off" evictor 100
	stop_fs
done

# 56 of 64 MiB are pinned.
start_bare --eviction-trigger-watermark 1
mkdir -p "$RANK"
for ((i = 0; i < 14; i++)); do
	name=$RANK/$(chunk_hash "$i")
	"$CLIENTS/pattern" "$i" "$BLOCK" >"$name"
	setfattr -n user.kvcache.pinned -v 1 "$name"
	touch -a -d "2001-01-$((31 - i)) 00:00:00Z" "$name"
done
assert_eq "$((56 << 20))" "$(status l1_pinned_bytes)" "bytes pinned"
is_on() {
	[[ $(evictor 0) == "0 on" ]]
}
wait_until 10 "the evictor sees it" is_on
expect_output "3 off" evictor 100
# It was the oldest.
for ((i = 0; i < 14; i++)); do
	if ((i >= 11)); then
		expect_errno ENOENT stat "$RANK/$(chunk_hash "$i")"
	else
		expect_data "$RANK/$(chunk_hash "$i")" "$i" "$BLOCK"
	fi
done
expect_output "0 off" evictor 100
stop_fs
