# shellcheck shell=bash disable=SC2154 # scripts/test sets what is not set here
# SPDX-License-Identifier: Apache-2.0
#
# Part of scripts/test: the unit tests under valgrind's memcheck.
#
# Not all of them: valgrind (3.19) keeps its one lock while a thread waits in io_uring_enter, so that no other thread of
# the program runs any more; every program with a ring hangs. Those have ASan. It does not know fsopen either, L1 falls
# back to memfd then, which is a way that works.

# Programs that open a ring: the I/O helpers and whatever opens an adapter of type fs. And: scripts, the random ones
# (too slow to find anything there).
valgrind_excluded='io|storage-manager|storage-manager-attributes|store-deleter|adapter-set|adapter-fs.*|contract-adapter|public-headers|exports'

# unit_names TREE: of the meson tests but the random and the long ones.
unit_names() {
	meson test -C "$1" --list --no-suite random --no-suite long 2>/dev/null | sed -n 's,^[^ ]* / ,,p'
}

run_valgrind() {
	local -a names=()
	mapfile -t names < <(unit_names "$(tree_of plain)" | grep -vxE "$valgrind_excluded")
	G_SLICE=always-malloc G_DEBUG=gc-friendly run_units plain valgrind --timeout-multiplier 20 \
		--wrapper "valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --suppressions=$root/scripts/lib/valgrind.supp" \
		"${names[@]}"
}
