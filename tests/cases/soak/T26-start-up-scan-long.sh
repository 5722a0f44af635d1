#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The same as cases/reports/T26-start-up-scan.sh, with 65,536 directories.
#
# timeout: 1200

N_DIRS=256
. "$(dirname "$0")/../reports/T26-start-up-scan.sh"
