#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Plain files, any path with no rank in it, are files as elsewhere: made, read, written again, appended to, cut,
# renamed and removed, under names of any bytes; stored below L2/plain, read back after eviction and restart.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# tree DIRECTORY: its files with their sums, quoted, sorted.
tree() {
	(cd "$1" && find . -type f -print0 | sort -z | xargs -0r sha256sum)
}

start_fs
plain=$MNT/hicache

# Directories.
expect_errno ENOENT create "$plain/file"
mkdir -p "$plain/a/b/c" "$plain/e"
expect_errno EEXIST mkdir "$plain/a"
expect_errno ENOTEMPTY rmdir "$plain/a"
expect_errno 0 rmdir "$plain/e"
expect_errno ENOENT stat "$plain/e"
expect_errno ENOENT rmdir "$plain/e"
expect_output a ls -A "$plain"

# A file in the root, one in a directory, one beside a rank; no hash is special here.
mkdir -p "$RANK"
declare -A paths=([root]=$MNT/root.bin [nested]=$plain/a/b/c/file [beside]=$MNT/$MODEL/config.json [hash]=$plain/$(chunk_hash 0)
	[odd]=$plain/ABCDEF012)
for word in "${!paths[@]}"; do
	echo "$word" >"${paths[$word]}"
done
for word in "${!paths[@]}"; do
	expect_output "$word" cat "${paths[$word]}"
done
expect_errno ENOTDIR stat "$MNT/root.bin/x"
expect_errno ENOTDIR create "$MNT/root.bin/x"
expect_errno EEXIST mkdir "$MNT/root.bin"
expect_errno EISDIR create "$plain/a"
expect_errno EISDIR unlink "$plain/a"
expect_errno ENOTDIR rmdir "$MNT/root.bin"

# Empty: a file. One whose declared tail was never written is not complete, and is none.
: >"$plain/empty"
assert_eq 0 "$(stat -c %s "$plain/empty")" "size of an empty file"
truncate -s 3M "$plain/declared"
expect_errno ENOENT stat "$plain/declared"
touch "$plain/touched"
expect_output "" cat "$plain/touched"

# Written again, appended to, cut.
mkchunk "$WORK/one" 3M 1
mkchunk "$WORK/two" 1M 2
cp "$WORK/one" "$plain/file"
assert_same "$WORK/one" "$plain/file"
cp "$WORK/two" "$plain/file"
assert_same "$WORK/two" "$plain/file"
cat "$WORK/one" >>"$plain/file"
cat "$WORK/two" "$WORK/one" >"$WORK/both"
assert_same "$WORK/both" "$plain/file"
truncate -s 1M "$plain/file"
assert_same "$WORK/two" "$plain/file"
printf middle | dd of="$plain/file" bs=1 seek=1000 conv=notrunc status=none
printf middle | dd of="$WORK/two" bs=1 seek=1000 conv=notrunc status=none
assert_same "$WORK/two" "$plain/file"
echo line >>"$plain/log"
echo line >>"$plain/log"
expect_output $'line\nline' cat "$plain/log"

# .tmp and rename, as Python's tempfile and os.replace do.
cp "$WORK/one" "$plain/file.tmp"
mv -fT "$plain/file.tmp" "$plain/file"
assert_same "$WORK/one" "$plain/file"
expect_errno ENOENT stat "$plain/file.tmp"

# Names of any bytes.
names=$plain/names
mkdir "$names"
long=$(printf 'n%.0s' {1..1023})
long_utf8=$(printf 'ü%.0s' {1..500})
declare -a odd=(' ' 'a b' $'new\nline' $'tab\there' '-rf' '*' '%2F' '%' '\' "quo'te\"s" $'\xff\xfe' 'ünïcode' 'a@01000100' 'x.data'
	'x.kvc' 'con:' "${long:0:255}" "${long:0:256}" "$long" "$long_utf8" $'\x01')
i=0
for name in "${odd[@]}"; do
	echo "$i ${name:0:20}" >"$names/$name" || fail "a name of ${#name} characters: ${name@Q}"
	i=$((i + 1))
done
n_odd=$i
assert_eq "$n_odd" "$(find "$names" -mindepth 1 -printf x | wc -c)" "names listed"
expect_errno ENAMETOOLONG create "$names/${long}n"
expect_errno ENAMETOOLONG mkdir "$names/${long}n"
mkdir "$names/dir with space" "$names/"$'dir\nnewline' "$names/${long:0:300}.d"
echo deep >"$names/${long:0:300}.d/${long:0:400}"
echo newline >"$names/"$'dir\nnewline'/$'file\nnewline'

# The same name as a file, gone, then a directory, and the other way round.
echo file >"$plain/turn"
sync "$plain/turn"
rm "$plain/turn"
mkdir "$plain/turn"
echo inside >"$plain/turn/inside"
sync "$plain/turn/inside"
rm "$plain/turn/inside"
rmdir "$plain/turn"
echo again >"$plain/turn"
expect_output again cat "$plain/turn"

# Stored under the same path, byte by byte.
control flush /
for path in hicache/file hicache/a/b/c/file root.bin "$MODEL/config.json" hicache/empty hicache/turn "hicache/names/a b"; do
	assert_same "$MNT/$path" "$L2/plain/$path"
done

# Evicted and read back; then after a restart.
tree "$MNT/hicache" >"$WORK/tree"
stat_line=$(stat -c '%s %Y %a' "$plain/file")
control evict /
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
tree "$MNT/hicache" >"$WORK/tree.evicted"
assert_same "$WORK/tree" "$WORK/tree.evicted"
mkdir -p "$plain/empty directory"
restart_fs
tree "$MNT/hicache" >"$WORK/tree.restarted"
assert_same "$WORK/tree" "$WORK/tree.restarted"
assert_eq "$stat_line" "$(stat -c '%s %Y %a' "$plain/file")" "attributes after a restart"
[[ -d "$plain/empty directory" ]] || fail "a directory is gone after a restart"
expect_output beside cat "$MNT/$MODEL/config.json"
expect_output root cat "$MNT/root.bin"

# Removed, for good.
rm "$plain/file" "$MNT/root.bin" "$plain/log"
rm -r "$names" "$plain/a"
expect_errno ENOENT stat "$plain/file"
expect_errno ENOENT unlink "$plain/file"
wait_until 10 "removed files leave L2" eval '[[ ! -e $L2/plain/root.bin && ! -e $L2/plain/hicache/file && ! -d $L2/plain/hicache/names ]]'
restart_fs
expect_errno ENOENT stat "$plain/file"
expect_errno ENOENT stat "$MNT/root.bin"
expect_errno ENOENT stat "$names"
expect_output again cat "$plain/turn"
rm -r "$plain" "$MNT/meta-llama"
expect_output "" ls "$MNT"
restart_fs
expect_output "" ls "$MNT"
assert_eq "" "$(find "$L2" -type f)" "files in L2 at the end"
stop_fs
