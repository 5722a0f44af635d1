#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# with-redis.sh COMMAND...: runs the command with these replaced in its arguments, by what leads to a Redis server of
# its own in a private directory:
#
#   @SERVER@     its socket, where no password is asked for
#   @PORT@       its port at 127.0.0.1, and there are the user "kvc", who may do what the adapter has to and no more, and
#   @PASSWORD@   the file with his password, or
#   @TLS_PORT@   its port at localhost where TLS is spoken, with certificates on both sides, and for the same user; and
#   @TLS@        the directory with ca.crt, client.crt and client.key
#
# 77: no redis-server on this machine, or no openssl to make certificates.
set -euo pipefail
command -v redis-server >/dev/null || {
	echo "skipped: no command redis-server"
	exit 77
}
work=$(mktemp -d)
server=
end() {
	[[ -z $server ]] || kill "$server" 2>/dev/null || true
	[[ -z $server ]] || wait "$server" 2>/dev/null || true
	rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

commands="+get +set +mset +del +strlen +exists +rename +multi +exec +scan +dbsize +info +ping +select +client|id +client|kill"
(umask 077 && echo "a password" >"$work/password")
tls=
# start PORT SOCKET: false if there is somebody at the port.
start() {
	cat >"$work/conf" <<-END
		bind 127.0.0.1
		${tls:-port} $1
		unixsocket "$2"
		dir "$work"
		save ""
		appendonly no
		databases 1000
		user kvc on ">a password" ~* -@all $commands
	END
	# Not on the same server as a socket for everybody.
	[[ $1 == 0 ]] || echo "user default off" >>"$work/conf"
	redis-server "$work/conf" >"$work/log" 2>&1 &
	server=$!
	until [[ -S $2 ]]; do
		kill -0 "$server" 2>/dev/null || return 1
		sleep 0.05
	done
}
case $* in
*@TLS_PORT@*)
	"${0%/*}/make-certificates.sh" "$work/tls"
	tls="port 0
		tls-cert-file $work/tls/server.crt
		tls-key-file $work/tls/server.key
		tls-ca-cert-file $work/tls/ca.crt
		tls-port"
	;;
esac
case $* in
*@PORT@* | *@TLS_PORT@*)
	for ((i = 0; i < 20; i++)); do
		port=$((RANDOM % 20000 + 10000))
		! start "$port" "$work/socket" || break
	done
	;;
*)
	port=0
	start 0 "$work/socket" || true
	;;
esac
kill -0 "$server" 2>/dev/null || {
	cat "$work/log"
	exit 1
}
arguments=()
for argument; do
	argument=${argument//@SERVER@/$work/socket}
	argument=${argument//@PORT@/$port}
	argument=${argument//@TLS_PORT@/$port}
	argument=${argument//@TLS@/$work/tls}
	arguments+=("${argument//@PASSWORD@/$work/password}")
done
"${arguments[@]}"
