#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Random calls of several processes are answered as a model in memory says, and after a restart files, objects and
# prefix directories are those of the model. The same seed makes the same calls. (Two minutes; half a one where it is not
# the plain build and mode.)
#
# parallel
# timeout: 400

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

require_cmd python3
L1_SIZE=256M # less than what the files take: some are loaded again
seconds=30
[[ ${KVC_TEST_MODE:-plain} != plain ]] || seconds=${MIXER_SECONDS:-120}
mixer=$SRC/tests/clients/operation-mixer.py
read -ra options <<<"--seed $SEED --seconds $seconds ${MIXER_OPTIONS:-}"
[[ $EXPECTED_IO_MODE == direct ]] || options+=(--passthrough)

# verify WHEN
verify() {
	python3 "$mixer" --seed "$SEED" --verify "$MNT" mixed "$WORK/wanted" || fail "after $1"
}

start_fs
mkdir "$MNT/mixed"
python3 "$mixer" "${options[@]}" "$MNT" mixed "$WORK/wanted" || fail "the model says otherwise"
control flush /
kill_fs
start_fs
verify "a kill"
restart_fs
verify "a restart"
kill_fs
