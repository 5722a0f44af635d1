#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rm -rf of a prefix of 200 chunks that are only in L2 loads nothing and leaves the objects, also when chunk 0 is
# missing.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3

n=200
declare -a h=()
start_fs
mkdir -p "$RANK/whole" "$RANK/headless"
# One process writes them all: 56 hex digits and a number of 8.
stem=$(chunk_hash 0 stem)
stem=${stem:0:56}
"$CLIENTS/pattern" "$SEED" $((n * 65536)) >"$WORK/data"
split -b 65536 -d -a 8 "$WORK/data" "$RANK/$stem"
for ((i = 0; i < n; i++)); do
	printf -v hash '%s%08d' "$stem" "$i"
	h+=("$hash")
done
printf '%s\n' "${h[@]}" >"$RANK/whole/.keys"
printf '%s\n' "${h[@]}" >"$RANK/headless/.keys"
restart_fs --lookup-wait 2000 # a listing asks L2, which may be slow on this machine
assert_eq 0 "$(status l1_objects)" "objects in L1 after the start"
assert_eq 0 "$(stat_counter loads)" "loads after the start"

# remove NAME: a chain that nobody has loaded by then. The loads begin 50 ms after a directory was opened, unless an entry
# is removed before: on a machine that is slower than that there is nothing to be said.
remove() {
	local loads since=$EPOCHREALTIME ms
	loads=$(stat_counter loads)
	rm -rf "$RANK/${1:?}"
	ms=$(((${EPOCHREALTIME/./} - ${since/./}) / 1000))
	expect_errno ENOENT stat "$RANK/$1"
	echo "$1 was removed in $ms ms, $(($(stat_counter loads) - loads)) of it loaded"
	((ms >= 40)) || assert_eq "$loads" "$(stat_counter loads)" "loads after rm -rf of $1"
}

assert_eq "$n" "$(ls -U "$RANK/whole" | wc -l)" "chunks listed"
remove whole
assert_eq $((n + 1)) "$(ls "$RANK" | wc -l)" "objects and the other prefix"
assert_eq "$n" "$(find "$L2" -maxdepth 1 -name '*.data' | wc -l)" "objects in L2"

control evict /
rm "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@${h[0]}.data"
expect_output "" ls -U "$RANK/headless"
remove headless
assert_eq $((n - 1)) "$(find "$L2" -maxdepth 1 -name '*.data' | wc -l)" "objects in L2"
tail -c 65536 "$WORK/data" | cmp - "$RANK/${h[n - 1]}" || fail "the last chunk differs"

# Neither comes back.
restart_fs
expect_errno ENOENT stat "$RANK/whole"
expect_errno ENOENT stat "$RANK/headless"
assert_eq $((n - 1)) "$(ls "$RANK" | wc -l)" "entries of the rank directory after a restart"

# What lists nothing goes, though its chain is still on its way from L2.
mkdir "$RANK/empty"
stop_fs
start_bare --lookup-wait 5000 --l2-adapter "type=fault_inject,inner=type=fs\\,base_path=$L2,faults=delay,rate=1,delay_ms=50"
rmdir "$RANK/empty" || fail "rmdir of a prefix that lists nothing"
expect_errno ENOENT stat "$RANK/empty"

# What lists an entry that was closed a moment ago is not empty.
python3 - "$RANK" <<'P' || fail "a prefix directory goes with what has just been closed in it"
import errno, os, sys
rank = sys.argv[1]


def write(path):
    with open(path, "w") as f:
        f.write("data")


def error_of(call, *args):
    try:
        call(*args)
    except OSError as e:
        return e.errno
    return 0


for i in range(100):
    prefix, other = f"{rank}/prefix{i}", f"{rank}/other{i}"
    os.mkdir(prefix)
    os.mkdir(other)
    write(f"{prefix}/{i:032x}")
    assert error_of(os.rmdir, prefix) == errno.ENOTEMPTY, i
    write(f"{prefix}/{1000 + i:032x}")
    assert error_of(os.rename, other, prefix) == errno.ENOTEMPTY, i
    with open(f"{prefix}/.keys", "w"):
        pass
    assert error_of(os.rmdir, prefix) == 0, i
P
stop_fs
