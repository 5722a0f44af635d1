#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The directory of the L2 is moved away, replaced, or something is mounted over it: nothing is said to be stored that
# is not below its path, status and log say why, and when the directory is back all goes on by itself.

. "$(dirname "$0")/lib.sh"

LOST="this is not the directory any more that was opened"

log_has() {
	assert_eq "$2" "$(grep -cF "fs $L2: $1" "$DAEMON_LOG" || true)" "lines of log: $1"
}

# is_below_l2 HASH: the directory has the file of that object.
is_below_l2() {
	[[ -n $(find "$L2" -name "*@$1.data") ]]
}

# lost HASH: what is written meanwhile is not stored, and what was stored is not taken for gone.
lost() {
	wait_until 30 "the loss is seen" status_is l2.0.health failed
	cp "$WORK/data" "$RANK/$1"
	! sync "$RANK/$1" 2>"$WORK/sync" || fail "sync says 0 of what is not in L2"
	wait_until 30 "the breaker opens" status_at_least l2.0.breaker_opened 1
	[[ $(status l2.0.last_error) == *"\"$L2\""* ]] || fail "last_error: $(status l2.0.last_error)"
	assert_eq failed "$(status health)" health
	assert_eq 0 "$(find "$L2" -type f 2>/dev/null | wc -l)" "files in what is not the directory"
	! cat "$RANK/$evicted" >/dev/null 2>&1 || fail "loaded from what is not the directory"
}

# back HASH: what was not stored is, and what was evicted is there.
back() {
	wait_until 30 "health" status_is l2.0.breaker closed
	wait_until 30 "it is stored" is_below_l2 "$1"
	sync "$RANK/$1"
	assert_same "$WORK/data" "$RANK/$evicted"
	evict "$RANK/$evicted"
}

evicted=$(chunk_hash 0)
while_moved=$(chunk_hash 1)
under_mount=$(chunk_hash 2)
"$KVCACHEFS" -f --l1-size 512M --state-dir "$STATE" \
	--l2-adapter "type=fs,base_path=$L2,breaker_cooldown_s=0.2,breaker_max_s=0.8" "$MNT" >>"$DAEMON_LOG" 2>&1 &
DAEMON_PID=$!
echo "$DAEMON_PID" >>"$WORK/daemons"
wait_until 20 "it is mounted" is_mounted
mkdir -p "$RANK"
mkchunk "$WORK/data" 1M
cp "$WORK/data" "$RANK/$evicted"
evict "$RANK/$evicted"
is_below_l2 "$evicted" || fail "what was stored is not below $L2"

mv "$L2" "$WORK/away"
lost "$while_moved"
# A new one in its place is not used.
mkdir "$L2"
sleep 2
lost "$(chunk_hash 9)"
log_has "$LOST" 1
rmdir "$L2"
mv "$WORK/away" "$L2"
back "$while_moved"
log_has "the directory is back" 1

if ((EUID == 0)); then
	mount -t tmpfs none "$L2"
	lost "$under_mount"
	umount "$L2"
	back "$under_mount"
	log_has "$LOST" 2
fi

# Removed: what is made in its place is for the next start.
rm -r "$L2"
wait_until 30 "the loss is seen" status_is l2.0.health failed
mkdir "$L2"
sleep 2
assert_eq failed "$(status l2.0.health)" "health beside a new directory"
stop_fs
start_fs
assert_eq ok "$(status health)" "health after a restart"
cp "$WORK/data" "$RANK/$(chunk_hash 3)"
control flush /
is_below_l2 "$(chunk_hash 3)" || fail "the new directory is not used after a restart"
stop_fs
