#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Chunks written with cp and dd are in the L2 directory under LMCache's names once sync returns, and come back
# equal after an unmount and a mount.
#
# parallel
# quick

. "$(dirname "$0")/lib.sh"

# The hash, and the name that LMCache's fs adapter gives it: written out here, not computed by our codec.
declare -a table=(
	"b18efa847f7a3fa48fe0aafd4a6250aa5129740e05126859377af20cedafdeee meta-llama-SEP-Llama-3.1-8B@0x01000100@0@b18efa847f7a3fa48fe0aafd4a6250aa5129740e05126859377af20cedafdeee.data"
	"2725aea2d2dea736fbe38e41ecb518f6098cb68ac77362c5e34faafb356567c5 meta-llama-SEP-Llama-3.1-8B@0x01000100@0@2725aea2d2dea736fbe38e41ecb518f6098cb68ac77362c5e34faafb356567c5.data"
	"b6f3c15844fe12f966ad90db59da8332a9a6d9dfd198ac83949be2045ec6dc1e meta-llama-SEP-Llama-3.1-8B@0x01000100@0@b6f3c15844fe12f966ad90db59da8332a9a6d9dfd198ac83949be2045ec6dc1e.data"
	"dfd3744075c1ae74c2350ff6344acbcc7de7b5559dda9f144cfb4cabd6a1e1dd meta-llama-SEP-Llama-3.1-8B@0x01000100@0@dfd3744075c1ae74c2350ff6344acbcc7de7b5559dda9f144cfb4cabd6a1e1dd.data"
	"fd5c781760392e94ca75b8328180658e391f92b7b8c97cd17af44dc2bf5cde99 meta-llama-SEP-Llama-3.1-8B@0x01000100@0@fd5c781760392e94ca75b8328180658e391f92b7b8c97cd17af44dc2bf5cde99.data"
	"c1f90d72343157855865d9174b19315cea37ad4dbfc823d0d39429138192edc0 meta-llama-SEP-Llama-3.1-8B@0x01000100@0@c1f90d72343157855865d9174b19315cea37ad4dbfc823d0d39429138192edc0.data"
	"c6b29cf1c2bca0d2fe0a95590612765a19c0c87a14cb34bf7b2e94e5a0283211 meta-llama-SEP-Llama-3.1-8B@0x01000100@0@c6b29cf1c2bca0d2fe0a95590612765a19c0c87a14cb34bf7b2e94e5a0283211.data"
	"4c29fda39e17bc928dbdea74d6c7b0e4831c287da7ca53e34b808f7520bede69 meta-llama-SEP-Llama-3.1-8B@0x01000100@0@4c29fda39e17bc928dbdea74d6c7b0e4831c287da7ca53e34b808f7520bede69.data"
)

start_fs
mkdir -p "$RANK"
i=0
for row in "${table[@]}"; do
	read -r hash _ <<<"$row"
	mkchunk "$WORK/data.$i" 32M "$i"
	if ((i % 2 == 0)); then
		cp "$WORK/data.$i" "$RANK/$hash"
	else
		dd if="$WORK/data.$i" of="$RANK/$hash" bs=1M status=none
	fi
	i=$((i + 1))
done

# A sync of each file is enough: no unmount, no flush.
i=0
for row in "${table[@]}"; do
	read -r hash name <<<"$row"
	sync "$RANK/$hash"
	assert_same "$WORK/data.$i" "$L2/$name"
	i=$((i + 1))
done
assert_eq 0 "$(status l1_dirty_objects)" l1_dirty_objects
assert_eq 8 "$(stat_counter stores_completed)" stores_completed
# Nothing else but these names: no temporary file is left behind.
assert_eq "$(for row in "${table[@]}"; do echo "${row#* }"; done | sort)" \
	"$(cd "$L2" && find . -type f -name '*data*' -printf '%P\n' | sort)" "files in L2"

restart_fs
i=0
for row in "${table[@]}"; do
	read -r hash _ <<<"$row"
	assert_eq "$(sha "$WORK/data.$i")" "$(sha "$RANK/$hash")" "sha256 of chunk $i after a restart"
	assert_eq $((32 << 20)) "$(stat -c %s "$RANK/$hash")" "size of chunk $i"
	i=$((i + 1))
done
assert_eq 8 "$(ls "$RANK" | wc -l)" "entries of the rank directory"
stop_fs
