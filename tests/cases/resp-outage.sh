#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Redis, over TCP with user and password, is stopped for a while under load, then killed and started again. Opens of what
# is in memory do not notice; opens of what is only in L2 end with ENOENT in time; status says what is going on, and that
# it is over; whatever was written meanwhile is in the server in the end. The password is nowhere to be seen.
#
# soak
# timeout: 180

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

require_cmd redis-server
require_cmd redis-cli
grep -q '^  resp ' <<<"$("$KVCACHEFS" --help)" || skip "built without hiredis"

OUTAGE_S=${OUTAGE_S:-4}
LOAD_TIMEOUT_S=2
redis=
loops=()
end() {
	case_ended || true # first: it looks at the exit status
	[[ -z $redis ]] || kill -KILL "$redis" 2>/dev/null || true
}
trap end EXIT

# ---- The server ------------------------------------------------------------------------------

mkdir "$WORK/redis"
(umask 077 && echo "sesame street" >"$WORK/password")
# What it has answered survives its death.
start_redis() {
	cat >"$WORK/redis.conf" <<-END
		bind 127.0.0.1
		port $port
		dir "$WORK/redis"
		save ""
		appendonly yes
		appendfsync no
		user default off
		user kvc on ">sesame street" ~* +@all
	END
	redis-server "$WORK/redis.conf" >>"$WORK/redis.log" 2>&1 &
	redis=$!
}
cli() {
	REDISCLI_AUTH="sesame street" redis-cli --no-auth-warning --user kvc -p "$port" "$@"
}
has_begun() {
	is_gone "$redis" || [[ $(cli PING 2>/dev/null) == PONG ]]
}
for ((i = 0; i < 20; i++)); do
	port=$((RANDOM % 20000 + 10000))
	start_redis
	wait_until 30 "redis-server answers or ends" has_begun
	is_gone "$redis" || break
done

# ---- The load --------------------------------------------------------------------------------

start_bare --l2-prefetch-load-timeout "$LOAD_TIMEOUT_S" --l2-adapter \
	"type=resp,host=127.0.0.1,port=$port,username=kvc,password_file=$WORK/password,request_timeout=1,connection_timeout=1,breaker_cooldown_s=0.2,breaker_max_s=1"
mkdir -p "$RANK"
for i in 0 1 2 3; do
	mkchunk "$WORK/data.$i" 256K "$i"
	cp "$WORK/data.$i" "$RANK/$(chunk_hash "$i" evicted)"
	evict "$RANK/$(chunk_hash "$i" evicted)"
	cp "$WORK/data.$i" "$RANK/$(chunk_hash "$i" resident)"
done
control flush /

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

# opens FILE SERIES SECONDS: opens the four objects of a series in turn, with a pause; FILE.out gets the times.
opens() {
	local i=0
	local -a hashes=()
	for i in 0 1 2 3; do
		hashes+=("$(chunk_hash "$i" "$2")")
	done
	while [[ ! -e $WORK/end ]]; do
		i=$(((i + 1) % 4))
		echo "$(<"$WORK/phase") open $RANK/${hashes[i]} r"
		echo "close close"
		pause "$3"
	done | "$CLIENTS/file-steps" -t >"$WORK/$1.out"
}
# Written all the time, so that stores, too, are under way when the server is gone.
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

phase before
opens resident resident 0.004 &
loops+=($!)
writes &
loops+=($!)
wait_until 30 "300 opens" has_some before resident 300

# ---- Stopped ---------------------------------------------------------------------------------

is_seen() {
	[[ $(status l2.0.server) == unreachable && $(status l2.0.health) != ok && $(status health) != ok ]]
}
is_back() {
	[[ $(status l2.0.server) == ok && $(status l2.0.health) != failed && $(status l2.0.breaker) == closed ]]
}
phase stopped
kill -STOP "$redis"
opens evicted evicted 0.2 &
loops+=($!)
sleep "$OUTAGE_S"
wait_until 20 "status says that the server is unreachable" is_seen
wait_until 20 "an open of what is only in L2 ends" has_some stopped evicted 1
phase between
kill -CONT "$redis"
wait_until 30 "the server is asked again" is_back

# ---- Killed ----------------------------------------------------------------------------------

phase killed
kill -KILL "$redis"
wait "$redis" 2>/dev/null || true
wait_until 20 "status says that the server is unreachable" is_seen
sleep 1
phase after
start_redis
wait_until 30 "the server is asked again" is_back
sleep 0.3
touch "$WORK/end"
wait "${loops[@]}"

# ---- What has come of it ---------------------------------------------------------------------

# A machine with other things to do has its share in it: the same opens, with the server there, tell how much.
before=$(p99 before)
for phase in stopped killed; do
	took=$(p99 "$phase")
	assert_le "$took" $((before * 3 > 10 ? before * 3 : 10)) "p99 of opens of resident objects in ms, $phase (before: $before)"
done
awk '$1 == "stopped" || $1 == "killed" { n[$1 " " $2]++ } END { for (k in n) print "opens of what is only in L2, " k ": " n[k] }' "$WORK/evicted.out"
assert_eq "" "$(awk '$1 == "stopped" && $2 != "ENOENT"' "$WORK/evicted.out" | head -n 3)" "opens without a server that do not end with ENOENT"
assert_le "$(awk '$1 == "stopped" && $3 > m { m = $3 } END { print m + 0 }' "$WORK/evicted.out")" $((LOAD_TIMEOUT_S * 1000 + 3000)) \
	"the longest of them in ms"

control flush /
n=$(wc -l <"$WORK/written")
echo "$n objects written meanwhile"
assert_eq 0 "$(status l1_unreplicated_objects)" l1_unreplicated_objects
for i in 0 1 2 3; do
	expect_output "$(sha "$WORK/data.$i")" sha "$RANK/$(chunk_hash "$i" evicted)"
	for series in evicted resident; do
		cli GET "$MODEL@01000100@0@$(chunk_hash "$i" "$series")" | head -c -1 | cmp - "$WORK/data.$i" || fail "value of $series chunk $i"
	done
done
evict /
for ((i = 0; i < n; i++)); do
	cmp -s "$WORK/data.$((i % 4))" "$RANK/$(chunk_hash "$i" written)" || fail "object $i that was written"
done
if ((OUTAGE_S > 10)); then
	is_well() {
		[[ $(status l2.0.health) == ok && $(status health) == ok ]]
	}
	wait_until 150 "health is ok again" is_well
fi
! grep -l "sesame" "/proc/$DAEMON_PID/cmdline" "/proc/$DAEMON_PID/environ" "$MNT/.kvcache"/{status,stats,config} "$DAEMON_LOG" ||
	fail "the password can be seen"
stop_fs
