#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# 5,000 times two plain files are written again, with O_TRUNC, in place, by a rename, while others open them for
# reading and with O_RDWR: no ESTALE, no EIO, no ENOENT, no page of another version, never one older than the last
# whose close had returned. With passthrough and without.
#
# timeout: 180

. "$(dirname "$0")/lib.sh"

rotate_in_mode() {
	local mode=$1 rotations=$2
	L1_SIZE=256M
	start_fs "--io-mode=$mode"
	mkdir -p "$MNT/plain"
	"$CLIENTS/rotate" "$MNT/plain" "$rotations" || fail "rotations with --io-mode=$mode"
	assert_eq $'name-0\nname-1' "$(ls -A "$MNT/plain")" "files left"
	wait_until 10 "no read lock is left" status_is l1_read_locks 0
	wait_until 10 "two objects are left" status_is l1_objects 2
	wait_until 10 "everything is stored" status_is l1_dirty_objects 0
	sha256sum "$MNT/plain"/name-* >"$WORK/sums"
	restart_fs "--io-mode=$mode"
	sha256sum -c --quiet "$WORK/sums" || fail "a file after a restart"
	stop_fs
}

if [[ $EXPECTED_IO_MODE == passthrough ]]; then
	rotate_in_mode passthrough 3500
fi
rotate_in_mode direct 1500
