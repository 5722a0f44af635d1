#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make-certificates.sh DIRECTORY: makes ca.crt there, and server.crt (of localhost and 127.0.0.1) and client.crt, which it
# has signed, each with its .key. 77: no openssl on this machine.
set -euo pipefail
command -v openssl >/dev/null || {
	echo "skipped: no command openssl"
	exit 77
}
mkdir -p "$1"
cd "$1"
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${key[@]}" -keyout ca.key -out ca.crt -days 2 -subj "/CN=ca" 2>>log
echo "subjectAltName=DNS:localhost,IP:127.0.0.1" >names
for name in server client; do
	openssl req "${key[@]}" -keyout "$name.key" -out request -subj "/CN=$name" 2>>log
	openssl x509 -req -in request -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out "$name.crt" 2>>log
done
