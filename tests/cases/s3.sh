#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# An S3 store as L2: what is written through the mount is there under LMCache's names with the very bytes, as curl sees
# it; it comes back equal when L1 is empty and after a restart, a plain file with mode, time and extended attributes; it
# is listed, read as a prefix, renamed and deleted. Wrong keys, and a store that is gone, are told by status, and nothing
# waits for it.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd curl
require_cmd setfattr
grep -q '^  s3 ' <<<"$("$KVCACHEFS" --help)" || skip "built without libcurl"

server=
end() {
	case_ended || true # first: it looks at the exit status
	[[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
}
trap end EXIT

# start_server [PORT]
start_server() {
	"$SRC/adapters/s3/s3rver.sh" "$WORK/s3" "$@" >"$WORK/s3.log" 2>&1 &
	server=$!
	wait_until 100 "the S3 server answers or ends" has_begun
	[[ -s $WORK/s3/port ]] || skip "$(sed -n 's/^skipped: //p' "$WORK/s3.log")"
	port=$(<"$WORK/s3/port")
}
has_begun() {
	is_gone "$server" || [[ -s $WORK/s3/port ]]
}
mkdir "$WORK/s3"
start_server
keys=$(sed -n 's/^aws_access_key_id = //p; s/^aws_secret_access_key = //p' "$WORK/s3/credentials" | paste -sd:)

# http PATH [OPTION...]: of the bucket, by curl; PATH is encoded.
http() {
	curl --silent --show-error --fail --aws-sigv4 aws:amz:us-east-1:s3 --user "$keys" \
		-H "x-amz-content-sha256: UNSIGNED-PAYLOAD" "${@:2}" "http://127.0.0.1:$port/kvc$1"
}
# The names in the bucket, a line each.
names() {
	http "?list-type=2" | grep -o '<Key>[^<]*' | sed 's/<Key>//'
}
start_s3() {
	start_bare --l2-adapter "type=s3,s3_endpoint=http://127.0.0.1:$port,s3_bucket=kvc,credentials_file=$WORK/s3/credentials,key_prefix=kv/$1"
}

N=100
mapfile -t hashes < <(for ((i = 0; i < N; i++)); do chunk_hash "$i"; done)
start_s3 ""
mkdir -p "$RANK/prompt"
for ((i = 0; i < N; i++)); do
	mkchunk "$WORK/${hashes[i]}" $((64 * 1024 + i)) "$i"
done
(cd "$WORK" && cat "${hashes[@]}" >all && cp "${hashes[@]}" "$RANK/prompt/")
echo plain >"$MNT/note.txt"
chmod 640 "$MNT/note.txt"
touch -d '2001-02-03 04:05:06Z' "$MNT/note.txt"
setfattr -n user.x -v "a value" "$MNT/note.txt"
control flush /
assert_eq ok "$(status l2.0.server)" l2.0.server

chunk=/kv/$MODEL%4001000100%400%40
for ((i = 0; i < N; i++)); do
	echo "url = http://127.0.0.1:$port/kvc$chunk${hashes[i]}"
done >"$WORK/urls"
curl --silent --fail --aws-sigv4 aws:amz:us-east-1:s3 --user "$keys" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" \
	--config "$WORK/urls" | cmp - "$WORK/all" || fail "bodies of the chunks"
assert_eq plain "$(http /kv/kvcfs%3A1%3Anote.txt)" "body of the plain file"
assert_eq "$(printf '%s\n' "${hashes[@]}")" "$(http "/kv/kvcfs%3A2%3A$MODEL/%4001000100/prompt")" "body of the chain"
assert_eq $((N + 2)) "$(names | wc -l)" "objects in the bucket"

# read_back WHEN: all of it, out of the store.
read_back() {
	(cd "$RANK" && cat "${hashes[@]}") | cmp - "$WORK/all" || fail "the chunks $1"
	assert_eq plain "$(cat "$MNT/note.txt")" "the plain file $1"
	expect_output "640 981173106" stat -c '%a %Y' "$MNT/note.txt"
	expect_output "a value" getfattr --absolute-names --only-values -n user.x "$MNT/note.txt"
}
evict /
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
read_back "after evict"

stop_fs
start_s3 ""
assert_eq "$(printf '%s\n' "${hashes[@]}" | sort)" \
	"$(find "$RANK" -maxdepth 1 -type f -printf '%f\n' | sort)" "entries after a restart"
assert_eq "$(printf '%s\n' "${hashes[@]}")" \
	"$(cat "$RANK/prompt/.keys")" "the chain after a restart"
expect_output "640 981173106" stat -c '%a %Y' "$MNT/note.txt"
(cd "$RANK/prompt" && cat "${hashes[@]}") | cmp - "$WORK/all" || fail "the prefix after a restart"
read_back "after a restart"

# What LMCache has written meanwhile.
printf theirs >"$WORK/theirs"
http "${chunk}00112233" -T "$WORK/theirs"
is_theirs() {
	[[ $(cat "$RANK/00112233" 2>/dev/null) == theirs ]]
}
wait_until 20 "an object of somebody else is found" is_theirs

mv "$MNT/note.txt" "$MNT/renamed.txt"
rm "$RANK/${hashes[0]}" "$RANK/00112233"
control flush /
is_renamed() {
	[[ $(http /kv/kvcfs%3A1%3Arenamed.txt 2>/dev/null) == plain && $(names | grep -c 'note\.txt') == 0 ]]
}
is_deleted() {
	[[ $(names | grep -cE "${hashes[0]}|00112233") == 0 ]]
}
wait_until 20 "the plain file is renamed" is_renamed
wait_until 20 "two objects are deleted" is_deleted
expect_errno ENOENT open-read "$RANK/${hashes[0]}"
assert_eq $((N + 1)) "$(names | wc -l)" "objects in the bucket at the end"

# ---- A store that is gone --------------------------------------------------------------------

evict /
kill -KILL "$server"
wait "$server" 2>/dev/null || true
begin=$SECONDS
expect_errno ENOENT open-read "$RANK/${hashes[1]}"
assert_le $((SECONDS - begin)) 15 "seconds until an open without a store ends"
is_seen() {
	[[ $(status l2.0.server) == unreachable && $(status health) != ok ]]
}
wait_until 20 "status says that it is unreachable" is_seen
mkchunk "$RANK/$(chunk_hash 0 meanwhile)" 64K 7
start_server "$port"
is_stored() {
	http "$chunk$(chunk_hash 0 meanwhile)" -I >/dev/null 2>&1
}
wait_until 40 "what was written meanwhile is stored" is_stored
assert_eq ok "$(status l2.0.server)" "l2.0.server when it is back"
stop_fs

# ---- Wrong keys ------------------------------------------------------------------------------

sed -i 's/^aws_secret_access_key = ./&x/' "$WORK/s3/credentials"
start_s3 ",breaker_cooldown_s=0.2"
is_denied() {
	[[ $(status l2.0.server) == denied && $(status l2.0.server_error) == *SignatureDoesNotMatch* &&
		$(status l2.0.health) == failed ]]
}
wait_until 20 "status says that the keys are wrong" is_denied
! grep -F "${keys#*:}" "/proc/$DAEMON_PID/cmdline" "$MNT/.kvcache"/{status,stats,config} "$DAEMON_LOG" ||
	fail "the secret can be seen"
stop_fs
