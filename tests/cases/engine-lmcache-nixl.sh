#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# LMCache's NIXL storage in its dynamic mode stores, looks up, loads and deletes its blocks on the mount as it does on
# a disk, from four processes, and half of what it loads comes from L2.
#
# parallel
# timeout: 300

. "$(dirname "$0")/lib.sh"
. "$SRC/tests/clients/engines/case.sh"

engine_client lmcache-nixl
