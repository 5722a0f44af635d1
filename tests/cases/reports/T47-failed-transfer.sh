#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T47, SGLang HiCacheNixl, LMCache #962: a transfer that fails leaves a block without bytes, or with a part of them, under
# its final name. It is absent. And a block that is opened for reading and writing, and only read, is as it was.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/nixl/3f"
begin empty partial reader
object=$RANK/$(chunk_hash 0)
plain=$MNT/nixl/3f/$(chunk_hash 0)_model_0_1

absent() {
	expect_errno ENOENT stat "$1"
	expect_errno ENOENT open-read "$1"
	! is_listed "${1%/*}" "${1##*/}" || fail "$1 is listed"
}

# Nothing written. (An empty plain file is a file, as touch makes it.)
step empty 0 open "$object" rwcd
absent "$object"
step empty 0 close
absent "$object"
assert_eq 1 "$(stat_counter mount_writes_not_published_empty)" mount_writes_not_published_empty

# A part written, then an error.
for name in "$object" "$plain"; do
	step partial 0 open "$name" rwcd
	step partial 0 pwrite 1 4096 0
	step partial EFBIG limit 4096 pwrite 2 4096 4096
	step partial EIO limit 4096 close
	absent "$name"
done

# As it was: bytes, times, checksum, the file in L2.
state() {
	local name
	for name in "$object" "$plain"; do
		stat -c '%n %i %s %Y %y %Z %z' "$name"
		getfattr --absolute-names -n user.kvcache.crc32c "$name"
	done
	find "$L2" -type f \( -name '*.data' -o -path "$L2/plain/*" \) -printf '%P %i %s %T@\n' | sort
	stat_counter stores
	stat_counter mount_writes_published
}

for name in "$object" "$plain"; do
	"$CLIENTS/pattern" 3 8192 >"$name"
done
control flush /
before=$(state)
for name in "$object" "$plain"; do
	for flags in rw rwc rwcd; do
		step reader 0 open "$name" "$flags"
		step reader 0 check 3 8192
		step reader 0 close
	done
done
control flush /
assert_eq "$before" "$(state)" "what open with O_RDWR, pread and close have left"
restart_fs
expect_data "$object" 3 8192
expect_data "$plain" 3 8192
stop_fs
