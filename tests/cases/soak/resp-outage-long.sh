#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The same as cases/resp-outage.sh, with a server that is stopped for 30 s, and until health is ok again.
#
# timeout: 600

OUTAGE_S=30
. "$(dirname "$0")/../resp-outage.sh"
