# shellcheck shell=bash disable=SC2154 # scripts/test sets what is not set here
# SPDX-License-Identifier: Apache-2.0
#
# Part of scripts/test: the mutations of tests/mutations, one at a time in a copy of the tree. A test whose failure
# nobody has seen proves nothing. The head of a patch:
#
#	# rule: what it breaks
#	# test: PROGRAM TEST    a program of tests/unit, and the cmocka test in it that must fail

mutation_seconds=120

# head_value PATCH NAME
head_value() {
	sed -n "/^---/q; s/^# $2: *//p" "$1"
}

# copy_tree DIRECTORY: the sources as they are here, committed or not.
copy_tree() {
	mkdir "$1" && tar -C "$root" --exclude=./.git --exclude='./build*' -cf - . | tar -C "$1" -xf -
}

# run_mutant DIRECTORY PROGRAM LOG: builds and runs it. 2: it does not build, else what the program returns.
run_mutant() {
	ninja -C "$1/build" "tests/unit/$2" >"$3" 2>&1 || return 2
	local rc=0
	(cd "$1" && timeout --kill-after=5 "$mutation_seconds" "build/tests/unit/$2") >>"$3" 2>&1 || rc=$?
	((rc != 2)) || rc=3
	return "$rc"
}

# passed LOG TEST
passed() {
	grep -qF "[       OK ] $2" "$1"
}

# failed LOG TEST: by an assertion of the test or of its teardown, or it ended the program (or never ended).
failed() {
	grep -qxF -e "[  FAILED  ] $2" -e "[  ERROR   ] $2" "$1" && return
	! passed "$1" "$2" && [[ $(grep -F '[ RUN      ]' "$1" | tail -n 1) == "[ RUN      ] $2" ]]
}

# expect_failure DIRECTORY PATCH LOG: prints why not.
expect_failure() {
	local dir=$1 patch=$2 log=$3 program test rc=0
	read -r program test <<<"$(head_value "$patch" test)"
	if [[ -z $test ]]; then
		echo "no line \"# test: PROGRAM TEST\" in its head" >"$log"
		return 1
	fi
	if ! patch -d "$dir" -p1 -s -f --no-backup-if-mismatch -r - <"$patch" >"$log" 2>&1; then
		echo "the patch does not apply" >>"$log"
		return 1
	fi
	run_mutant "$dir" "$program" "$log" || rc=$?
	patch -d "$dir" -p1 -s -f -R --no-backup-if-mismatch -r - <"$patch" >>"$log" 2>&1 || return 1
	if ((rc == 2)); then
		echo "it does not build" >>"$log"
		return 1
	elif ((rc == 0)) || ! failed "$log" "$test"; then
		echo "$test did not fail" >>"$log"
		return 1
	fi
}

# expect_pass DIRECTORY PATCH LOG
expect_pass() {
	local program test
	read -r program test <<<"$(head_value "$2" test)"
	[[ -n $test && -e $1/$program.log ]] || run_mutant "$1" "${program:-none}" "$1/${program:-none}.log" || true
	cp "$1/${program:-none}.log" "$3"
	passed "$3" "$test" && return
	echo "$test does not pass without the patch" >>"$3"
	return 1
}

run_mutations() {
	local dir=$run_dir/mutations patch name begin log
	copy_tree "$dir"
	step mutations-setup meson setup "$dir/build" "$dir" --buildtype=debugoptimized
	for patch in "$root"/tests/mutations/*.patch; do
		name=$(basename "$patch" .patch)
		begin=$(now_ms)
		log=$logs/mutate-$name.log
		if expect_pass "$dir" "$patch" "$log" && expect_failure "$dir" "$patch" "$log"; then
			report PASS "mutate/$name" "$(seconds_since "$begin")"
		else
			report FAIL "mutate/$name" "$(seconds_since "$begin")" "$log"
		fi
	done
}
