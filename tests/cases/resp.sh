#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Redis as L2: what is written through the mount is there under LMCache's names with the very bytes, as redis-cli sees
# it; it comes back equal when L1 is empty and after a restart; it is listed, read as a prefix, and deleted.
#
# parallel
# soak

. "$(dirname "$0")/lib.sh"

require_cmd redis-server
require_cmd redis-cli
"$KVCACHEFS" --help | grep -q '^  resp ' || skip "built without hiredis"

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

N=20
start_resp
mkdir -p "$RANK/prompt"
for ((i = 0; i < N; i++)); do
	mkchunk "$WORK/data.$i" $((512 * 1024 + i)) "$i"
	cp "$WORK/data.$i" "$RANK/prompt/$(chunk_hash "$i")"
done
echo plain >"$MNT/note.txt"
control flush /
assert_eq ok "$(status l2.0.server)" l2.0.server

# redis-cli adds a newline to what it prints.
for ((i = 0; i < N; i++)); do
	cli GET "$MODEL@01000100@0@$(chunk_hash "$i")" | head -c -1 | cmp - "$WORK/data.$i" || fail "value of chunk $i"
done
assert_eq plain "$(cli GET kvcfs:1:note.txt)" "value of the plain file"
assert_eq "$N" "$(cli STRLEN "kvcfs:2:$MODEL/@01000100/prompt" | awk -v n="$(chunk_hash 0)" '{ print $1 / (length(n) + 1) }')" "chunks in the chain"
assert_eq $((N + 2)) "$(cli DBSIZE)" DBSIZE

# read_back WHEN: all of it, out of the server.
read_back() {
	local i
	for ((i = 0; i < N; i++)); do
		assert_same "$WORK/data.$i" "$RANK/$(chunk_hash "$i")"
	done
	assert_eq plain "$(cat "$MNT/note.txt")" "the plain file $1"
}
evict /
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
read_back "after evict"

stop_fs
start_resp
assert_eq "$(for ((i = 0; i < N; i++)); do chunk_hash "$i"; echo; done | sed '/^$/d' | sort)" \
	"$(find "$RANK" -maxdepth 1 -type f -printf '%f\n' | sort)" "entries after a restart"
assert_eq "$(for ((i = 0; i < N; i++)); do chunk_hash "$i"; echo; done | sed '/^$/d')" \
	"$(cat "$RANK/prompt/.keys")" "the chain after a restart"
for ((i = 0; i < N; i++)); do
	assert_same "$WORK/data.$i" "$RANK/prompt/$(chunk_hash "$i")"
done
read_back "after a restart"

# What LMCache has written meanwhile.
printf theirs | cli -x SET "$MODEL@01000100@0@00112233" >/dev/null
assert_eq theirs "$(cat "$RANK/00112233")" "an object of somebody else"

mv "$MNT/note.txt" "$MNT/renamed.txt"
rm "$RANK/$(chunk_hash 0)" "$RANK/00112233"
control flush /
is_renamed() {
	[[ $(cli GET kvcfs:1:renamed.txt) == plain && $(cli EXISTS kvcfs:1:note.txt) == 0 ]]
}
is_deleted() {
	[[ $(cli EXISTS "$MODEL@01000100@0@$(chunk_hash 0)" "$MODEL@01000100@0@00112233") == 0 ]]
}
wait_until 20 "the plain file is renamed" is_renamed
wait_until 20 "two objects are deleted" is_deleted
expect_errno ENOENT open-read "$RANK/$(chunk_hash 0)"

# The server is gone: what is in memory goes on, what is not is not there, and it comes back.
cat "$RANK/$(chunk_hash 1)" >"$WORK/loaded"
evict "$RANK/$(chunk_hash 2)"
kill -STOP "$redis"
assert_same "$WORK/data.1" "$RANK/$(chunk_hash 1)"
expect_errno ENOENT open-read "$RANK/$(chunk_hash 2)"
kill -CONT "$redis"
can_read() {
	cmp -s "$WORK/data.2" "$RANK/$(chunk_hash 2)"
}
wait_until 30 "the server is asked again" can_read
stop_fs
