#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The same as cases/kill-cycles.sh, 40 times.
#
# timeout: 1200

CYCLES=40
. "$(dirname "$0")/../kill-cycles.sh"
