#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Redis as L2: what is written through the mount is there under LMCache's names with the very bytes, as redis-cli sees
# it; it comes back equal when L1 is empty and after a restart, a plain file with mode, time and extended attributes; it
# is listed, read as a prefix, and deleted.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd redis-server
require_cmd redis-cli
require_cmd setfattr
grep -q '^  resp ' <<<"$("$KVCACHEFS" --help)" || skip "built without hiredis"

# In WORK, which may be too long a path for a socket.
socket_dir=$(mktemp -d)
redis=
end() {
	case_ended || true # first: it looks at the exit status
	[[ -z $redis ]] || kill -KILL "$redis" 2>/dev/null || true
	rm -rf "$socket_dir"
}
trap end EXIT
redis-server --port 0 --unixsocket "$socket_dir/s" --dir "$socket_dir" --save '' --appendonly no >"$WORK/redis.log" 2>&1 &
redis=$!

cli() {
	redis-cli -s "$socket_dir/s" "$@"
}
answers() {
	[[ $(cli PING 2>/dev/null) == PONG ]]
}
wait_until 20 "redis-server answers" answers

start_resp() {
	start_bare --l2-adapter "type=resp,unix_socket=$socket_dir/s"
}

N=100
mapfile -t hashes < <(for ((i = 0; i < N; i++)); do chunk_hash "$i"; done)
start_resp
mkdir -p "$RANK/prompt"
for ((i = 0; i < N; i++)); do
	mkchunk "$WORK/data.$i" $((64 * 1024 + i)) "$i"
done
(cd "$WORK" && for ((i = 0; i < N; i++)); do cat "data.$i" && echo; done) >"$WORK/lines"
(cd "$WORK" && for ((i = 0; i < N; i++)); do mv "data.$i" "${hashes[i]}"; done)
(cd "$WORK" && cat "${hashes[@]}" >all && cp "${hashes[@]}" "$RANK/prompt/")
echo plain >"$MNT/note.txt"
chmod 640 "$MNT/note.txt"
touch -d '2001-02-03 04:05:06Z' "$MNT/note.txt"
setfattr -n user.x -v "a value" "$MNT/note.txt"
chmod 600 "$RANK/${hashes[1]}"
control flush /
assert_eq ok "$(status l2.0.server)" l2.0.server

# redis-cli adds a newline to each value that it prints.
cli MGET "${hashes[@]/#/$MODEL@01000100@0@}" | cmp - "$WORK/lines" || fail "values of the chunks"
assert_eq plain "$(cli GET kvcfs:1:note.txt)" "value of the plain file"
assert_eq "$N" "$(cli STRLEN "kvcfs:2:$MODEL/@01000100/prompt" | awk -v n="${hashes[0]}" '{ print $1 / (length(n) + 1) }')" "chunks in the chain"
# And the attributes of the file, the chain, and each chunk that is not 0644 or root's.
chunks=1
((EUID == 0)) || chunks=$N
assert_eq $((N + 2 + 2 + chunks)) "$(cli DBSIZE)" DBSIZE

# read_back WHEN: all of it, out of the server.
read_back() {
	(cd "$RANK" && cat "${hashes[@]}") | cmp - "$WORK/all" || fail "the chunks $1"
	assert_eq plain "$(cat "$MNT/note.txt")" "the plain file $1"
	expect_output "640 981173106" stat -c '%a %Y' "$MNT/note.txt"
	expect_output "a value" getfattr --absolute-names --only-values -n user.x "$MNT/note.txt"
	expect_output 600 stat -c %a "$RANK/${hashes[1]}"
	expect_output 644 stat -c %a "$RANK/${hashes[2]}"
}
evict /
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
read_back "after evict"

stop_fs
start_resp
assert_eq "$(printf '%s\n' "${hashes[@]}" | sort)" \
	"$(find "$RANK" -maxdepth 1 -type f -printf '%f\n' | sort)" "entries after a restart"
assert_eq "$(printf '%s\n' "${hashes[@]}")" \
	"$(cat "$RANK/prompt/.keys")" "the chain after a restart"
(cd "$RANK/prompt" && cat "${hashes[@]}") | cmp - "$WORK/all" || fail "the prefix after a restart"
read_back "after a restart"

# What LMCache has written meanwhile.
printf theirs | cli -x SET "$MODEL@01000100@0@00112233" >/dev/null
is_theirs() {
	[[ $(cat "$RANK/00112233" 2>/dev/null) == theirs ]]
}
wait_until 20 "an object of somebody else is found" is_theirs

mv "$MNT/note.txt" "$MNT/renamed.txt"
rm "$RANK/${hashes[0]}" "$RANK/00112233"
control flush /
is_renamed() {
	[[ $(cli GET kvcfs:1:renamed.txt) == plain && $(cli EXISTS kvcfs:1:note.txt) == 0 ]]
}
is_deleted() {
	[[ $(cli EXISTS "$MODEL@01000100@0@${hashes[0]}" "$MODEL@01000100@0@00112233") == 0 ]]
}
wait_until 20 "the plain file is renamed" is_renamed
wait_until 20 "two objects are deleted" is_deleted
expect_errno ENOENT open-read "$RANK/${hashes[0]}"

# Nothing that nobody needs stays: the chain and the file, with their attributes, and that of one chunk.
((EUID == 0)) || chunks=$((N - 1))
assert_eq $((N - 1 + 2 + 2 + chunks)) "$(cli DBSIZE)" "DBSIZE at the end"
stop_fs
