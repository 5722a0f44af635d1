#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T14, LMCache with O_DIRECT, which opens its temporary file without O_TRUNC: a longer one of an earlier store is there.
# As on any file system it is written over, and what is beyond the new end stays. What a killed writer left never becomes
# a part of a block: who writes into it is told at close, removes it, and stores as before. With the mount it is gone.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
dir=$MNT/lmcache
mkdir -p "$dir" "$RANK"
begin owner writer dead

# store NAME: 4096 bytes by way of NAME.tmp.
store() {
	step writer 0 open "$1.tmp" wcd
	step writer 0 write 2 4096
	step writer 0 close
	step writer 0 rename "$1.tmp" "$1"
}

for name in "$dir/m@0x01000100@0@$(chunk_hash 0).data" "$RANK/$(chunk_hash 0)"; do
	step owner 0 open "$name.tmp" wc
	step owner 0 write 1 8192
	step owner 0 close
	store "$name"
	{
		"$CLIENTS/pattern" 2 4096
		"$CLIENTS/pattern" 1 8192 | tail -c 4096
	} >"$WORK/expected"
	assert_same "$WORK/expected" "$name"
done

name=$RANK/$(chunk_hash 1)
step dead 0 open "$name.tmp" wc
step dead 0 write 1 8192
kill_client dead
step writer 0 open "$name.tmp" wcd
step writer 0 write 2 4096
step writer EIO close
step writer EIO rename "$name.tmp" "$name"
expect_errno ENOENT stat "$name"
step writer 0 unlink "$name.tmp"
store "$name"
expect_data "$name" 2 4096

name=$dir/m@0x01000100@0@$(chunk_hash 2).data
for how in stop_fs kill_fs; do
	step owner 0 open "$name.tmp" wc
	step owner 0 write 1 8192
	step owner 0 close
	$how
	start_fs
	store "$name"
	expect_data "$name" 2 4096
done
stop_fs
