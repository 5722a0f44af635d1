#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T24, 7.5 million files in one directory (SGLang #28653, PR 28654, 28750): a rank directory and a plain one with very
# many objects in L2: readdir streams, complete, with types and stable offsets while names come and go; a stat costs
# what it costs in a small directory, whether the name is there or not; what listing and looking at all of them took
# is given back when the kernel forgets them. That of a small one has the attributes as well.
# (soak/T24-million-files.sh: with a million.)
#
# not-in: user: the kernel's caches are dropped
# timeout: 180

. "$(dirname "$0")/../lib.sh"
require_cmd python3
[[ -w /proc/sys/vm/drop_caches ]] || skip "the kernel's caches cannot be dropped here"

N_FILES=${N_FILES:-25000}
# Of resident memory, after all: it is 64 MiB for a million.
GROWTH_BYTES=${GROWTH_BYTES:-$((8 << 20))}
STEM=meta-llama-SEP-Llama-3.1-8B@0x0100010

directory() {
	python3 "$SRC/tests/clients/large-directory.py" "$@" || fail "$*"
}

resident_bytes() {
	awk '$1 == "VmRSS:" { print $2 * 1024 }' "/proc/$DAEMON_PID/status"
}

drop_caches() {
	echo 2 >/proc/sys/vm/drop_caches
}

grown_at_most() {
	drop_caches
	grown=$(($(resident_bytes) - before))
	((grown <= GROWTH_BYTES))
}

# On a disk the files would take longer than all the rest, and dropping them as well.
mount -t tmpfs -o nr_inodes=0 none "$L2" || skip "no tmpfs"
mkdir -p "$L2"/plain/{small,large}
directory prepare "$L2/${STEM}0@0@%.data" "$N_FILES"
directory prepare "$L2/plain/large/%.bin" "$N_FILES"
directory prepare "$L2/${STEM}1@0@%.data" 1000
directory prepare "$L2/plain/small/%.bin" 1000
start_fs
wait_until 600 "the L2 is listed" status_is l2.0.listed yes
small_rank=$MNT/$MODEL/@01000101
before=$(resident_bytes)

directory list "$RANK" "$N_FILES"
directory stat "$RANK" "$N_FILES"
directory list "$MNT/large" "$N_FILES" .bin
# Each would be an inode that the kernel keeps.
assert_eq 0 "$(stat_counter mount_entries_with_attributes)" "attributes in listings of large directories"
directory stat "$MNT/large" "$N_FILES" .bin
assert_eq "0 0" "$(stat_counter mount_lookups_asked_l2) $(stat_counter loads)" "lookups asked of L2, and loads"
# A sanitizer keeps what is freed.
if [[ $KVC_TEST_MODE != [at]san ]]; then
	wait_until 30 "the daemon has given back its memory" grown_at_most
	echo "grown by $((grown >> 10)) KiB in all"
fi

drop_caches
directory cost "$DAEMON_PID" "$small_rank" "$RANK"
directory cost "$DAEMON_PID" "$MNT/small" "$MNT/large" .bin
# Absent ones are asked of L2, which others may write to; each once.
assert_eq 4000 "$(stat_counter mount_lookups_asked_l2)" "lookups asked of L2"

directory change "$RANK" "$N_FILES"
directory change "$MNT/large" "$N_FILES" .bin
stop_fs

# Of a small directory a listing tells them, and nothing more is asked where nobody else writes to L2.
start_bare --l2-adapter "type=fs,base_path=$L2,shared=false"
mkdir "$MNT/few"
for ((i = 0; i < 40; i++)); do
	"$CLIENTS/pattern" "$i" 4K >"$MNT/few/$i"
done
# What was only just committed is not told yet.
is_told() {
	local lookups told
	drop_caches
	ls "$MNT" "$MNT/$MODEL" >"$WORK/ls"
	lookups=$(stat_counter mount_lookups)
	told=$(stat_counter mount_entries_with_attributes)
	ls -l "$1" >"$WORK/ls"
	assert_eq 40 "$(awk '$5 == 4096' "$WORK/ls" | wc -l)" "files of 4096 bytes in $1"
	(($(stat_counter mount_entries_with_attributes) - told == 40 && $(stat_counter mount_lookups) - lookups <= 8))
}
wait_until 20 "ls -l of 40 files asks for no name" is_told "$MNT/few"
stop_fs
