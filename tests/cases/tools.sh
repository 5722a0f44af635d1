#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The everyday tools do what their user expects on a tree with models, ranks, prefix directories and plain files: ls,
# find, du, df, tar, cp, rsync, mv, shell completion. What only looks loads nothing.
#
# parallel
# timeout: 180

. "$(dirname "$0")/lib.sh"

require_cmd rsync
require_cmd tar
model=$MNT/meta-llama/Llama-3.1-8B
gpt=$MNT/gpt2/@01000100

# make_tree: what all of it is done with. The chain's order is not the alphabet's.
make_tree() {
	local i
	mkdir -p "$RANK" "$model/@01010100" "$gpt" "$MNT/hicache/a b/c"
	mkdir "$RANK/system prompt"
	chain=()
	for i in 5 3 4 1; do
		chain+=("$(chunk_hash "$i")")
		"$CLIENTS/pattern" "$i" 300K >"$RANK/system prompt/${chain[-1]}"
	done
	for i in 6 7; do
		"$CLIENTS/pattern" "$i" 300K >"$RANK/$(chunk_hash "$i")"
	done
	"$CLIENTS/pattern" 8 300K >"$model/@01010100/$(chunk_hash 8)"
	"$CLIENTS/pattern" 9 300K >"$gpt/$(chunk_hash 9)"
	"$CLIENTS/pattern" 10 5M >"$MNT/hicache/large.bin"
	echo small >"$MNT/hicache/a b/small file"
	echo odd >"$MNT/hicache/a b/c/"$'new\nline'
	: >"$MNT/hicache/empty"
	echo '{}' >"$model/config.json"
}

# everything DIRECTORY: type, size and name of all below.
everything() {
	(cd "$1" && find . -name .kvcache -prune -o -printf '%y %s %P\0' | sed -z 's/^d [0-9]*/d/' | sort -z | tr '\0' '\n')
}

# loads_nothing WHAT FUNCTION: a directory that a busy machine holds open for 50 ms begins its loads, rightly; so the
# mount is looked at again then.
loads_nothing() {
	local try loads
	for ((try = 0; try < 5; try++)); do
		"$2"
		loads=$(stat_counter loads)
		((loads > 0)) || return 0
		restart_fs
	done
	fail "$1: $loads loads, and some each time"
}

declare -a chain=()
start_fs
make_tree
restart_fs

# ---- What only looks ----

look_at_all() {
	ls -laR "$MNT" >"$WORK/ls" || fail "ls -laR"
	for name in "$(chunk_hash 6)" "${chain[2]}" .keys large.bin "small file" config.json @01010100 gpt2; do
		grep -qF -- "$name" "$WORK/ls" || fail "ls -laR does not show $name"
	done
}
loads_nothing "ls -laR" look_at_all

find_and_count() {
	expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$RANK/system prompt"
	expect_output "$(printf '%s\n' "${chain[@]}" | sort)" ls "$RANK/system prompt"
	everything "$MNT" >"$WORK/tree"
	# Four chunks in the prefix directory are in the rank directory as well.
	assert_eq 17 "$(find "$MNT" -name .kvcache -prune -o -type f ! -name .keys -printf x | wc -c)" "files"
	find "$MNT" -name .kvcache -prune -o -type f -size +1M -print >"$WORK/found"
	assert_eq "$MNT/hicache/large.bin" "$(cat "$WORK/found")" "find -size +1M"
	assert_eq "$MNT/hicache/empty" "$(find "$MNT/hicache" -type f -empty)" "find -empty"
	assert_eq $((5 << 20)) "$(stat -c %s "$MNT/hicache/large.bin")" "size of a file that is only in L2"
	du -sb "$MNT/hicache" >"$WORK/du"
	assert_le $((5 << 20)) "$(cut -f 1 "$WORK/du")" "du -b of what is only in L2"
	# du without -b is what is in memory: next to nothing now.
	assert_le "$(du -sk "$MNT/hicache" | cut -f 1)" 256 "KiB of du of what is only in L2"
	df -B1 --output=size,avail,target "$MNT" >"$WORK/df"
	cat "$WORK/df"
	read -r size avail target < <(tail -n 1 "$WORK/df")
	assert_eq "$MNT" "$target" "mount point in df"
	assert_le $((1 << 30)) "$size" "size in df"
	assert_le $((size / 100)) "$avail" "avail in df"
}
loads_nothing "find, du, df" find_and_count

# Completion, as a person types it.
complete_names() {
	hash=$(chunk_hash 6)
	assert_eq "$RANK/$hash" "$(bash --norc -c 'compgen -f "$1"' - "$RANK/${hash:0:20}")" "completion of a hash"
	assert_eq "$MNT/hicache/a b" "$(bash --norc -c 'compgen -d "$1"' - "$MNT/hicache/a")" "completion of a directory"
	assert_eq "$MNT/gpt2" "$(bash --norc -c 'compgen -d "$1"' - "$MNT/g")" "completion of a model"
	assert_eq "" "$(bash --norc -c 'compgen -f "$1"' - "$RANK/zz" || true)" "completion of nothing"
	for path in "$MNT"/*/*/@*/*; do
		[[ -e $path ]] || fail "the shell's glob finds $path"
	done
	[[ $(echo "$MNT"/hicache/*) == "$MNT/hicache/a b $MNT/hicache/empty $MNT/hicache/large.bin" ]] || fail "glob: $(echo "$MNT"/hicache/*)"
	rm -f "$RANK/does-not-exist" 2>/dev/null || true
}
loads_nothing "completion" complete_names

# ---- Reading ----

# du shows what is resident.
sum=$(sha "$MNT/hicache/large.bin")
"$CLIENTS/pattern" 10 5M >"$WORK/large"
assert_eq "$(sha "$WORK/large")" "$sum" "sha256 of a file that was only in L2"
wait_until 3 "du shows what was loaded" eval '(($(du -sk "$MNT/hicache/large.bin" | cut -f 1) >= 5120))'

# find -newer.
sleep 0.02
echo reference >"$MNT/hicache/reference"
assert_eq "" "$(find "$MNT" -name .kvcache -prune -o -type f -newer "$MNT/hicache/reference" -print)" "find -newer"
sleep 0.02
echo newer >"$MNT/hicache/newer"
assert_eq "$MNT/hicache/newer" "$(find "$MNT" -name .kvcache -prune -o -type f -newer "$MNT/hicache/reference" -print)" "find -newer"
rm "$MNT/hicache/newer" "$MNT/hicache/reference"

# tar out of the mount, and into it again, as another model.
tar -cf "$WORK/model.tar" -C "$model" . || fail "tar c of a model"
mkdir "$WORK/out" "$MNT/unpacked"
tar -xf "$WORK/model.tar" -C "$WORK/out" || fail "tar x to a disk"
diff -r "$model" "$WORK/out" || fail "tar of a model differs"
tar -xf "$WORK/model.tar" -C "$MNT/unpacked" || fail "tar x into the mount"
diff -r "$model" "$MNT/unpacked" || fail "what tar unpacked in the mount differs"
expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$MNT/unpacked/@01000100/system prompt"
tar -cf - -C "$MNT/hicache" . | tar -xf - -C "$WORK/out" || fail "tar through a pipe"
cmp "$MNT/hicache/a b/small file" "$WORK/out/a b/small file"
# Sparse archives do not take what is not resident for a hole.
evict "$MNT/hicache/large.bin"
tar -cSf "$WORK/sparse.tar" -C "$MNT/hicache" large.bin
tar -xOf "$WORK/sparse.tar" large.bin | cmp - "$WORK/large"

# cp -r, of everything, out and in.
mkdir "$WORK/copy"
cp -r "$MNT/meta-llama" "$MNT/gpt2" "$MNT/hicache" "$WORK/copy/" || fail "cp -r out of the mount"
diff -r "$MNT/hicache" "$WORK/copy/hicache"
diff -r "$MNT/meta-llama" "$WORK/copy/meta-llama"
cp -r "$WORK/copy/hicache" "$MNT/hicache.2" || fail "cp -r into the mount"
diff -r "$MNT/hicache" "$MNT/hicache.2"
mkdir -p "$MNT/cp"
cp -r "$model" "$MNT/cp/" || fail "cp -r of a model with a prefix directory"
diff -r "$model" "$MNT/cp/Llama-3.1-8B"
expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$MNT/cp/Llama-3.1-8B/@01000100/system prompt"
# A prefix directory by itself, within its rank, into another one, and from a disk in another order
# (to where its objects are not yet: cp goes by the disk's inode numbers, and may write .keys first).
cp -r "$RANK/system prompt" "$RANK/copied prompt" || fail "cp -r of a prefix directory"
expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$RANK/copied prompt"
cp -r "$RANK/system prompt" "$gpt/prompt" || fail "cp -r of a prefix directory to another model"
expect_output "$(printf '%s\n' "${chain[@]}")" cat "$gpt/prompt/.keys"
expect_data "$gpt/${chain[0]}" 5 300K
restored=$MNT/restored/@01000100
mkdir -p "$restored"
cp -r "$WORK/copy/meta-llama/Llama-3.1-8B/@01000100/system prompt" "$restored/from disk" || fail "cp -r of a prefix directory from a disk"
expect_output "$(printf '%s\n' "${chain[@]}")" ls -U "$restored/from disk"
cp -a "$MNT/hicache/a b" "$MNT/hicache/preserved" || fail "cp -a"
assert_eq "$(stat -c '%Y %a' "$MNT/hicache/a b/small file")" "$(stat -c '%Y %a' "$MNT/hicache/preserved/small file")" "cp -a keeps time and mode"

# rsync: the second time there is nothing to do, after an eviction and a restart as well.
mkdir "$MNT/sync" "$WORK/rsync"
rsync -a "$WORK/copy/hicache" "$MNT/sync/" || fail "rsync into the mount"
rsync -a "$model/" "$MNT/sync/model/" || fail "rsync of a model"
rsync -a --exclude .kvcache "$MNT/" "$WORK/rsync/" || fail "rsync out of the mount"
diff -r "$WORK/copy/hicache" "$MNT/sync/hicache"
diff -r "$model" "$MNT/sync/model"
expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$MNT/sync/model/@01000100/system prompt"
assert_eq "" "$(rsync -a --itemize-changes "$WORK/copy/hicache" "$MNT/sync/")" "second rsync into the mount"
assert_eq "" "$(rsync -a --itemize-changes "$model/" "$MNT/sync/model/")" "second rsync of a model"
assert_eq "" "$(rsync -a --itemize-changes --exclude .kvcache "$MNT/" "$WORK/rsync/")" "second rsync out of the mount"
restart_fs
rsync_nothing() {
	# The times of directories, and of .keys, which has its directory's, are not kept over a restart.
	assert_eq "" "$(rsync -aO --exclude .keys --itemize-changes "$WORK/copy/hicache" "$MNT/sync/")" "rsync into the mount after a restart"
	assert_eq "" "$(rsync -aO --exclude .keys --itemize-changes "$model/" "$MNT/sync/model/")" "rsync of a model after a restart"
	assert_eq "" "$(rsync -aO --exclude .keys --itemize-changes --exclude .kvcache "$MNT/" "$WORK/rsync/")" "rsync out of the mount after a restart"
}
loads_nothing "rsync with nothing to do" rsync_nothing

# mv: within the mount by rename where there is one, else by a copy.
mv "$MNT/hicache.2" "$MNT/hicache.3"
mv "$MNT/hicache.3/a b" "$MNT/hicache.3/z"
mv "$MNT/hicache.3/large.bin" "$MNT/hicache.3/z/"
cmp "$WORK/large" "$MNT/hicache.3/z/large.bin"
mv "$MNT/cp/Llama-3.1-8B" "$MNT/cp/Llama-4" || fail "mv of a model"
expect_errno ENOENT stat "$MNT/cp/Llama-3.1-8B"
expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$MNT/cp/Llama-4/@01000100/system prompt"
mv "$WORK/large" "$MNT/hicache.3/from-disk"
mv "$MNT/hicache.3/from-disk" "$WORK/large"
"$CLIENTS/pattern" 10 5M | cmp - "$WORK/large"

# rm -rf of what was made.
rm -rf "$MNT/unpacked" "$MNT/cp" "$MNT/sync" "$MNT/hicache.3" "$MNT/hicache/preserved" "$RANK/copied prompt" "$gpt/prompt" "$MNT/restored"
for i in 5 3 4 1; do
	rm -f "$gpt/$(chunk_hash "$i")"
done
everything "$MNT" >"$WORK/tree.left"
assert_same "$WORK/tree" "$WORK/tree.left"
stop_fs
