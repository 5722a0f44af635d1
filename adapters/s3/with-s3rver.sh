#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# with-s3rver.sh COMMAND...: runs the command with these replaced in its arguments, by what leads to an S3 server of its
# own (see s3rver.sh), whose bucket is "kvc":
#
#   @PORT@         its port at 127.0.0.1
#   @CREDENTIALS@  the file with the keys
#
# 77: it cannot be had on this machine.
set -euo pipefail
work=$(mktemp -d)
server=
end() {
	[[ -z $server ]] || kill "$server" 2>/dev/null || true
	[[ -z $server ]] || wait "$server" 2>/dev/null || true
	rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

"$(dirname "${BASH_SOURCE[0]}")/s3rver.sh" "$work" >"$work/log" 2>&1 &
server=$!
until [[ -s $work/port ]]; do
	if ! kill -0 "$server" 2>/dev/null; then
		cat "$work/log"
		rc=0
		wait "$server" || rc=$?
		exit "$rc"
	fi
	sleep 0.05
done
port=$(<"$work/port")
arguments=()
for argument; do
	argument=${argument//@PORT@/$port}
	arguments+=("${argument//@CREDENTIALS@/$work/credentials}")
done
"${arguments[@]}"
