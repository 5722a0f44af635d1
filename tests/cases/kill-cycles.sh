#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed again and again at random moments while objects are written and synced: after each start all
# that was confirmed is there and equal, and nothing is there that is not whole.
#
# parallel

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CYCLES=${CYCLES:-4}
RANDOM=$((SEED % 32768))

object_hash() {
	printf '%064x' "$((0x1000 + $1))"
}

object_bytes() {
	echo $(((($1 * 7919) % 64 + 1) * 65537))
}

# One writer: objects in turn, and the number of each that a sync confirmed.
write_until_it_fails() {
	local i=$1 file=$RANK
	for (( ; ; i += 2)); do
		"$CLIENTS/pattern" "$((SEED + i))" "$(object_bytes "$i")" >"$WORK/data.$1"
		# Even ones in place, odd ones by rename; only what was taken without an error counts.
		if (($1 % 2 == 0)); then
			cp "$WORK/data.$1" "$file/$(object_hash "$i")" || return 0
		else
			cp "$WORK/data.$1" "$file/.$i.tmp" && mv -T "$file/.$i.tmp" "$file/$(object_hash "$i")" || return 0
		fi
		echo "$i" >>"$WORK/tried.$1"
		sync "$file/$(object_hash "$i")" || return 0
		echo "$i" >>"$WORK/confirmed.$1"
	done
}

check_object() {
	local i=$1 file
	file=$RANK/$(object_hash "$i")
	"$CLIENTS/pattern" "$((SEED + i))" "$(object_bytes "$i")" | cmp - "$file" || fail "object $i is not what was written"
}

next=0
: >"$WORK/confirmed.0"
: >"$WORK/confirmed.1"
for ((cycle = 0; cycle < CYCLES; cycle++)); do
	start_fs
	mkdir -p "$RANK"
	# What is confirmed is there; what is there is whole.
	declare -A checked=()
	for i in $(cat "$WORK"/confirmed.*); do
		check_object "$i"
		checked[$i]=1
	done
	while IFS= read -r name; do
		[[ $name =~ ^[0-9a-f]{64}$ ]] || fail "after a kill there is $name"
		i=$((16#$name - 0x1000))
		[[ -n ${checked[$i]:-} ]] || check_object "$i"
	done < <(ls -A "$RANK")
	write_until_it_fails "$next" 2>>"$WORK/writers.log" &
	write_until_it_fails "$((next + 1))" 2>>"$WORK/writers.log" &
	sleep "$((RANDOM % 2)).$((RANDOM % 10))"
	kill_fs
	wait
	cat "$WORK"/confirmed.[0-9]* | sort -n | uniq >"$WORK/all"
	cp "$WORK/all" "$WORK/confirmed.0"
	rm -f "$WORK"/confirmed.[1-9]*
	echo "cycle $cycle: $(wc -l <"$WORK/all") confirmed"
	next=$((next + 100000))
done
[[ -s $WORK/all ]] || fail "nothing was ever confirmed"
