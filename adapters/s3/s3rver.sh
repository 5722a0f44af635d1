#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# s3rver.sh DIRECTORY [PORT]: the S3 server of test-server/ at 127.0.0.1, until it is killed, in the place of this shell.
# DIRECTORY gets "credentials" (a file as ~/.aws/credentials, with keys made up for it; one that is there is used) and,
# once it answers, "port". Its buckets: kvc, and another-bucket.
#
# What test-server/package-lock.json names is installed with npm at the first time, into
# ${KVC_TEST_CACHE:-~/.cache/kvcachefs-tests}. 77: that cannot be had on this machine.
set -euo pipefail

work=$1
port=${2:-0}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/test-server" && pwd)
cache=${KVC_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/kvcachefs-tests}

skip() {
	echo "skipped: $*"
	exit 77
}
command -v node >/dev/null || skip "no command node"
version=$(node --version)
version=${version#v}
[[ ${version%%.*} -ge 20 ]] || skip "node $version is older than 20"
modules=$cache/s3-test-server-$(sha256sum "$source/package-lock.json" | cut -c1-16)
install_modules() {
	command -v npm >/dev/null || skip "no command npm"
	rm -rf "$modules.new"
	mkdir -p "$modules.new"
	cp "$source"/package*.json "$modules.new"
	(cd "$modules.new" && npm ci --omit=dev --ignore-scripts --no-audit --no-fund) >"$cache/s3-test-server.log" 2>&1 ||
		skip "npm cannot install s3rver: $(tail -n 1 "$cache/s3-test-server.log")"
	mv -T "$modules.new" "$modules"
}
if ! mkdir -p "$cache" 2>/dev/null || [[ ! -w $cache ]]; then
	cache=/var/tmp/kvcachefs-tests.$UID
	modules=$cache/${modules##*/}
	mkdir -p "$cache"
	[[ -O $cache ]] || skip "$cache is somebody else's"
fi
exec {lock}>"$cache/s3-test-server.lock"
flock "$lock"
[[ -d $modules ]] || install_modules
exec {lock}>&-

random() {
	od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'
}
if [[ ! -e $work/credentials ]]; then
	(umask 077 && printf '[default]\naws_access_key_id = AKIA%s\naws_secret_access_key = %s/+%s\n' \
		"$(random 6)" "$(random 8)" "$(random 8)" >"$work/credentials")
fi
value() {
	sed -n "s/^$1 = //p" "$work/credentials"
}
# It makes its continuation tokens with DES.
rm -f "$work/port"
export NODE_PATH=$modules/node_modules
exec node --openssl-legacy-provider "$source/server.js" "$(value aws_access_key_id)" "$(value aws_secret_access_key)" "$work/port" "$port" \
	kvc another-bucket
