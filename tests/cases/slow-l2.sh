#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# An L2 that takes 3 s for everything holds up only those who want something from it: in a directory in which others
# look for absent names and wait for loads, resident names are found, files made, renamed and removed at once. Who
# waits can be killed, and waits no longer than was asked for.

. "$(dirname "$0")/lib.sh"

# A machine with other things to do may delay a call now and then, not most of them.
SLOW_MS=500

now_ms() {
	echo $((${EPOCHREALTIME/./} / 1000))
}

# assert_mostly_fast WHAT MS...: at most one in five took longer than SLOW_MS.
assert_mostly_fast() {
	local what=$1 ms n_slow=0
	shift
	echo "$what: $* ms"
	for ms in "$@"; do
		((ms < SLOW_MS)) || n_slow=$((n_slow + 1))
	done
	assert_le "$((n_slow * 5))" $# "$what: five times the calls that took $SLOW_MS ms or more"
}

# times FILE STEP: the milliseconds of that step's answers; each must be RESULT.
times() {
	local file=$1 name=$2 result=$3
	assert_eq "" "$(awk -v n="$name" -v r="$result" '$1 == n && $2 != r' "$file")" "answers of $name that are not $result"
	awk -v n="$name" '$1 == n { print $3 }' "$file"
}

waited_at_least() {
	(($(stat_counter mount_opens_waited) >= $1))
}

start_bare --l2-adapter type=mock,max_size_gb=1,latency_ms=3000,shared=true --drain-timeout 1
mkdir -p "$RANK"
mkchunk "$WORK/data" 1M
declare -a evicted=()
for i in 0 1 2 3 4 5 6 7 8; do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i" evicted)"
	evicted+=("$RANK/$(chunk_hash "$i" evicted)")
done
control flush /
control evict /
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
for i in 0 1 2 3 4; do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i" resident)"
	cp "$WORK/data" "$RANK/$(chunk_hash "$i" removed)"
done

# Four look for absent names without end, four open what is only in L2, five more do and will be killed.
declare -a seekers=() openers=() victims=()
for i in 0 1 2 3; do
	seq -f "absent stat $RANK/$i%063.0f" 3000 >"$WORK/absent.$i"
	"$CLIENTS/file-steps" -t <"$WORK/absent.$i" >"$WORK/absent.$i.out" &
	seekers+=($!)
done
for i in 4 5 6 7 8; do
	cat "${evicted[i]}" >"$WORK/victim.$i" 2>&1 &
	victims+=($!)
done
for i in 0 1 2 3; do
	cmp "$WORK/data" "${evicted[i]}" &
	openers+=($!)
done
wait_until 5 "nine wait in open" waited_at_least 9

# Killed, a waiting process is gone at once.
declare -a ms=()
for pid in "${victims[@]}"; do
	! is_gone "$pid" || fail "a process that opens what is in L2 ended by itself"
	begin=$(now_ms)
	kill -KILL "$pid"
	wait_gone "$pid" 10
	ms+=($(($(now_ms) - begin)))
done
assert_mostly_fast "death of a process that waits in open" "${ms[@]}"

for i in 0 1 2 3 4; do
	cat <<-END
		resident stat $RANK/$(chunk_hash "$i" resident)
		create open $RANK/.$i.tmp wct
		write write $i 64K
		close close
		rename rename $RANK/.$i.tmp $RANK/$(chunk_hash "$i" renamed)
		unlink unlink $RANK/$(chunk_hash "$i" removed)
	END
done >"$WORK/steps"
"$CLIENTS/file-steps" -t <"$WORK/steps" >"$WORK/answers"
for name in resident create write close rename unlink; do
	mapfile -t ms < <(times "$WORK/answers" "$name" 0)
	assert_eq 5 "${#ms[@]}" "answers of $name"
	assert_mostly_fast "$name" "${ms[@]}"
done

# Absent names: the lookup gives up long before L2 answers.
kill "${seekers[@]}"
mapfile -t ms < <(for i in 0 1 2 3; do sed '$d' "$WORK/absent.$i.out"; done >"$WORK/absent.all" &&
	times "$WORK/absent.all" absent ENOENT | sort -n)
echo "${#ms[@]} lookups of absent names, from ${ms[0]} to ${ms[-1]} ms, median ${ms[${#ms[@]} / 2]}"
assert_le 20 "${#ms[@]}" "lookups of absent names"
assert_le "${ms[${#ms[@]} * 4 / 5]}" "$SLOW_MS" "milliseconds of four in five lookups of absent names"

# The others get what they waited for.
for pid in "${openers[@]}"; do
	wait "$pid" || fail "an open of an object that is only in L2"
done
assert_eq 0 "$(stat_counter mount_opens_missed)" mount_opens_missed
wait
kill_fs

# The waits are those that were asked for.
start_bare --l2-adapter type=mock,max_size_gb=1,latency_ms=3000,shared=true --drain-timeout 1 \
	--l2-prefetch-load-timeout 1 --lookup-wait 700
mkdir -p "$RANK"
cp "$WORK/data" "${evicted[0]}"
cat >"$WORK/steps" <<END
absent stat $RANK/$(chunk_hash absent)
END
"$CLIENTS/file-steps" -t <"$WORK/steps" >"$WORK/answers"
waited=$(times "$WORK/answers" absent ENOENT)
echo "lookup of an absent name: $waited ms of 700"
assert_le 600 "$waited" "milliseconds of a lookup"
assert_le "$waited" 2500 "milliseconds of a lookup"
wait_until 20 "the object is stored" status_is l1_dirty_objects 0
control evict "${evicted[0]}"
echo "evicted open ${evicted[0]} r" | "$CLIENTS/file-steps" -t >"$WORK/answers"
waited=$(times "$WORK/answers" evicted ENOENT)
echo "open of what L2 does not give in time: $waited ms of 1000"
assert_le 900 "$waited" "milliseconds of an open"
assert_le "$waited" 2800 "milliseconds of an open"
expect_errno 0 stat "${evicted[0]}"
kill_fs
