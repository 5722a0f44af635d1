#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The same as cases/reports/T24-large-directory.sh, with a million files in each directory.
#
# not-in: user: the kernel's caches are dropped
# timeout: 1800

N_FILES=1000000
GROWTH_BYTES=$((64 << 20))
. "$(dirname "$0")/../reports/T24-large-directory.sh"
