#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A folder is a module: a copy of an adapter and one of a policy under new names, in a clone of this tree, are built,
# are in --help and are tested by the contract suite and by their own test, and no other file of the tree was touched.
#
# parallel
# timeout: 600
# not-in: direct: mounts nothing
# not-in: user: builds what root builds
# not-in: asan: has a build of its own
# not-in: tsan: has a build of its own

. "$(dirname "$0")/lib.sh"

require_cmd git
require_cmd python3
# The clone and a copy of the build take the places of what they were made of, so that only what the two folders change
# is built again.
if [[ -z ${NEW_MODULE_INSIDE:-} ]]; then
	mkdir "$WORK/clone"
	for file in "$SRC"/* "$SRC"/.[!.]*; do
		[[ ${file##*/} == build* || ${file##*/} == .git ]] || cp -a "$file" "$WORK/clone"
	done
	cp -a "$BUILD" "$WORK/build"
	# shellcheck disable=SC2016 # expanded by the inner shell
	NEW_MODULE_INSIDE=1 "$SRC/scripts/lib/private-mounts" "$WORK" bash -c '
		set -e
		mount --bind "$1/clone" "$2"
		mkdir -p "$3"
		mount --bind "$1/build" "$3"
		cd "$2"
		exec bash "$4"' new-module "$WORK" "$SRC" "$BUILD" "$(realpath "$0")"
	exit 0
fi
cd "$SRC"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git init -q .
git add -A
git -c user.name=test -c user.email=test@localhost commit -q -m "the tree"

# copy_module KIND OLD NEW WORD: the folder OLD as NEW, in which every WORD is "copied".
copy_module() {
	local file word=$4
	cp -r "$1/$2" "$1/$3"
	for file in "$1/$3"/*; do
		# Not in "cmocka".
		sed -i -E "s/(^|[^c])$word/\1copied/g; s/${word^}/Copied/g; s/${word^^}/COPIED/g" "$file"
		[[ ${file##*/} != *"$word"* ]] || mv "$file" "${file%/*}/$(sed "s/$word/copied/g" <<<"${file##*/}")"
	done
}

copy_module adapters mock copied mock
copy_module policies store-default store-copied default
assert_eq $'?? adapters/copied/\n?? policies/store-copied/' "$(git status --porcelain)" "what was touched"

meson setup --reconfigure "$BUILD" >"$WORK/setup.log" || fail "$(tail -n 20 "$WORK/setup.log")"
ninja -C "$BUILD" fs/kvcachefs tests/contract/contract-adapter tests/contract/contract-policy \
	tests/unit/test-adapter-copied tests/unit/test-policy-store-copied >"$WORK/build.log" ||
	fail "$(tail -n 40 "$WORK/build.log")"

# Two blanks end the left column; the store policies are between their title and the next empty line.
"$BUILD"/fs/kvcachefs --help >"$WORK/help"
grep -qE '^ +copied  ' "$WORK/help" || fail "the adapter is not in --help"
awk '/^Store policies/ { on = 1 } !NF { on = 0 } on' "$WORK/help" | grep -E '^ +copied  ' || fail "the policy is not in --help"

# Of what the contract suite is called with only what is the copy's: the others are tested elsewhere.
mapfile -t specifications < <(meson introspect --tests "$BUILD" | python3 -c '
import json, sys
for test in json.load(sys.stdin):
    if test["name"] == "contract-adapter":
        print(*(arg for arg in test["cmd"] if arg.startswith("type=copied")), sep="\n")')
"$BUILD"/tests/contract/contract-adapter "${specifications[@]}" >"$WORK/contract.log" 2>&1 ||
	fail "$(tail -n 20 "$WORK/contract.log")"
meson test -C "$BUILD" --no-rebuild contract-policy adapter-copied policy-store-copied
for name in "copied: vtable" "copied: round_trips" "store policy: copied"; do
	grep -qF "[       OK ] $name" "$WORK/contract.log" "$BUILD"/meson-logs/testlog.txt ||
		fail "the contract suite has no \"$name\""
done
assert_eq $'?? adapters/copied/\n?? policies/store-copied/' "$(git status --porcelain)" "what was touched in the end"
