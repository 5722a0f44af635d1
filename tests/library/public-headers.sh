#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# public-headers.sh C-COMPILER C++-COMPILER FLAG...: each header of engine/kvcache/ compiles alone, as C17 and as C++,
# without a warning, and the umbrella header includes all of them.
set -eu
cc=$1 cxx=$2
shift 2
command -v "$cxx" >/dev/null || {
	echo "skipped: no C++ compiler \"$cxx\""
	exit 77
}
cd "$(dirname "$0")/../../engine"

rc=0
for header in kvcache/*.h; do
	# Twice: the guard. An empty translation unit is no C.
	source=$(printf '#include <%s>\n#include <%s>\nint not_empty(void);\nint not_empty(void) { return 0; }\n' "$header" "$header")
	for language in "$cc -x c -std=c17 -pedantic" "$cxx -x c++ -std=c++17"; do
		# The compilers are commands with arguments.
		# shellcheck disable=SC2086
		printf '%s\n' "$source" | $language -Wall -Wextra -Werror -I. "$@" -fsyntax-only - || {
			echo "$header: $language" >&2
			rc=1
		}
	done
	[ "$header" = kvcache/kvcache.h ] || grep -qxF "#include \"$header\"" kvcache/kvcache.h || {
		echo "$header: not in kvcache/kvcache.h" >&2
		rc=1
	}
done
exit $rc
