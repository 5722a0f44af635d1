# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What the cases engine-*.sh share: an engine-shaped client (a program of this directory) on the mount and on the disk
# beside it. Sourced after tests/cases/lib.sh.

require_cmd python3

# Which blocks (see engine_client.py), and less L1 than half of what they take: half of what is loaded must come from L2.
ENGINE_BLOCKS=${ENGINE_BLOCKS:-few}
case $ENGINE_BLOCKS in
few) L1_SIZE=66M ;;
whole) L1_SIZE=600M ;;
esac

# engine_answered REPORT: or it never will.
engine_answered() {
	grep -q "^$1 " "$WORK/engine.out" || is_gone "$CLIENT_PID"
}

# engine_phase PLACE PHASE [CONTROL-FILE]: PLACE is disk or mount; leaves the report in WORK/PLACE.PHASE.
engine_phase() {
	local report=$WORK/$1.$2
	echo "$SECONDS s: $2 on the $1"
	client_say engine "$2 ${engine_root[$1]} $report ${3:-}"
	wait_until 600 "$2 on the $1" engine_answered "$report"
	client_said engine "$report ok" || fail "$2 in ${engine_root[$1]}: $(cat "$WORK/engine.out")"
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
	[[ -z $(find "$L2" -type f -size +16k 2>/dev/null) ]]
}

# engine_client PROGRAM [VARIANT]: all phases in both places; starts and stops the daemon.
engine_client() {
	local program=$SRC/tests/clients/engines/$1.py variant=${2:-} phase bytes loaded fifo
	local -A engine_root=([disk]=$WORK/disk [mount]=$MNT/engine)
	# A disk that hangs for a while is no reason to lose a block.
	start_fs --max-object-size 40M --l2-prefetch-load-timeout 60
	mkdir "${engine_root[@]}"
	rm -f "$WORK/engine.in"
	start_client engine python3 -B "$program" --seed "$SEED" --variant "$variant" --blocks "$ENGINE_BLOCKS"
	exec {fifo}<>"$WORK/engine.in" # what is said before it listens must not get lost

	engine_phase disk store
	engine_phase mount store "$MNT/.kvcache/flush"
	engine_same store
	engine_trees
	for phase in lookup load delete; do
		loaded=$(stat_counter load_bytes)
		engine_phase disk "$phase"
		engine_phase mount "$phase"
		engine_same "$phase"
		[[ $phase == load ]] || continue
		bytes=$(awk '$1 == "block" && $2 == "bytes:" { print $3 }' "$WORK/mount.load")
		assert_le $((bytes / 2)) $(($(stat_counter load_bytes) - loaded)) "bytes loaded from L2"
	done
	kill "$CLIENT_PID"
	engine_trees
	wait_until 60 "no block is left in L2" no_block_in_l2
	restart_fs
	engine_trees
	rm -r "${engine_root[@]}"
	stop_fs
}
