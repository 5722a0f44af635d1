#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A directory that LMCache's fs adapter has filled is mounted as it is: find lists its objects under their paths, their
# bytes read equal, and what is not LMCache's is neither shown nor touched.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# File name in LMCache's directory, path below the mount point, size in bytes.
declare -a table=(
	"gpt2@0x01000100@0@9f86d081.data gpt2/@01000100/9f86d081 1"
	"meta-llama-SEP-Llama-3.1-8B@0x01000100@0@ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c.data meta-llama/Llama-3.1-8B/@01000100/ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c 3145728"
	"meta-llama-SEP-Llama-3.1-8B@0x01000100@0@0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442.data meta-llama/Llama-3.1-8B/@01000100/0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442 4096"
	"Qwen-SEP-Qwen2.5-72B-Instruct@0x08030803@0@ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c.data Qwen/Qwen2.5-72B-Instruct/@08030803/ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c 1234567"
	"Qwen-SEP-Qwen2.5-72B-Instruct@0x08030803@1@ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c.data Qwen/Qwen2.5-72B-Instruct/@08030803@1/ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c 4097"
	"Qwen-SEP-Qwen2.5-72B-Instruct@0x08030803@1a@36317defccb8df3ec7f8ae18211cd03656e004af2a2a22fc5ee6513f9fdeb7e3.data Qwen/Qwen2.5-72B-Instruct/@08030803@1a/36317defccb8df3ec7f8ae18211cd03656e004af2a2a22fc5ee6513f9fdeb7e3 65536"
	"Qwen-SEP-Qwen2.5-72B-Instruct@0x08040804@0@ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c.data Qwen/Qwen2.5-72B-Instruct/@08040804/ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c 777777"
	"Qwen-SEP-Qwen2.5-72B-Instruct@0x08030803@0@0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442@tenant-a.data Qwen/Qwen2.5-72B-Instruct/@08030803@0@tenant-a/0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442 8191"
	"Qwen-SEP-Qwen2.5-72B-Instruct@0x08030803@2@0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442@tenant-b.1.data Qwen/Qwen2.5-72B-Instruct/@08030803@2@tenant-b.1/0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442 8192"
	"a-SEP-b-SEP-c-SEP-d@0xffffffff@0@ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442.data a/b/c/d/@ffffffff/ba6e04391775aa27f39df72198b6394dbf99fc52a39f26acbd5f3d78983b745c0f276ace01c571d7587f5417db6f19cb95c1ce4891f3cee9852d278ca385c442 99999"
	"-SEP-models-SEP-mistral-7b@0x02010201@0@36317defccb8df3ec7f8ae18211cd03656e004af2a2a22fc5ee6513f9fdeb7e3.data %2Fmodels/mistral-7b/@02010201/36317defccb8df3ec7f8ae18211cd03656e004af2a2a22fc5ee6513f9fdeb7e3 50000"
)

i=0
for row in "${table[@]}"; do
	read -r name _ bytes <<<"$row"
	mkchunk "$L2/$name" "$bytes" "$i"
	i=$((i + 1))
done
# What others may have left there.
echo foreign >"$L2/README.txt"
echo foreign >"$L2/notes.data"
echo foreign >"$L2/gpt2@0x0100010@0@9f86d081.data"
echo foreign >"$L2/gpt2@0x01000100@0@9F86D081.data"
before=$(cd "$L2" && find . -type f -name '*.*' -printf '%P %s\n' | sort)

start_fs
assert_eq "$(for row in "${table[@]}"; do
	read -r _ path _ <<<"$row"
	echo "$path"
done | sort)" "$(cd "$MNT" && find . -path ./.kvcache -prune -o -type f -printf '%P\n' | sort)" "find"
assert_eq 0 "$(stat_counter loads)" "loads after find"
for row in "${table[@]}"; do
	read -r name path bytes <<<"$row"
	assert_eq "$bytes" "$(stat -c %s "$MNT/$path")" "size of $path"
	assert_same "$L2/$name" "$MNT/$path"
done
stop_fs
assert_eq "$before" "$(cd "$L2" && find . -type f -name '*.*' -printf '%P %s\n' | sort)" "the directory afterwards"
