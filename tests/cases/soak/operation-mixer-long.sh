#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The same as cases/operation-mixer.sh, for an hour.
#
# timeout: 4000

MIXER_SECONDS=3600
. "$(dirname "$0")/../operation-mixer.sh"
