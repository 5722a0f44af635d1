#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed again and again at random moments while a few names are written, synced and removed: after each
# start a name whose rm had returned is absent, and one whose sync had returned has those bytes.
#
# parallel
# timeout: 240

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CYCLES=${CYCLES:-4}
RANDOM=$((SEED % 32768))

n_names=6
: >"$WORK/steps"

# What is about to be done, and what has been: "begin NAME" and "removed NAME" or "stored NAME VERSION".
write_and_remove_until_it_fails() {
	local version=$1 name file
	for (( ; ; version++)); do
		name=$(chunk_hash "$((version * 7 % n_names))")
		file=$RANK/$name
		echo "begin $name" >>"$WORK/steps"
		if [[ -e $file ]]; then
			rm "$file" || return 0
			echo "removed $name" >>"$WORK/steps"
			# Every second one at once again, so that its store follows its deletion closely.
			((version % 2)) || continue
			echo "begin $name" >>"$WORK/steps"
		fi
		"$CLIENTS/pattern" "$((SEED + version))" 64K >"$WORK/data"
		cp "$WORK/data" "$file" || return 0
		sync "$file" || return 0
		echo "stored $name $version" >>"$WORK/steps"
	done
}

# check_name NAME: against the last line about it.
check_name() {
	local what version file=$RANK/$1
	read -r what _ version < <(awk -v name="$1" '$2 == name { line = $0 } END { print line }' "$WORK/steps")
	case $what in
	removed) expect_errno ENOENT stat "$file" ;;
	stored) "$CLIENTS/pattern" "$((SEED + version))" 64K | cmp - "$file" || fail "$1 is not version $version" ;;
	esac
}

for ((cycle = 0; cycle <= CYCLES; cycle++)); do
	start_fs
	mkdir -p "$RANK"
	for ((i = 0; i < n_names; i++)); do
		check_name "$(chunk_hash "$i")"
	done
	((cycle < CYCLES)) || break
	write_and_remove_until_it_fails "$((cycle * 100000))" 2>>"$WORK/writer.log" &
	sleep "$((RANDOM % 2)).$((RANDOM % 10))"
	kill_fs
	wait
	echo "cycle $cycle: $(wc -l <"$WORK/steps") steps"
done
grep -q '^removed' "$WORK/steps" || fail "nothing was ever removed"
wait_until 20 "all is confirmed" status_is deletion_log_pending 0
for ((i = 0; i < n_names; i++)); do
	check_name "$(chunk_hash "$i")"
done
stop_fs
