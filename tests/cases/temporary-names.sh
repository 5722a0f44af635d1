#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A temporary name is visible while it is written, never in L2, gone with the mount; a rename commits it. An ordinary
# name is invisible until its commit.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK"
mkchunk "$WORK/data" 3M
hash=$(chunk_hash 0)

i=0
for temporary in ".$hash.tmp.4711" "$hash.tmp" "$hash.temp" "$hash.part" "$hash~" "$hash.act" "$hash.tmp.1" "$hash.tmpAb12_x" \
	".hidden"; do
	final=$RANK/$(chunk_hash "$i" final)
	start_client "w$i" "$CLIENTS/hold-writer" "$RANK/$temporary" "$SEED" 3M
	client_hear "w$i" written
	expect_errno 0 stat "$RANK/$temporary"
	is_listed "$RANK" "$temporary" || fail "$temporary is not listed"
	client_say "w$i" close
	client_hear "w$i" closed
	assert_same "$WORK/data" "$RANK/$temporary"
	expect_errno ENOENT stat "$final"
	mv -T "$RANK/$temporary" "$final"
	expect_errno ENOENT stat "$RANK/$temporary"
	assert_same "$WORK/data" "$final"
	i=$((i + 1))
done
assert_eq "$i" "$(ls -A "$RANK" | wc -l)" "objects after the renames"

# Renamed while it is still being written: commits when it is closed.
open=$(chunk_hash open)
start_client open "$CLIENTS/hold-writer" "$RANK/.$open.tmp" "$SEED" 3M
client_hear open written
mv -T "$RANK/.$open.tmp" "$RANK/$open"
expect_errno ENOENT open-read "$RANK/$open"
client_say open close
client_hear open closed
assert_same "$WORK/data" "$RANK/$open"

# An ordinary name is invisible until its commit.
late=$(chunk_hash late)
start_client late "$CLIENTS/hold-writer" "$RANK/$late" "$SEED" 3M
client_hear late written
expect_errno ENOENT stat "$RANK/$late"
! is_listed "$RANK" "$late" || fail "$late is listed before its commit"
client_say late close
client_hear late closed
assert_same "$WORK/data" "$RANK/$late"

# The first complete object wins; the rename of a second one is accepted.
mkchunk "$WORK/second" 3M 1
cp "$WORK/second" "$RANK/.second.tmp"
mv -T "$RANK/.second.tmp" "$RANK/$late"
assert_same "$WORK/data" "$RANK/$late"
expect_errno ENOENT stat "$RANK/.second.tmp"
# Unless it was asked not to replace.
cp "$WORK/second" "$RANK/.second.tmp"
expect_errno EEXIST rename-noreplace "$RANK/.second.tmp" "$RANK/$late"
expect_errno EINVAL rename-exchange "$RANK/.second.tmp" "$RANK/$late"
# To a name that is no name: refused, and the temporary file stays.
expect_errno EINVAL rename "$RANK/.second.tmp" "$RANK/not-a-hash"
assert_same "$WORK/second" "$RANK/.second.tmp"

# A rename into a prefix directory appends.
mkdir "$RANK/p"
cp "$WORK/second" "$RANK/.other.tmp"
mv -T "$RANK/.other.tmp" "$RANK/p/$(chunk_hash other)"
mv -T "$RANK/.second.tmp" "$RANK/p/$(chunk_hash second)"
expect_output "$(chunk_hash other; chunk_hash second)" ls -U "$RANK/p"
assert_same "$WORK/second" "$RANK/$(chunk_hash second)"

# Never published: a name that was not written, an empty one.
empty=$(chunk_hash empty)
: >"$RANK/$empty"
expect_errno ENOENT stat "$RANK/$empty"

cp "$WORK/data" "$RANK/.left.tmp"
n=$(find "$RANK" -maxdepth 1 -type f ! -name '.*' | wc -l)
restart_fs
expect_errno ENOENT stat "$RANK/.left.tmp"
assert_eq "$n" "$(find "$L2" -maxdepth 1 -name '*.data' | wc -l)" "objects in L2"
assert_eq "$n" "$(find "$RANK" -maxdepth 1 -type f | wc -l)" "objects after a restart"
assert_eq "" "$(find "$L2" -name '*tmp*' -o -name '.*.part')" "temporary files in L2"
stop_fs
