#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rename of a temporary file to an ordinary name commits it at once, or when its last writer closes. The first complete
# object of a hash name wins and later ones are accepted; of a plain name the last one wins. Readers of the name see
# the one or the other, whole.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/plain/sub"
begin a b r

# Closed, then renamed: there at once.
hash=$(chunk_hash closed)
for name in "$RANK/$hash" "$MNT/plain/closed"; do
	step a 0 open "$name.tmp" wct
	step a 0 write 1 1M
	expect_errno ENOENT stat "$name"
	step a 0 close
	expect_errno ENOENT stat "$name"
	step a 0 rename "$name.tmp" "$name"
	step r 0 open "$name" r
	step r 0 check 1 1M
	step r 0 close
	expect_errno ENOENT stat "$name.tmp"
done

# Renamed while two writers have it: there when the last one closes, under no name until then.
hash=$(chunk_hash open)
for name in "$RANK/$hash" "$MNT/plain/open"; do
	step a 0 open "$name.tmp" wct
	step b 0 open "$name.tmp" w
	step a 0 write 2 1M
	step b 0 pwrite 3 1M 1M
	step a 0 rename "$name.tmp" "$name"
	expect_errno ENOENT stat "$name.tmp"
	expect_errno ENOENT stat "$name"
	step a 0 close
	expect_errno ENOENT open-read "$name"
	step b 0 close
	{
		"$CLIENTS/pattern" 2 1M
		"$CLIENTS/pattern" 3 1M
	} >"$WORK/expected"
	assert_same "$WORK/expected" "$name"
done

# Over what exists.
name=$RANK/$hash
step a 0 open "$name.tmp" wct
step a 0 write 4 1M
step a 0 close
step a 0 rename "$name.tmp" "$name"
assert_same "$WORK/expected" "$name"
expect_errno ENOENT stat "$name.tmp"
cp "$WORK/expected" "$WORK/old"
name=$MNT/plain/open
step r 0 open "$name" r
step a 0 open "$name.tmp" wct
step a 0 write 4 3M
step a 0 close
step a 0 rename "$name.tmp" "$name"
expect_data "$name" 4 3M
# Who had the old one open reads on in it.
step r "size:$((2 << 20))" check 4 3M
step r 0 close

# RENAME_NOREPLACE and RENAME_EXCHANGE.
for name in "$RANK/$hash" "$MNT/plain/open"; do
	step a 0 open "$name.tmp" wct
	step a 0 write 5 1K
	step a 0 close
	expect_errno EEXIST rename-noreplace "$name.tmp" "$name"
	expect_errno EINVAL rename-exchange "$name.tmp" "$name"
	expect_data "$name.tmp" 5 1K
	rm "$name.tmp"
done
assert_same "$WORK/old" "$RANK/$hash"
expect_data "$MNT/plain/open" 4 3M
for name in "$RANK/$(chunk_hash fresh)" "$MNT/plain/fresh"; do
	step a 0 open "$name.tmp" wct
	step a 0 write 5 1K
	step a 0 close
	expect_errno 0 rename-noreplace "$name.tmp" "$name"
	expect_data "$name" 5 1K
done

# From one temporary name to another, across directories, then to a name.
step a 0 open "$MNT/plain/x.tmp" wct
step a 0 write 6 1K
step a 0 close
step a 0 rename "$MNT/plain/x.tmp" "$MNT/plain/sub/y.tmp"
expect_errno ENOENT stat "$MNT/plain/x.tmp"
expect_data "$MNT/plain/sub/y.tmp" 6 1K
step a 0 rename "$MNT/plain/sub/y.tmp" "$RANK/.z"
step a 0 rename "$RANK/.z" "$MNT/plain/sub/z"
expect_data "$MNT/plain/sub/z" 6 1K
expect_output z ls -A "$MNT/plain/sub"

# From a rank to another rank: an object there, and only there.
other=$MNT/$MODEL/@02000200
mkdir "$other"
hash=$(chunk_hash other)
step a 0 open "$RANK/.$hash.tmp" wct
step a 0 write 7 1K
step a 0 close
step a 0 rename "$RANK/.$hash.tmp" "$other/$hash"
expect_data "$other/$hash" 7 1K
expect_errno ENOENT stat "$RANK/$hash"

# What is not there, or is no name.
expect_errno ENOENT rename "$MNT/plain/absent.tmp" "$MNT/plain/file"
expect_errno ENOENT rename "$RANK/.absent.tmp" "$RANK/$(chunk_hash absent)"
step a 0 open "$RANK/.bad.tmp" wct
step a 0 write 8 1K
step a 0 close
expect_errno EINVAL rename "$RANK/.bad.tmp" "$RANK/not-a-hash"
expect_errno "EISDIR|EXDEV|ENOTEMPTY" rename "$RANK/.bad.tmp" "$MNT/plain/sub"
expect_errno "EACCES|EXDEV|EPERM" rename "$RANK/.bad.tmp" "$MNT/.kvcache/file"
expect_data "$RANK/.bad.tmp" 8 1K
rm "$RANK/.bad.tmp"

# Readers of a plain name that is renamed over see the one or the other, never ENOENT, never a part.
"$CLIENTS/pattern" 1 100K >"$WORK/one"
"$CLIENTS/pattern" 2 70K >"$WORK/two"
cp "$WORK/one" "$MNT/plain/watched"
start_client watcher "$CLIENTS/watch-file" "$MNT/plain/watched" "$WORK/one" "$WORK/two"
watcher=$CLIENT_PID
client_hear watcher watching
for ((i = 0; i < 60; i++)); do
	for version in two one; do
		cat "$WORK/$version" >"$MNT/plain/watched.tmp"
		mv -fT "$MNT/plain/watched.tmp" "$MNT/plain/watched"
	done
done
client_say watcher stop
wait "$watcher" || fail "a reader of a name that is renamed over: $(cat "$WORK/watcher.out")"
cat "$WORK/watcher.out"

# All of it is in L2 after a restart, and no temporary name.
restart_fs
expect_data "$MNT/plain/open" 4 3M
assert_same "$WORK/one" "$MNT/plain/watched"
expect_data "$other/$(chunk_hash other)" 7 1K
assert_eq "" "$(find "$MNT" "$L2" -name '*.tmp*' -o -name '.z')" "temporary files"
stop_fs
