#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fio writes files in random order with each of its engines, buffered and O_DIRECT, and finds its checksums again: at
# once, from a mapping, and after a restart. (Its mmap engine only reads here: it closes the file while it is mapped and
# looks at it through another descriptor, and what is overwritten is published when nothing has it open any more.)
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd fio
L1_SIZE=256M

# run_fio ENGINE DIRECT NAME OPTION...
run_fio() {
	local engine=$1 direct=$2 name=$3
	shift 3
	(cd "$WORK" && fio --name="$name" --directory="$MNT/fio" --ioengine="$engine" --direct="$direct" --rw=randwrite \
		--bs=16k --size=4M --numjobs=2 --iodepth=8 --verify=crc32c --verify_fatal=1 --randseed="$SEED" "$@") \
		>"$WORK/fio.log" 2>&1 || fail "fio $*: $engine, direct=$direct: $(tail -n 20 "$WORK/fio.log")"
}

start_fs
mkdir "$MNT/fio"
for direct in 0 1; do
	for engine in psync libaio io_uring; do
		run_fio "$engine" "$direct" "$engine$direct" --do_verify=1
	done
done
for name in psync0 libaio1 io_uring1; do
	run_fio mmap 0 "$name" --verify_only=1
done
control flush /
restart_fs
for name in psync1 libaio0 io_uring0; do
	run_fio psync 0 "$name" --verify_only=1
	run_fio mmap 0 "$name" --verify_only=1
done
stop_fs
