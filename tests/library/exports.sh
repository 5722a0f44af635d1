#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# exports.sh LIBRARY C-COMPILER FLAG...: the library exports the functions that engine/kvcache/*.h declare and nothing
# else, all of them with the version of its SONAME, which is that of KVC_API_VERSION.
set -eu
library=$(realpath "$1") cc=$2
shift 2
cd "$(dirname "$0")/../../engine"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# GCC tells what a source declares: "/* FILE:LINE:NC */ extern TYPE NAME (ARGUMENTS);".
# shellcheck disable=SC2086 # a command with arguments
if ! printf '#include <kvcache/kvcache.h>\n' |
	$cc -x c -I. "$@" -fsyntax-only -aux-info "$work/declarations" - 2>"$work/error" || [ ! -s "$work/declarations" ]; then
	cat "$work/error"
	echo "skipped: $cc has no -aux-info"
	exit 77
fi
version=$(printf '#include <kvcache/kvcache.h>\nKVC_API_VERSION\n' | $cc -x c -I. "$@" -E -P - | tail -n 1)
major=$((version / 1000))

# Both as nm writes them.
sed -n 's|^/\* \(\./\)\{0,1\}kvcache/[^ ]* \*/ extern [^(]*\<\(kvc_[a-z0-9_]*\) (.*|\2|p' "$work/declarations" |
	sed "s/.*/T &@@KVCACHE_$major/" | sort -u >"$work/declared"
nm -D --defined-only --with-symbol-versions "$library" | cut -d ' ' -f 2- | grep -v "^A KVCACHE_$major\(@@KVCACHE_$major\)\{0,1\}$" |
	sort >"$work/exported"
[ -s "$work/declared" ]
diff "$work/declared" "$work/exported" || {
	echo "<: declared in engine/kvcache, not exported; >: exported, not declared" >&2
	exit 1
}
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = "libkvcache.so.$major" ] || {
	echo "SONAME $soname, KVC_API_VERSION $version" >&2
	exit 1
}
echo "$(wc -l <"$work/exported") functions"
