#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A cluster of three Redis nodes, of which one is stopped for 30 s under load, then killed and started again. Opens of
# what is in memory do not notice; what only that node has is ENOENT in time, what the others have is read all the time;
# status names the node, and says that it is back; whatever was written meanwhile is in the cluster in the end.
#
# timeout: 600

. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

require_cmd redis-server
require_cmd redis-cli
grep -q '^  resp ' <<<"$("$KVCACHEFS" --help)" || skip "built without hiredis"

OUTAGE_S=${OUTAGE_S:-30}
LOAD_TIMEOUT_S=2
N=48
declare -A servers=()
loops=()
end() {
	case_ended || true # first: it looks at the exit status
	local pid
	for pid in "${servers[@]}"; do
		kill -KILL "$pid" 2>/dev/null || true
	done
}
trap end EXIT

# ---- The cluster -----------------------------------------------------------------------------

cli() {
	redis-cli -p "$@"
}
# start_node PORT: what it has answered survives its death. false: somebody is at the port.
start_node() {
	mkdir -p "$WORK/$1"
	redis-server --bind 127.0.0.1 --port "$1" --dir "$WORK/$1" --save '' --appendonly yes --appendfsync no \
		--cluster-enabled yes --cluster-node-timeout 5000 --cluster-require-full-coverage no >>"$WORK/$1/log" 2>&1 &
	servers[$1]=$!
	wait_until 30 "redis-server answers or ends" has_begun "$1"
	! is_gone "${servers[$1]}"
}
has_begun() {
	is_gone "${servers[$1]}" || [[ $(cli "$1" PING 2>/dev/null) == PONG ]]
}
is_whole() {
	[[ $(cli "$1" CLUSTER INFO) == *cluster_state:ok* ]]
}
ports=()
for ((i = 0; i < 60 && ${#ports[@]} < 3; i++)); do
	port=$((RANDOM % 10000 + 10000))
	! start_node "$port" || ports+=("$port")
done
redis-cli --cluster create "${ports[@]/#/127.0.0.1:}" --cluster-yes >"$WORK/create" || fail "no cluster"
for port in "${ports[@]}"; do
	wait_until 30 "the cluster is whole" is_whole "$port"
done
victim=${ports[1]}

# ---- The load --------------------------------------------------------------------------------

start_bare --l2-prefetch-load-timeout "$LOAD_TIMEOUT_S" --l2-adapter \
	"type=resp,host=127.0.0.1,port=${ports[0]},cluster_mode=true,request_timeout=1,connection_timeout=1,breaker_cooldown_s=0.2,breaker_max_s=1"
mkdir -p "$RANK"
mine=() others=()
for ((i = 0; i < N; i++)); do
	mkchunk "$WORK/data.$i" 256K "$i"
	cp "$WORK/data.$i" "$RANK/$(chunk_hash "$i" evicted)"
done
for i in 0 1 2 3; do
	cp "$WORK/data.$i" "$RANK/$(chunk_hash "$i" resident)"
done
control flush /
for ((i = 0; i < N; i++)); do
	hash=$(chunk_hash "$i" evicted)
	evict "$RANK/$hash"
	if [[ $(cli "$victim" EXISTS "$MODEL@01000100@0@$hash" 2>&1) == 1 ]]; then
		mine+=("$i")
	else
		others+=("$i")
	fi
done
echo "the node has ${#mine[@]} of $N chunks"
((${#mine[@]} >= 4 && ${#others[@]} >= 8)) || fail "chunks are not spread"

# phase NAME: what the opens are noted under from now on.
phase() {
	echo "$1" >"$WORK/phase.new"
	mv "$WORK/phase.new" "$WORK/phase"
}
# pause SECONDS: without a process.
exec {idle}<> <(:)
pause() {
	read -r -t "$1" -u "$idle" || true
}
# opens FILE PAUSE HASH...: opens them in turn; FILE.out gets the times.
opens() {
	local i=0 file=$1 seconds=$2
	shift 2
	local -a hashes=("$@")
	while [[ ! -e $WORK/end ]]; do
		i=$(((i + 1) % ${#hashes[@]}))
		echo "$(<"$WORK/phase") open $RANK/${hashes[i]} r"
		echo "close close"
		pause "$seconds"
	done | "$CLIENTS/file-steps" -t >"$WORK/$file.out"
}
writes() {
	local i
	for ((i = 0; ; i++)); do
		[[ ! -e $WORK/end ]] || break
		cp "$WORK/data.$((i % 4))" "$RANK/$(chunk_hash "$i" written)"
		echo "$i" >>"$WORK/written"
		pause 0.05
	done
}
# p99 PHASE: of opens of resident objects, in ms; all of them succeed.
p99() {
	local -a ms=()
	assert_eq "" "$(awk -v p="$1" '$1 == p && $2 != 0' "$WORK/resident.out")" "opens of resident objects that failed"
	mapfile -t ms < <(awk -v p="$1" '$1 == p { print $3 }' "$WORK/resident.out" | sort -n)
	((${#ms[@]} > 0)) || fail "no opens of resident objects $1"
	echo "${#ms[@]} opens of resident objects, $1: median ${ms[${#ms[@]} / 2]}, p99 ${ms[${#ms[@]} * 99 / 100]} ms" >&2
	echo "${ms[${#ms[@]} * 99 / 100]}"
}
has_some() {
	[[ -s $WORK/written && $(grep -c "^$1 " "$WORK/$2.out") -ge $3 ]]
}
# read_others WHEN: what the other nodes have, out of them.
read_others() {
	local i hash
	for i in "${others[@]:0:8}"; do
		hash=$(chunk_hash "$i" evicted)
		evict "$RANK/$hash"
		cmp "$RANK/$hash" "$WORK/data.$i" || fail "chunk $i of another node $1"
	done
}

hashes=()
for i in 0 1 2 3; do
	hashes+=("$(chunk_hash "$i" resident)")
done
phase before
opens resident 0.004 "${hashes[@]}" &
loops+=($!)
writes &
loops+=($!)
wait_until 30 "300 opens" has_some before resident 300

# ---- Stopped ---------------------------------------------------------------------------------

# Not there while all nodes are.
down() {
	awk '$1 == "l2.0.cluster_nodes_down" { print $2 }' "$MNT/.kvcache/status"
}
is_seen() {
	[[ $(down) == "127.0.0.1:$victim" && $(status l2.0.health) != ok && $(status health) != ok ]]
}
is_back() {
	[[ -z $(down) && $(status l2.0.server) == ok && $(status l2.0.health) != failed && $(status l2.0.breaker) == closed ]]
}
hashes=()
for i in "${mine[@]:0:4}"; do
	hashes+=("$(chunk_hash "$i" evicted)")
done
phase stopped
kill -STOP "${servers[$victim]}"
opens evicted 0.2 "${hashes[@]}" &
loops+=($!)
wait_until 20 "status names the node" is_seen
read_others "while one is stopped"
sleep "$OUTAGE_S"
wait_until 20 "an open of what is only there ends" has_some stopped evicted 1
is_seen || fail "status does not name the node any more"
phase between
kill -CONT "${servers[$victim]}"
wait_until 60 "the node is asked again" is_back

# ---- Killed ----------------------------------------------------------------------------------

phase killed
kill -KILL "${servers[$victim]}"
wait "${servers[$victim]}" 2>/dev/null || true
wait_until 20 "status names the node" is_seen
read_others "while one is gone"
sleep 1
phase after
start_node "$victim" || fail "the node does not start again"
wait_until 60 "the node is asked again" is_back
sleep 0.3
touch "$WORK/end"
wait "${loops[@]}"

# ---- What has come of it ---------------------------------------------------------------------

before=$(p99 before)
for phase in stopped killed; do
	took=$(p99 "$phase")
	assert_le "$took" $((before * 3 > 10 ? before * 3 : 10)) "p99 of opens of resident objects in ms, $phase (before: $before)"
done
awk '$1 == "stopped" || $1 == "killed" { n[$1 " " $2]++ } END { for (k in n) print "opens of what is only there, " k ": " n[k] }' "$WORK/evicted.out"
assert_eq "" "$(awk '$1 == "stopped" && $2 != "ENOENT"' "$WORK/evicted.out" | head -n 3)" "opens without the node that do not end with ENOENT"
assert_le "$(awk '$1 == "stopped" && $3 > m { m = $3 } END { print m + 0 }' "$WORK/evicted.out")" $((LOAD_TIMEOUT_S * 1000 + 3000)) \
	"the longest of them in ms"

control flush /
n=$(wc -l <"$WORK/written")
echo "$n objects written meanwhile"
assert_eq 0 "$(status l1_unreplicated_objects)" l1_unreplicated_objects
evict /
for ((i = 0; i < n; i++)); do
	cmp -s "$WORK/data.$((i % 4))" "$RANK/$(chunk_hash "$i" written)" || fail "object $i that was written"
done
for ((i = 0; i < N; i++)); do
	cmp "$WORK/data.$i" "$RANK/$(chunk_hash "$i" evicted)" || fail "chunk $i"
done
is_well() {
	[[ $(status l2.0.health) == ok && $(status health) == ok ]]
}
wait_until 150 "health is ok again" is_well
stop_fs
