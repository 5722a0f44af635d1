#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The same as cases/kill-cycles.sh, 60 times.
#
# timeout: 1200

CYCLES=60
. "$(dirname "$0")/../kill-cycles.sh"
