#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Options of the fs adapter, through a mount: directories in LMCache's names (old and new, of nixl_dynamic, in shards) are
# listed and read and written as LMCache would; max_capacity_gb holds while more is written; temporary files that a dead
# process left go when they are old enough, others and foreign files stay.
#
# parallel

. "$(dirname "$0")/lib.sh"
require_cmd python3

# fill DIRECTORY LAYOUT SHARDS: objects under the names that LMCache gives them, written from its documentation: prints
# a line each, its path below the mount point and its file.
fill() {
	python3 - "$@" <<-'PYTHON'
		import hashlib, os, sys

		base, layout, shards = sys.argv[1:]
		models = ["gpt2", "org/model_1.5-x", "/models/m_00000001_0"]
		for number, model in enumerate(models):
		    for rank in (0x01000100, 0xFFFFFFFF):
		        for group in (0, 0x1A):
		            for salt in ("", "tenant_a-1"):
		                digest = hashlib.sha256(f"{number} {rank} {group} {salt}".encode())
		                key = digest.hexdigest()[: 8 if number == 0 else 64]
		                at_salt = f"@{salt}" if salt else ""
		                if layout == "nixl_dynamic":
		                    name = f"{model.replace('/', '--')}_{rank:08x}_{group:x}_{key}{at_salt}.bin"
		                elif layout == "old":
		                    if group:
		                        continue
		                    name = f"{model.replace('/', '-SEP-')}@0x{rank:08x}@{key}{at_salt}.data"
		                else:
		                    name = f"{model.replace('/', '-SEP-')}@0x{rank:08x}@{group:x}@{key}{at_salt}.data"
		                if shards == "true":
		                    name = f"{key[0:2]}/{key[2:4]}/{name}"
		                path = os.path.join(base, name)
		                os.makedirs(os.path.dirname(path), exist_ok=True)
		                with open(path, "wb") as file:
		                    file.write((name.encode() + b"\n") * (97 + 50 * number))
		                if salt:
		                    component = f"@{rank:08x}@{group:x}@{salt}"
		                else:
		                    component = f"@{rank:08x}" + (f"@{group:x}" if group else "")
		                mounted = model if model[0] != "/" else "%2F" + model[1:]
		                print(f"{mounted}/{component}/{key} {name}")
	PYTHON
}

objects_listed() {
	(cd "$MNT" && find . -path ./.kvcache -prune -o -type f -printf '%P\n' | sort)
}

start_with() {
	start_bare --l2-adapter "type=fs,base_path=$L2$1" "${@:2}"
}

is_away() {
	[[ ! -e $1 ]]
}

# names LAYOUT SHARDS OPTIONS FILE [OPTIONS]: a directory filled in that layout is mounted with these options, a new object
# gets this file; then mounted again with the other ones.
names() {
	local path file table
	table=$(fill "$L2" "$1" "$2")
	mkdir -p "$L2/ab/cd"
	echo foreign | tee "$L2/README" "$L2/x.data" "$L2/x.bin" >"$L2/gpt2_1_0_9f86d081.bin"
	start_with "$3"
	assert_eq "$(cut -d' ' -f1 <<<"$table" | sort)" "$(objects_listed)" "what is listed ($*)"
	assert_eq 4 "$(status l2.0.foreign_files)" "foreign files ($*)"
	while read -r path file; do
		assert_same "$L2/$file" "$MNT/$path"
	done <<<"$table"
	# One deleted, one new.
	read -r path file <<<"$(tail -1 <<<"$table")"
	rm "$MNT/$path"
	wait_until 10 "$file is deleted" is_away "$L2/$file"
	mkdir -p "$MNT/org/new_model/@01000100"
	mkchunk "$MNT/org/new_model/@01000100/abcd0123" 100000 1
	stop_fs
	assert_same <(mkchunk /dev/stdout 100000 1) "$L2/$4"
	[[ ! -e $L2/$file ]] || fail "$file is back"
	assert_eq 4 "$(cat "$L2/README" "$L2/x.data" "$L2/x.bin" "$L2/gpt2_1_0_9f86d081.bin" | grep -c '^foreign$')" "foreign files afterwards"
	# The start after it lists the same, also when new objects go elsewhere.
	if (($# == 4)); then
		rm -rf "${L2:?}"/*
		return
	fi
	start_with "$5"
	assert_eq "$(grep -vF -- "$file" <<<"$table" | cut -d' ' -f1 | cat - <(echo org/new_model/@01000100/abcd0123) | sort)" \
		"$(objects_listed)" "what is listed after a restart ($*)"
	assert_same <(mkchunk /dev/stdout 100000 1) "$MNT/org/new_model/@01000100/abcd0123"
	stop_fs
	rm -rf "${L2:?}"/*
}

names new false ,layout=lmcache "org-SEP-new_model@0x01000100@0@abcd0123.data" ,shard_dirs=true
names old false ",relative_tmp_dir=tmp/dir,fsync=true" "org-SEP-new_model@0x01000100@0@abcd0123.data"
names nixl_dynamic false ,layout=nixl_dynamic "org--new_model_01000100_0_abcd0123.bin" ,layout=nixl_dynamic,shard_dirs=true
names nixl_dynamic true ,layout=nixl_dynamic,shard_dirs=true "ab/cd/org--new_model_01000100_0_abcd0123.bin"

# ---- max_capacity_gb -------------------------------------------------------------------------

# 16 MiB, and three times as much is written.
capacity=$((16 << 20))
echo foreign >"$L2/README"
start_with ,max_capacity_gb=0.015625
assert_eq "$capacity" "$(status l2.0.capacity_bytes)" "capacity"
mkdir -p "$MNT/m/@01000100" "$MNT/files"
mkchunk "$MNT/files/kept" 1000000 100
control flush /
most=0
for i in {1..48}; do
	mkchunk "$MNT/m/@01000100/$(printf %08x "$i")" 1048576 "$i"
	((i % 4 == 0)) || continue
	used=$(find "$L2" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')
	((used > most)) && most=$used
done
control flush /
assert_le "$most" $((capacity + 8)) "bytes in the directory, the foreign file's as well"
assert_le "$(status l2.0.used_bytes)" "$capacity" "used_bytes"
assert_eq 33 "$(status l2.0.evicted)" "evicted"
assert_eq 0 "$(status l2.0.store_errors)" "store errors"
stop_fs
assert_le "$(find "$L2" -type f -name '*.data' -printf '%s\n' | awk '{ n += $1 } END { print n }')" "$capacity" "bytes of chunks"
# What is left is right, and counted; what is not there is absent.
start_with ,max_capacity_gb=0.015625
assert_eq 15 "$(find "$MNT/m/@01000100" -type f | wc -l)" "chunks left"
for path in "$MNT/m/@01000100"/*; do
	assert_same <(mkchunk /dev/stdout 1048576 $((16#${path##*/}))) "$path"
done
[[ ! -e $MNT/m/@01000100/00000001 ]] || fail "an evicted chunk is there"
assert_same <(mkchunk /dev/stdout 1000000 100) "$MNT/files/kept"
mkchunk "$MNT/m/@01000100/$(printf %08x 99)" 1048576 99
control flush /
assert_le "$(status l2.0.used_bytes)" "$capacity" "used_bytes after a restart"
stop_fs
assert_eq foreign "$(cat "$L2/README")" "a foreign file"
rm -rf "${L2:?}"/*

# ---- Temporary files that are left over ------------------------------------------------------

mkdir -p "$L2/plain/d" "$L2/ab/cd" "$L2/tmp"
old=(.kvcfs.999999999.1.tmp plain/d/.kvcfs.999999999.2.tmp ab/cd/.kvcfs.999999999.3.tmp tmp/.kvcfs.999999999.4.tmp)
kept=(".kvcfs.$$.5.tmp" .kvcfs.999999999.6.tmp .kvcfs.999999999.7.tmp m@0x01000100@0@abcd.tmp .kvcfs.x.8.tmp)
for name in "${old[@]}" "${kept[@]}"; do
	echo bytes >"$L2/$name"
	touch -d '1 hour ago' "$L2/$name"
done
touch "$L2/.kvcfs.999999999.6.tmp"
exec 9<"$L2/.kvcfs.999999999.7.tmp"
flock -n 9
start_with ,relative_tmp_dir=tmp,orphan_age_s=600
wait_until 10 "the orphans are removed" status_is l2.0.orphans_removed "${#old[@]}"
stop_fs
exec 9<&-
for name in "${old[@]}"; do
	[[ ! -e $L2/$name ]] || fail "$name is still there"
done
for name in "${kept[@]}"; do
	[[ -e $L2/$name ]] || fail "$name is gone"
done

# ---- Bad values ------------------------------------------------------------------------------

for bad in layout=nixl shard_dirs=maybe relative_tmp_dir=../x relative_tmp_dir=/x max_capacity_gb=-1 max_capacity_gb=1G \
	fsync=perhaps orphan_age_s=-1; do
	if "$KVCACHEFS" --l1-size 64M --state-dir "$STATE" --l2-adapter "type=fs,base_path=$L2,$bad" "$MNT" 2>"$WORK/refused"; then
		fail "$bad was taken"
	fi
	grep -qF "${bad%%=*}" "$WORK/refused" || fail "$bad: the error does not name the option: $(cat "$WORK/refused")"
done
