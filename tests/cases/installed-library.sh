#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A program that is built with the installed library only, found by pkg-config, does the four steps of a prefetch
# (submit, poll or wait, read, release) on chunks that LMCache's file names have in L2; the installed daemon runs.
# The example of kvcache(3) works, and the command that builds a module out of tree does so for every adapter of this one.
#
# quick
# parallel
# timeout: 600
# not-in: direct: mounts nothing
# not-in: user: installs from a build directory that only root writes to
# not-in: asan: the program would have to be built as the library is
# not-in: tsan: the program would have to be built as the library is

. "$(dirname "$0")/lib.sh"

meson install -C "$BUILD" --no-rebuild --quiet --destdir "$WORK/root"
pc=$(find "$WORK/root" -name kvcache.pc)
[[ -n $pc ]] || fail "no kvcache.pc is installed"
prefix=$(sed -n 's/^prefix=//p' "$pc")
# --destdir moves the files only; this is what --prefix would have made of it.
sed -i "s|^prefix=.*|prefix=$WORK/root$prefix|" "$pc"
prefix=$WORK/root$prefix
export PKG_CONFIG_PATH=${pc%/*}
libdir=$(pkg-config --variable=libdir kvcache)

# ---- What is installed ------------------------------------------------------------------------

assert_eq "$(cd "$SRC/engine/kvcache" && ls)" "$(ls "$(pkg-config --variable=includedir kvcache)/kvcache")" "headers"
assert_eq "$libdir/kvcachefs/adapters" "$(pkg-config --variable=adapterdir kvcache)" "adapterdir"
assert_eq "$libdir/kvcachefs/policies" "$(pkg-config --variable=policydir kvcache)" "policydir"
version=$(pkg-config --modversion kvcache)
# The daemon finds the library by its own path.
[[ $("$prefix/bin/kvcachefs" --version) == "kvcachefs $version "* ]] || fail "kvcachefs --version is not $version"

# ---- The program ------------------------------------------------------------------------------

# Away from the tree, so that nothing of it is found by accident.
mkdir "$WORK/program" "$WORK/out"
cp "$SRC/tests/clients/four-step-prefetch.c" "$WORK/program"
cd "$WORK/program"
read -ra flags < <(pkg-config --cflags --libs kvcache)
"${CC:-cc}" -Wall -Wextra -Wno-unused-parameter -Werror four-step-prefetch.c -o four-step-prefetch "${flags[@]}"
export LD_LIBRARY_PATH=$libdir
[[ $(ldd four-step-prefetch) == *"=> $libdir/libkvcache.so."* ]] || fail "it is not linked with the installed library"

# That of the manual.
awk '/^# / { on = $0 == "# EXAMPLE" } on && /^```$/ { is_code = !is_code; next } on && is_code' "$SRC/man/kvcache.3.scd" >example.c
"${CC:-cc}" -Wall -Wextra -Wno-unused-parameter -Werror example.c -o example "${flags[@]}"
mkdir "$WORK/example"
assert_eq "keys and values" "$(./example "$WORK/example")" "output of the example of kvcache(3)"
assert_eq "some-SEP-model@0x01000100@0@9f86d081884c7d65.data" "$(ls "$WORK/example")" "what the example stored"

# ---- A module out of tree ----------------------------------------------------------------------

# The command of the documents, on all adapters of this tree, and on one under a name that is not taken.
sed -n '/^## Out of tree/,$ s/^    //p' "$SRC/adapters/README.md" >"$WORK/command"
assert_eq 2 "$(wc -l <"$WORK/command")" "lines of the command"
while IFS= read -r line; do
	grep -qxF -- "$line" "$SRC/man/kvcache.3.scd" || fail "kvcache(3) does not say: $line"
done <"$WORK/command"
# build_module NAME: of the sources in modules/NAME.
build_module() {
	(
		cd "$WORK/modules/$1"
		cc() {
			command "${CC:-cc}" -Wall -Wno-unused-parameter -Werror "$@"
		}
		eval "$(sed "s/NAME/$1/g" "$WORK/command")"
	) || fail "adapters/README.md: the command fails for $1"
	[[ -f $libdir/kvcachefs/adapters/$1.so ]] || fail "no $1.so"
}
mkdir "$WORK/modules"
for folder in "$SRC"/adapters/*/; do
	cp -r "$folder" "$WORK/modules"
	build_module "$(basename "$folder")"
done
mkdir "$WORK/modules/copied"
for file in "$SRC"/adapters/mock/mock*; do
	sed -E 's/(^|[^c])mock/\1copied/g; s/Mock/Copied/g' "$file" >"$WORK/modules/copied/copied${file##*/mock}"
done
build_module copied
said=$(KVC_ADAPTER_DIR=$libdir/kvcachefs/adapters "$prefix/bin/kvcachefs" --l2-adapter type=copied,max_size_gb=much "$MNT" 2>&1) &&
	fail "a start with a wrong option"
[[ $said == *'--l2-adapter (copied): option "max_size_gb": "much" is not a decimal number' ]] || fail "the module says: $said"
! "$prefix/bin/kvcachefs" --help | grep -w copied || fail "kvcachefs --help has a module out of tree"

# ---- Four steps --------------------------------------------------------------------------------

hashes=(00112233 9f86d081884c7d65 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 ffeeddcc)
absent=0123456789abcdef
bytes=1
for hash in "${hashes[@]}"; do
	bytes=$((bytes * 17 + 4096))
	"$CLIENTS/pattern" "$SEED$bytes" "$bytes" >"$L2/some-SEP-model@0x01000100@0@$hash.data"
done
./four-step-prefetch "$L2" "$WORK/out" "${hashes[@]}" "$absent"
assert_eq "$(printf '%s\n' "${hashes[@]}" | sort)" "$(ls "$WORK/out")" "what was read"
for hash in "${hashes[@]}"; do
	cmp "$L2/some-SEP-model@0x01000100@0@$hash.data" "$WORK/out/$hash"
done
