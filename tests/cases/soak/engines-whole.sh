#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every engine-shaped client of tests/cases/engine-*.sh with 200 blocks of each size but the largest, 1.3 GiB, passed
# through and with --io-mode=direct.
#
# timeout: 7200

ENGINE_BLOCKS=whole
. "$(dirname "$0")/../lib.sh"
. "$SRC/tests/clients/engines/case.sh"

kvcachefs=$KVCACHEFS
for mode in "${IO_MODES[@]}"; do
	printf '#!/bin/bash\nexec -a "$0" %q --io-mode=%q "$@"\n' "$kvcachefs" "$mode" >"$WORK/kvcachefs"
	chmod +x "$WORK/kvcachefs"
	KVCACHEFS=$WORK/kvcachefs
	for file in "$SRC"/tests/cases/engine-*.sh; do
		while read -r _ client variant; do
			echo "==== --io-mode=$mode $client $variant"
			engine_client "$client" "$variant"
		done < <(grep '^engine_client ' "$file")
	done
done
