# shellcheck shell=bash disable=SC2034 # variables for the cases
# SPDX-License-Identifier: Apache-2.0
#
# What the shell cases share. A case sources this first; run on its own ("bash tests/cases/NAME.sh") it hands
# itself to scripts/test, which gives it a private work directory, a timeout, and cleans up whatever happens.
#
# In a case: WORK (private, on a disk), MNT (mount point, empty at first), L2 (directory of the fs adapter),
# L1_SIZE, SRC and BUILD (the trees), SEED (for random data; KVC_TEST_SEED replays it), DAEMON_PID.
#
# KVC_TEST_MODE says how the daemon runs (see scripts/test): direct gives --io-mode=direct to each start that has no
# --io-mode itself; in user the case itself already runs as an ordinary user. EXPECTED_IO_MODE is what comes of it.

set -euo pipefail
export LC_ALL=C

if [[ -z ${KVC_CASE_WORK:-} ]]; then
	self=$(realpath "$0")
	exec bash "$(dirname "${BASH_SOURCE[0]}")/../../scripts/test" "$self"
fi

SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=${KVC_BUILD:-$SRC/build}
WORK=$KVC_CASE_WORK
MNT=$WORK/mnt
L2=$WORK/l2
L1_SIZE=1G
SEED=${KVC_TEST_SEED:-$RANDOM$RANDOM}
KVCACHEFS=${KVCACHEFS:-$BUILD/fs/kvcachefs}
CLIENTS=${KVC_CLIENTS:-$BUILD/tests/clients}
EXPECTED_IO_MODE=passthrough
DAEMON_PID=
DAEMON_LOG=$WORK/daemon.log
STATE=$WORK/state

# The directory most cases work in: one model, one rank.
MODEL=meta-llama/Llama-3.1-8B
RANK=$MNT/$MODEL/@01000100

mkdir -p "$MNT" "$L2"
: >>"$WORK/daemons"

if [[ ${KVC_TEST_MODE:-} == direct ]]; then
	# The last --io-mode counts, so a case's own wins.
	printf '#!/bin/bash\nexec -a "$0" %q --io-mode=direct "$@"\n' "$KVCACHEFS" >"$WORK/kvcachefs"
	chmod +x "$WORK/kvcachefs"
	KVCACHEFS=$WORK/kvcachefs
	EXPECTED_IO_MODE=direct
fi
if ((EUID != 0)); then
	EXPECTED_IO_MODE=direct
	# umount [-l] PATH, as an ordinary user does it.
	umount() {
		local -a lazy=()
		if [[ $1 == -l ]]; then
			lazy=(-z)
			shift
		fi
		fusermount3 -u "${lazy[@]}" "$1"
	}
fi
# What a case may ask for with --io-mode.
IO_MODES=(direct)
[[ $EXPECTED_IO_MODE == direct ]] || IO_MODES=(passthrough direct)
echo "seed $SEED (replay with KVC_TEST_SEED=$SEED)"

# ---- Failing ---------------------------------------------------------------------------------

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

skip() {
	echo "skipped: $*"
	exit 77
}

# What there is to see of the daemon, when a case ends badly.
case_ended() {
	local rc=$?
	if ((rc != 0 && rc != 77)); then
		echo "---- exit $rc; status, stats, the daemon's last words:"
		timeout 3 cat "$MNT/.kvcache/status" 2>&1 || true
		timeout 3 cat "$MNT/.kvcache/stats" 2>&1 | awk '$2 != 0' || true
		tail -n 30 "$DAEMON_LOG" 2>/dev/null || true
	fi
	return "$rc"
}
trap case_ended EXIT
trap '[[ $BASH_COMMAND == exit* || $BASH_COMMAND == return* ]] || echo "line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND" >&2' ERR
set -o errtrace

# assert_eq WANT GOT WHAT
assert_eq() {
	[[ $1 == "$2" ]] || fail "$3: expected '$1', got '$2'"
}

# assert_le A B WHAT: A <= B, whole numbers.
assert_le() {
	(($1 <= $2)) || fail "$3: expected $1 <= $2"
}

# expect_errno NAME CALL PATH [ARGUMENT]: tests/clients/try-call; NAME 0 for success, "A|B" for either.
expect_errno() {
	local want=$1 got
	shift
	got=$("$CLIENTS/try-call" "$@")
	[[ "|$want|" == *"|$got|"* ]] || fail "$*: expected $want, got $got"
}

# expect_output TEXT COMMAND...: the command succeeds with exactly this output.
expect_output() {
	local want=$1 got
	shift
	got=$("$@") || fail "$* failed"
	assert_eq "$want" "$got" "$*"
}

require_cmd() {
	command -v "$1" >/dev/null || skip "no command $1"
}

# wait_until SECONDS WHAT COMMAND...: polls the command; fails the case at the deadline.
wait_until() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		((SECONDS < end)) || fail "deadline passed: $what"
		sleep 0.02
	done
}

# ---- The daemon ------------------------------------------------------------------------------

# A zombie is gone (in a container nobody may collect it), once its threads are.
is_gone() {
	local state
	local -a tasks=()
	state=$(awk '/^State:/ { print $2 }' "/proc/$1/status" 2>/dev/null) || return 0
	tasks=("/proc/$1/task"/*)
	[[ -z $state || ($state == [ZX] && ${#tasks[@]} -le 1) ]]
}

# wait_gone PID [SECONDS]
wait_gone() {
	wait_until "${2:-60}" "process $1 ends" is_gone "$1"
}

# The kvcachefs that serves MNT and was not there before; several cases start one after the other. It is in the lock
# file of its state directory; the cmdline of each process of the machine can hang with one that hangs.
find_daemon() {
	local pid
	local -a argv
	read -r pid _ 2>/dev/null <"$STATE/lock" || return 1
	grep -qxF "$pid" "$WORK/daemons" && return 1
	is_gone "$pid" && return 1
	mapfile -d '' -t argv 2>/dev/null <"/proc/$pid/cmdline" || return 1
	[[ ${#argv[@]} -gt 1 && ${argv[0]} == "$KVCACHEFS" && ${argv[-1]} == "$MNT" ]] || return 1
	echo "$pid"
}

is_mounted() {
	mountpoint -q "$MNT"
}

# start_bare OPTION...: mounts with exactly these options (and L1_SIZE, STATE); sets DAEMON_PID.
start_bare() {
	[[ -e /dev/fuse ]] || fail "no /dev/fuse on this machine"
	echo "+ kvcachefs --l1-size $L1_SIZE $*" | tee -a "$DAEMON_LOG"
	"$KVCACHEFS" --l1-size "$L1_SIZE" --state-dir "$STATE" "$@" "$MNT" >>"$DAEMON_LOG" 2>&1 || fail "kvcachefs did not start"
	is_mounted || fail "kvcachefs returned 0 and $MNT is not mounted"
	DAEMON_PID=$(find_daemon) || fail "kvcachefs is not running"
	echo "$DAEMON_PID" >>"$WORK/daemons"
}

# start_fs [OPTION...]: mounts over the fs adapter in L2.
start_fs() {
	start_bare --l2-adapter "type=fs,base_path=$L2" "$@"
}

# stop_fs: unmounts as a person does; returns when the daemon has drained and ended.
stop_fs() {
	umount "$MNT" || fail "umount"
	wait_gone "$DAEMON_PID"
}

restart_fs() {
	stop_fs
	start_fs "$@"
}

kill_fs() {
	kill -KILL "$DAEMON_PID"
	wait_gone "$DAEMON_PID" 10
}

# control_value FILE NAME: the value of a line of .kvcache/FILE.
control_value() {
	awk -v name="$2" '$1 == name { $1 = ""; sub(/^ /, ""); print; found = 1 } END { exit !found }' \
		"$MNT/.kvcache/$1" || fail "no line \"$2\" in .kvcache/$1"
}

status() {
	control_value status "$1"
}

stat_counter() {
	control_value stats "$1"
}

# status_is NAME VALUE, for wait_until.
status_is() {
	[[ $(status "$1") == "$2" ]]
}

status_at_most() {
	(($(status "$1") <= $2))
}

status_at_least() {
	(($(status "$1") >= $2))
}

# counter_is NAME VALUE, for wait_until.
counter_is() {
	[[ $(stat_counter "$1") == "$2" ]]
}

# control FILE PATH: writes a path to a control file; fails the case when that fails.
control() {
	expect_errno 0 write "$MNT/.kvcache/$1" "$2"$'\n'
}

# evict PATH...: drops objects from L1, after they were stored.
evict() {
	local path
	for path in "$@"; do
		control flush "$path"
		control evict "$path"
	done
}

# resident FILE: all of it is in L1 (st_blocks says so; attributes are cached for a second).
resident() {
	local size blocks
	read -r size blocks < <(stat -c '%s %b' "$1")
	((blocks * 512 >= size))
}

# is_listed DIRECTORY NAME
is_listed() {
	[[ $'\n'$(ls -A "$1")$'\n' == *$'\n'"$2"$'\n'* ]]
}

# ---- A second mount --------------------------------------------------------------------------

MNT_B=$WORK/mnt-b
DAEMON_PID_B=

# on_b COMMAND...: a function of this file, about the other mount.
on_b() {
	local rc=0 MNT=$MNT_B STATE=$WORK/state-b DAEMON_PID=$DAEMON_PID_B
	"$@" || rc=$?
	DAEMON_PID_B=$DAEMON_PID
	return "$rc"
}

# start_both [OPTION...]: MNT and MNT_B, two daemons over one L2.
start_both() {
	mkdir -p "$MNT_B"
	start_fs "$@"
	on_b start_fs "$@"
}

stop_both() {
	stop_fs
	on_b stop_fs
}

# ---- Data ------------------------------------------------------------------------------------

# chunk_hash I [SERIES]: 64 hex digits, the same every time.
chunk_hash() {
	local text="${2:-chunk}-$1" i code state=5381 out=''
	for ((i = 0; i < ${#text}; i++)); do
		printf -v code %d "'${text:i:1}"
		state=$(((state * 33 + code) & 0x7fffffff))
	done
	for ((i = 0; i < 8; i++)); do
		state=$(((state * 1103515245 + 12345) & 0x7fffffff))
		printf -v out '%s%08x' "$out" $(((state * 2654435761) >> 7 & 0xffffffff))
	done
	echo "$out"
}

# mkchunk FILE SIZE [I]: random data of the case's seed.
mkchunk() {
	"$CLIENTS/pattern" "$((SEED + ${3:-0} * 7919))" "$2" >"$1"
}

sha() {
	sha256sum <"$1" | cut -c 1-64
}

# assert_same A B
assert_same() {
	cmp -- "$1" "$2" || fail "$2 is not the same as $1"
}

# start_client NAME COMMAND...: runs a client program in the background; client_say and client_hear talk to it.
# CLIENT_PID is the last one's.
start_client() {
	local name=$1
	shift
	mkfifo "$WORK/$name.in"
	: >"$WORK/$name.out"
	# Opened for reading and writing, so that neither side waits for the other.
	"$@" <>"$WORK/$name.in" >"$WORK/$name.out" 2>&1 &
	CLIENT_PID=$!
}

client_said() {
	grep -qxF -- "$2" "$WORK/$1.out"
}

# client_hear NAME LINE [SECONDS]: waits until the client has printed the line.
client_hear() {
	local end=$((SECONDS + ${3:-60}))
	until client_said "$1" "$2"; do
		((SECONDS < end)) || fail "client $1 never printed \"$2\", but: $(cat "$WORK/$1.out")"
		sleep 0.02
	done
}

client_say() {
	echo "$2" 1<>"$WORK/$1.in"
}

# expect_reads_on NAME PID: the daemon of a hold-open is gone. A passed-through file is read on, through descriptor and
# mapping; without passthrough a read is an error, and no waiting.
expect_reads_on() {
	local rc=0
	client_say "$1" go
	wait "$2" || rc=$?
	if [[ $EXPECTED_IO_MODE == passthrough ]]; then
		assert_eq 0 "$rc" "$1 reads on: $(cat "$WORK/$1.out")"
		client_said "$1" equal || fail "$1 never printed \"equal\""
	else
		assert_eq 1 "$rc" "$1 is told: $(cat "$WORK/$1.out")"
	fi
}

# hold PATH...: the case itself has them open for reading until let_go. Clients come first: who is started meanwhile
# has them open as well.
declare -a held=()
hold() {
	local path fd
	for path in "$@"; do
		exec {fd}<"$path"
		held+=("$fd")
	done
}

let_go() {
	local fd
	for fd in "${held[@]}"; do
		exec {fd}<&-
	done
	held=()
}

# beside COMMAND...: with a second mount over the same L2, MNT and RANK being that one's.
beside() (
	MNT=$WORK/beside STATE=$WORK/beside.state
	RANK=$MNT/$MODEL/@01000100
	mkdir -p "$MNT"
	start_fs
	"$@"
	stop_fs
)

# Files of objects in L2.
l2_files() {
	find "$L2" -type f \( -name '*.data' -o -path "$L2/plain/*" \) -printf '%P\n' | sort
}

# ---- Scripted clients (tests/clients/file-steps) ----------------------------------------------

# steps TEXT: one client does a step a line; all of them succeed.
steps() {
	sed 's/^[[:space:]]*//; /^$/d; s/^/step /' <<<"$1" >"$WORK/steps"
	"$CLIENTS/file-steps" <"$WORK/steps" >"$WORK/answers"
	assert_eq "" "$(grep -nvx 'step 0' "$WORK/answers" || true)" "answers to"$'\n'"$(cat "$WORK/steps")"$'\n'
	assert_eq "$(wc -l <"$WORK/steps")" "$(wc -l <"$WORK/answers")" "answers"
}

# begin CLIENT...: each a process of its own (step_pids[CLIENT]) that does what step says, with one descriptor.
declare -A step_pids=()
begin() {
	local name fifo
	for name in "$@"; do
		start_client "$name" "$CLIENTS/file-steps"
		step_pids[$name]=$CLIENT_PID
		# What is said to it before it listens must not get lost.
		exec {fifo}<>"$WORK/$name.in"
	done
}

# kill_client CLIENT: by SIGKILL.
kill_client() {
	kill -KILL "${step_pids[$1]}"
	wait "${step_pids[$1]}" 2>/dev/null || true
}

# What a client has answered, without a process for it: cases do hundreds of steps.
declare -a answers=()
has_answered() {
	mapfile -t answers <"$WORK/$1.out"
	((${#answers[@]} > 0)) && [[ ${answers[-1]} == "$n_steps "* ]]
}

# step CLIENT WANT STEP...: the client does a step and answers it with WANT.
n_steps=0
step() {
	local client=$1 want=$2
	shift 2
	n_steps=$((n_steps + 1))
	client_say "$client" "$n_steps $*"
	wait_until 20 "$client answers \"$*\"" has_answered "$client"
	assert_eq "$n_steps $want" "${answers[-1]}" "$client: $*"
}

# expect_data FILE SEED BYTES: the file is that seed's data.
expect_data() {
	"$CLIENTS/pattern" "$2" "$3" >"$WORK/expected"
	assert_same "$WORK/expected" "$1"
}
