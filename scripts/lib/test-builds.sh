# shellcheck shell=bash disable=SC2154 # scripts/test sets what is not set here
# SPDX-License-Identifier: Apache-2.0
#
# Part of scripts/test: the builds, one directory for each kind, and the unit tests in them.
#
# A kind: plain; asan (ASan and UBSan); tsan, and without the optional libraries; bare (without the optional
# libraries). One `meson setup` each, and only the targets that are needed.

# tree_of KIND: its build directory.
tree_of() {
	case $1 in
	asan | tsan | bare) echo "$build-$1" ;;
	*) echo "$build" ;;
	esac
}

# options_of KIND: of meson, one a line. -g1: the lines, for the reports, and quicker to build.
options_of() {
	case $1 in
	asan) printf '%s\n' --buildtype=debug -Dc_args=-g1 -Db_sanitize=address,undefined -Db_lundef=false ;;
	tsan) printf '%s\n' --buildtype=debug -Dc_args=-g1 -Doptimization=1 -Db_sanitize=thread -Db_lundef=false -Dauto_features=disabled ;;
	bare) printf '%s\n' --buildtype=debugoptimized -Dauto_features=disabled ;;
	*) printf '%s\n' --buildtype=debugoptimized ;;
	esac
}

# targets_in DIRECTORY WHAT...: the programs of "units" and "mount" (the daemon; the cases' clients are the plain build's).
targets_in() {
	local dir=$1 what pattern=''
	shift
	for what in "$@"; do
		case $what in
		units) pattern+='|tests/(unit|random|contract)/' ;;
		mount) pattern+='|fs/kvcachefs:' ;;
		esac
	done
	ninja -C "$dir" -t targets all | awk -F : -v pattern="^(${pattern#|})" '/: c_LINKER/ && $0 ~ pattern { print $1 }'
}

# set_up DIRECTORY OPTION...: again when an option or a file that meson looks for came or went (it does not watch
# directories).
set_up() {
	local dir=$1 state
	shift
	state=$(cd "$root" && printf '%s\n' "$@" adapters/*/ policies/*/ tests/*/test-*.c)
	if [[ ! -f $dir/build.ninja ]]; then
		meson setup "$dir" "$root" "$@" || return 1
	elif [[ $state != "$(cat "$dir/.names" 2>/dev/null)" ]]; then
		meson setup --reconfigure "$dir" "$root" "$@" || return 1
	fi
	printf '%s\n' "$state" >"$dir/.names"
}

# build_tree KIND [WHAT...]: sets up and builds; all, or what targets_in knows.
build_tree() {
	local dir kind=$1
	local -a options=() targets=()
	shift
	dir=$(tree_of "$kind")
	mapfile -t options < <(options_of "$kind")
	set_up "$dir" "${options[@]}" || return 1
	if (($# > 0)); then
		mapfile -t targets < <(targets_in "$dir" "$@")
		((${#targets[@]} > 0)) || return 1
	fi
	ninja -C "$dir" ${targets[@]+"${targets[@]}"}
}

# fixed_addresses COMMAND...: GCC's ThreadSanitizer does not bear as much address randomisation as new kernels do.
fixed_addresses() {
	if setarch -R true 2>/dev/null; then
		setarch -R "$@"
	else
		"$@"
	fi
}

# sanitized KIND LOG COMMAND...: with what the sanitizers of that kind of build want to be told. LOG is the beginning
# of the files that they write; empty: stderr, and they end the program.
sanitized() {
	local kind=$1 report=halt_on_error=1
	[[ -z $2 ]] || report=log_path=$2
	shift 2
	# glib's own allocator hides from them who frees what.
	case $kind in
	asan) G_SLICE=always-malloc ASAN_OPTIONS=$report UBSAN_OPTIONS=print_stacktrace=1:$report "$@" ;;
	tsan) G_SLICE=always-malloc TSAN_OPTIONS=$report:second_deadlock_stack=1 fixed_addresses "$@" ;;
	*) "$@" ;;
	esac
}

# run_units KIND NAME [OPTION...]: the meson tests (those that the options of `meson test` choose); a line each as
# meson prints it.
run_units() {
	local kind=$1 prefix=$2/ dir log line name result seconds n_seen=0 in_summary=false
	local -a failed=()
	local pattern='^ *[0-9]+/[0-9]+ +(.*[^ ]) +(OK|FAIL|SKIP|TIMEOUT|ERROR|INTERRUPT|EXPECTEDFAIL|UNEXPECTEDPASS) +([0-9.]+)s'
	shift 2
	dir=$(tree_of "$kind") log=$logs/${prefix%/}.log
	while IFS= read -r line; do
		# What follows repeats the failures.
		[[ $line != "Summary of Failures:"* ]] || in_summary=true
		! $in_summary || continue
		[[ $line =~ $pattern ]] || continue
		name=$prefix${BASH_REMATCH[1]##* / } result=${BASH_REMATCH[2]} seconds=${BASH_REMATCH[3]}
		n_seen=$((n_seen + 1))
		case $result in
		OK | EXPECTEDFAIL) report PASS "$name" "$seconds" ;;
		SKIP) report SKIP "$name" "$seconds" ;;
		*)
			report FAIL "$name" "$seconds"
			failed+=("${name#"$prefix"}")
			;;
		esac
	done < <(PYTHONUNBUFFERED=1 sanitized "$kind" '' meson test -C "$dir" --no-rebuild --num-processes $((jobs * 3)) "$@" 2>&1 |
		tee "$log")
	((n_seen > 0)) || report FAIL "${prefix}any" 0 "$log"
	for name in ${failed[@]+"${failed[@]}"}; do
		unit_log "$dir" "$name" | tail -n 60
	done
}

# The output of one test out of meson's log.
unit_log() {
	awk -v name="$2" '
		/^=+ [0-9]+\/[0-9]+ =+$/ { block = ""; mine = 0 }
		$1 == "test:" { mine = $NF == name }
		{ block = block $0 "\n" }
		/^=+$/ && mine { printf "%s", block; mine = 0 }
	' "$1/meson-logs/testlog.txt"
}
