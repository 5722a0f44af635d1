#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A raw block store as L2, on a file and as root on a loop device: 100 chunks, a prefix and a plain file come back equal
# when L1 is empty, after a restart, and after kill -9; what was removed does not return; what is not a store is refused
# in words that say why.
#
# soak
# parallel
# timeout: 240

. "$(dirname "$0")/lib.sh"

N=100
STORE=$L2/store
SIZE=capacity_bytes=64M,slot_bytes=64K
loop=
end() {
	case_ended || true # first: it looks at the exit status
	if [[ -n $loop ]]; then
		umount -l "$MNT" 2>/dev/null || true
		[[ -z $DAEMON_PID ]] || kill -KILL "$DAEMON_PID" 2>/dev/null || true
		losetup --detach "$loop" 2>/dev/null || true
	fi
}
trap end EXIT

start_raw() {
	start_bare --l2-adapter "type=raw_block,device_path=$1"
}
# The first 10 are in a prefix. Some are larger than a slot, and most are no multiple of a page.
mkdir -p "$WORK/data" "$WORK/prompt"
declare -a hashes=()
for ((i = 0; i < N; i++)); do
	hashes+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data/${hashes[i]}" $((20000 + i * 2999)) "$i"
	((i >= 10)) || cp "$WORK/data/${hashes[i]}" "$WORK/prompt"
done
write_all() {
	mkdir -p "$RANK/prompt"
	for ((i = 0; i < 10; i++)); do
		cp "$WORK/prompt/${hashes[i]}" "$RANK/prompt"
	done
	(cd "$WORK/data" && cp "${hashes[@]:10}" "$RANK")
	echo first >"$MNT/note.txt"
	control flush /
	echo second >"$MNT/note.txt"
	chmod 640 "$MNT/note.txt"
	control flush /
}
# read_back FIRST WHEN: chunks from FIRST on, and nothing else, and the plain file.
read_back() {
	local names
	names=$(printf '%s\n' "${hashes[@]:$1}" | sort)
	assert_eq "$names" "$(find "$RANK" -maxdepth 1 -type f -printf '%f\n' | sort)" "the listing $2"
	# shellcheck disable=SC2086 # hashes
	assert_eq "$(cd "$WORK/data" && sha256sum $names)" "$(cd "$RANK" && sha256sum $names)" "the chunks $2"
	assert_eq second "$(cat "$MNT/note.txt")" "the plain file $2"
	assert_eq 640 "$(stat -c %a "$MNT/note.txt")" "its mode $2"
}
removed_is_gone() {
	for ((i = 0; i < 5; i++)); do
		expect_errno ENOENT open-read "$RANK/${hashes[i]}"
	done
	! is_listed "$MNT" gone.txt || fail "a removed file returns $1"
}

# round DEVICE FIRST_OPTIONS
round() {
	start_raw "$1$2"
	assert_eq ok "$(status l2.0.health)" l2.0.health
	assert_eq "$1" "$(status l2.0.location)" l2.0.location
	write_all
	evict /
	assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
	read_back 0 "after evict"
	evict /
	diff -r "$WORK/prompt" "$RANK/prompt" | grep -v ': .keys$' && fail "the prefix after evict"
	stop_fs

	start_raw "$1"
	assert_eq "$(printf '%s\n' "${hashes[@]:0:10}")" "$(cat "$RANK/prompt/.keys")" "the chain"
	read_back 0 "after a restart"
	echo gone >"$MNT/gone.txt"
	control flush /
	mv "$MNT/note.txt" "$MNT/moved.txt"
	mv "$MNT/moved.txt" "$MNT/note.txt"
	rm "$MNT/gone.txt"
	(cd "$RANK" && rm "${hashes[@]:0:5}")
	control flush /
	wait_until 20 "all is deleted in the store" status_is l2.0.deletes_pending 0
	wait_until 20 "all is renamed in the store" status_is l2.0.renames_pending 0
	kill_fs
	umount -l "$MNT"

	start_raw "$1"
	removed_is_gone "after kill -9"
	read_back 5 "after kill -9"
	stop_fs
	start_raw "$1"
	removed_is_gone "after a restart"
	read_back 5 "after a restart"
	assert_eq 0 "$(status l2.0.crc_mismatches)" l2.0.crc_mismatches
	stop_fs
}

echo "---- a file"
round "$STORE" ",$SIZE"

# refused WORDS SPECIFICATION
refused() {
	local output
	output=$("$KVCACHEFS" --l1-size "$L1_SIZE" --state-dir "$STATE" --l2-adapter "$2" "$MNT" 2>&1) &&
		fail "kvcachefs starts with $2"
	[[ $output == *"$1"* ]] || fail "expected \"$1\", got: $output"
}
start_raw "$STORE"
mkdir -p "$WORK/other"
output=$("$KVCACHEFS" --l1-size "$L1_SIZE" --state-dir "$WORK/state-other" \
	--l2-adapter "type=raw_block,device_path=$STORE" "$WORK/other" 2>&1) && fail "two daemons on one store"
[[ $output == *"is used by another program"* ]] || fail "two daemons: $output"
stop_fs
truncate -s 40M "$STORE"
refused "shrank" "type=raw_block,device_path=$STORE"
rm "$STORE"
refused "is not there" "type=raw_block,device_path=$STORE"
head -c 10M /dev/urandom >"$STORE"
refused "is not empty and holds no store of raw_block" "type=raw_block,device_path=$STORE"
rm "$STORE"

if ((EUID != 0)) || ! { truncate -s 64M "$L2/disk" && loop=$(losetup --find --show "$L2/disk"); }; then
	echo "no loop device here"
	exit 0
fi
echo "---- $loop"
round "$loop" ",slot_bytes=64K"
if command -v mkfs.ext4 >/dev/null; then
	mkfs.ext4 -q -F "$loop"
	refused "is not empty and holds no store of raw_block" "type=raw_block,device_path=$loop"
	mkdir -p "$WORK/mounted"
	mount "$loop" "$WORK/mounted"
	refused "is mounted at \"$WORK/mounted\"" "type=raw_block,device_path=$loop,format=true"
	umount "$WORK/mounted"
fi
