# shellcheck shell=bash disable=SC2154 # scripts/test sets what is not set here
# SPDX-License-Identifier: Apache-2.0
#
# Part of scripts/test: a line for each test as it ends, the duration of each part, the closing line.

n_passed=0 n_failed=0 n_skipped=0

# report RESULT NAME SECONDS [LOG]
report() {
	printf '%s %s %s\n' "$1" "$2" "$3"
	case $1 in
	PASS) n_passed=$((n_passed + 1)) ;;
	SKIP)
		n_skipped=$((n_skipped + 1))
		[[ -z ${4:-} ]] || sed -n 's/^skipped: /    /p' "$4"
		;;
	*)
		n_failed=$((n_failed + 1))
		if [[ -n ${4:-} ]]; then
			tail -n 60 "$4" | sed 's/^/    /'
			echo "    (all of it: $4)"
		fi
		;;
	esac
}

finish() {
	echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
	((n_failed == 0)) || exit 1
	exit 0
}

now_ms() {
	echo $(($(date +%s%N) / 1000000))
}

# seconds_since MS
seconds_since() {
	local ms=$(($(now_ms) - $1))
	printf '%d.%02d' $((ms / 1000)) $((ms % 1000 / 10))
}

# step NAME COMMAND...: what must work before there is anything to test.
step() {
	local name=$1 begin log
	begin=$(now_ms)
	shift
	log=$logs/$name.log
	if ! "$@" >"$log" 2>&1; then
		report FAIL "$name" "$(seconds_since "$begin")" "$log"
		finish
	fi
	echo "$name: $(seconds_since "$begin") s"
}

# check NAME COMMAND...: a test that is one command; 77 is a skip.
check() {
	local name=$1 begin rc=0 log
	begin=$(now_ms)
	shift
	log=$logs/$(tr / - <<<"$name").log
	"$@" >"$log" 2>&1 || rc=$?
	case $rc in
	0) report PASS "$name" "$(seconds_since "$begin")" ;;
	77) report SKIP "$name" "$(seconds_since "$begin")" "$log" ;;
	*) report FAIL "$name" "$(seconds_since "$begin")" "$log" ;;
	esac
}

# part NAME COMMAND...: what reports its tests itself.
part() {
	local name=$1 begin
	begin=$(now_ms)
	shift
	"$@"
	echo "$name: $(seconds_since "$begin") s"
}
