#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# with-redis.sh COMMAND...: runs the command with "@SERVER@" in its arguments replaced by the socket of a Redis server
# of its own, in a private directory and without a port. 77: no redis-server on this machine.
set -eu
command -v redis-server >/dev/null || {
	echo "skipped: no command redis-server"
	exit 77
}
work=$(mktemp -d)
server=
end() {
	[ -z "$server" ] || kill "$server" 2>/dev/null || true
	[ -z "$server" ] || wait "$server" 2>/dev/null || true
	rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM
redis-server --port 0 --unixsocket "$work/socket" --dir "$work" --save '' --appendonly no --databases 1000 \
	--daemonize no >"$work/log" 2>&1 &
server=$!
n=0
until [ -S "$work/socket" ]; do
	n=$((n + 1))
	[ "$n" -lt 200 ] && kill -0 "$server" || {
		cat "$work/log"
		exit 1
	}
	sleep 0.05
done
for argument; do
	shift
	set -- "$@" "$(printf '%s' "$argument" | sed "s|@SERVER@|$work/socket|g")"
done
"$@"
