# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What the cases engine-*.sh share: an engine-shaped client (a program of this directory) on the mount and on the disk
# beside it. Sourced after tests/cases/lib.sh.

require_cmd python3

# Less than half of the 420 MiB that a client stores, so that half of what it loads must come from L2.
L1_SIZE=192M

# engine_phase PHASE PROGRAM VARIANT PLACE [OPTION...]: PLACE is disk or mount; leaves the summary in WORK/PLACE.PHASE.
engine_phase() {
	local phase=$1 program=$2 variant=$3 place=$4
	shift 4
	echo "$SECONDS s: $phase on the $place"
	python3 -B "$SRC/tests/clients/engines/$program.py" "$phase" "${engine_root[$place]}" --seed "$SEED" \
		--variant "$variant" "$@" >"$WORK/$place.$phase" || fail "$program $phase in ${engine_root[$place]}"
}

# engine_same NAME: the mount's WORK/mount.NAME is that of the disk.
engine_same() {
	diff "$WORK/disk.$1" "$WORK/mount.$1" || fail "$1: the disk (<) and the mount (>) differ"
}

# engine_trees: the same directories and files in both places.
engine_trees() {
	local place
	for place in disk mount; do
		(cd "${engine_root[$place]}" && find . ! -type d -printf '%P %y %m %s\n' -o -printf '%P %y %m\n' | sort) \
			>"$WORK/$place.tree"
	done
	engine_same tree
}

no_block_in_l2() {
	[[ -z $(find "$L2" -type f -size +16k) ]]
}

# engine_client PROGRAM [VARIANT]: all phases in both places; starts and stops the daemon.
engine_client() {
	local program=$1 variant=${2:-} phase bytes loaded
	local -A engine_root=([disk]=$WORK/disk [mount]=$MNT/engine)
	# A disk that hangs for a while is no reason to lose a block.
	start_fs --max-object-size 64M --l2-prefetch-load-timeout 60
	mkdir "${engine_root[@]}"

	engine_phase store "$program" "$variant" disk
	engine_phase store "$program" "$variant" mount --flush "$MNT/.kvcache/flush"
	engine_same store
	engine_trees
	for phase in lookup load delete; do
		loaded=$(stat_counter load_bytes)
		engine_phase "$phase" "$program" "$variant" disk
		engine_phase "$phase" "$program" "$variant" mount
		engine_same "$phase"
		[[ $phase == load ]] || continue
		bytes=$(awk '$2 == "block" && $3 == "bytes:" { print $4 }' "$WORK/mount.load")
		assert_le $((bytes / 2)) $(($(stat_counter load_bytes) - loaded)) "bytes loaded from L2"
	done
	engine_trees
	wait_until 60 "no block is left in L2" no_block_in_l2
	restart_fs
	engine_trees
	rm -r "${engine_root[@]}"
	stop_fs
}
