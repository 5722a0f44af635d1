#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Random calls of several processes are answered as a model in memory says, and after a restart the files are those of
# the model. The same seed makes the same calls.
#
# soak
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=512M # less than what the files take: some are loaded again
seconds=${MIXER_SECONDS:-40}
mixer=$SRC/tests/clients/operation-mixer.py
declare -a options=(--seed "$SEED" --seconds "$seconds")
[[ $EXPECTED_IO_MODE == direct ]] || options+=(--passthrough)

start_fs
mkdir "$MNT/mixed"
python3 "$mixer" "${options[@]}" "$MNT/mixed" "$WORK/files" || fail "the model says otherwise"
control flush /
restart_fs
python3 "$mixer" --seed "$SEED" --verify "$MNT/mixed" "$WORK/files" || fail "after a restart"
kill_fs
