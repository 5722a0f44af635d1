#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# with-redis-cluster.sh COMMAND...: runs the command with these replaced in its arguments, by what leads to a cluster of
# three Redis servers of its own at 127.0.0.1:
#
#   @PORT@       the port of one of them; there are the user "kvc", who may do what the adapter has to and no more, and
#   @PASSWORD@   the file with his password
#   @NODES@      all three, host:port with ';' between
#   @TLS@        the directory with ca.crt, client.crt and client.key: then they speak TLS, to each other as well
#
# and with KVC_CONTRACT_RESET, a command that empties the cluster; KVC_CLUSTER has the directory with what belongs to each
# server in PORT/. 77: no redis-server or redis-cli on this machine.
set -euo pipefail
for command in redis-server redis-cli; do
	command -v "$command" >/dev/null || {
		echo "skipped: no command $command"
		exit 77
	}
done
work=$(mktemp -d)
servers=()
end() {
	local pid
	for pid in "${servers[@]}"; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

commands="+get +set +mset +del +strlen +exists +scan +dbsize +info +ping +asking +cluster|slots +client|id +client|kill"
(umask 077 && echo "a password" >"$work/password")
cli=(redis-cli)
port_line="port"
case $* in
*@TLS@*)
	"${0%/*}/make-certificates.sh" "$work/tls"
	cli+=(--tls --cacert "$work/tls/ca.crt" --cert "$work/tls/client.crt" --key "$work/tls/client.key")
	port_line="port 0
		tls-cluster yes
		tls-cert-file $work/tls/server.crt
		tls-key-file $work/tls/server.key
		tls-ca-cert-file $work/tls/ca.crt
		tls-port"
	;;
esac
# start PORT: false if there is somebody at the port, or at that of its bus.
start() {
	mkdir -p "$work/$1"
	cat >"$work/$1/conf" <<-END
		bind 127.0.0.1
		$port_line $1
		dir "$work/$1"
		pidfile "$work/$1/pid"
		save ""
		appendonly no
		cluster-enabled yes
		cluster-node-timeout 15000
		user kvc on ">a password" ~* -@all $commands
	END
	redis-server "$work/$1/conf" >>"$work/$1/log" 2>&1 &
	local pid=$!
	until "${cli[@]}" -p "$1" PING >/dev/null 2>&1; do
		kill -0 "$pid" 2>/dev/null || return 1
		sleep 0.05
	done
	servers+=("$pid")
	# For those that stop one.
	echo "$pid" >"$work/$1/pid"
}
ports=()
for ((i = 0; i < 60 && ${#ports[@]} < 3; i++)); do
	port=$((RANDOM % 10000 + 10000))
	! start "$port" || ports+=("$port")
done
((${#ports[@]} == 3)) || {
	cat "$work"/*/log
	exit 1
}
"${cli[@]}" --cluster create "${ports[@]/#/127.0.0.1:}" --cluster-yes >"$work/create" 2>&1 || {
	cat "$work/create"
	exit 1
}
for port in "${ports[@]}"; do
	until [[ $("${cli[@]}" -p "$port" CLUSTER INFO) == *cluster_state:ok* ]]; do
		sleep 0.05
	done
	# One that is gone takes its own slots with it, not those of the others.
	"${cli[@]}" -p "$port" CONFIG SET cluster-require-full-coverage no >/dev/null
done

nodes=$(IFS=';' && echo "${ports[*]/#/127.0.0.1:}")
KVC_CLUSTER=$work
KVC_CONTRACT_RESET=$(printf "${cli[*]} -p %s FLUSHALL >/dev/null; " "${ports[@]}")
export KVC_CLUSTER KVC_CONTRACT_RESET
arguments=()
for argument; do
	argument=${argument//@PORT@/${ports[0]}}
	argument=${argument//@NODES@/$nodes}
	argument=${argument//@TLS@/$work/tls}
	arguments+=("${argument//@PASSWORD@/$work/password}")
done
"${arguments[@]}"
