# shellcheck shell=bash disable=SC2154 # scripts/test sets what is not set here
# SPDX-License-Identifier: Apache-2.0
#
# Part of scripts/test: the shell cases of tests/cases, in a mode. A mode is plain; direct (--io-mode=direct); user
# (an ordinary user's daemon, case and clients); asan, tsan, bare (those builds).

# has_mark FILE MARK
has_mark() {
	head -n 20 "$1" | grep -qE "^# $2\$"
}

# mark_value FILE MARK: what follows "# MARK: ".
mark_value() {
	head -n 20 "$1" | sed -n "s/^# $2: *//p"
}

# case_timeout MODE FILE
case_timeout() {
	local seconds
	seconds=$(mark_value "$2" timeout)
	case $1 in
	asan) echo $((${seconds:-120} * 2)) ;;
	tsan) echo $((${seconds:-120} * 4)) ;;
	*) echo "${seconds:-120}" ;;
	esac
}

# find_cases KIND: the files of quick, all (what is not soak) or soak.
find_cases() {
	local file is_soak
	while IFS= read -r file; do
		is_soak=false
		if [[ $file == */soak/* ]] || has_mark "$file" soak; then
			is_soak=true
		fi
		case $1 in
		quick) $is_soak || ! has_mark "$file" quick || echo "$file" ;;
		all) $is_soak || echo "$file" ;;
		soak) ! $is_soak || echo "$file" ;;
		esac
	done < <(find "$root/tests/cases" -name '*.sh' ! -name lib.sh | sort)
}

# one_in N REST: of the files on stdin those whose name's checksum leaves REST; the same ones every time.
one_in() {
	local file sum
	while IFS= read -r file; do
		read -r sum _ < <(basename "$file" | cksum)
		((sum % $1 != $2)) || echo "$file"
	done
}

case_name() {
	local name=${2#"$root"/tests/}
	[[ $1 == plain ]] || name=$1/$name
	echo "${name%.sh}"
}

# The processes that have the directory $1 in their environment. Reading the environment of one that hangs in its
# memory can hang as well: those of its group are looked at one by one then, and it is left out.
processes_of() {
	# shellcheck disable=SC2016 # expanded by the inner shell
	printf '%s\0' /proc/[0-9]*/environ | xargs -0 -n 32 -P 4 bash -c '
		word=$1 && shift
		timeout -s KILL 5 grep -lszxF "$word" "$@"
		(($? == 137)) || exit 0
		for file; do
			timeout -s KILL 1 grep -lszxF "$word" "$file"
		done
		exit 0' processes_of "KVC_CASE_WORK=$1" 2>/dev/null | sort -u
}

# Ends what the case in directory $1 left: processes (they carry the directory in their environment), then mounts.
clean_case() {
	local work=$1 pid target
	while IFS=/ read -r _ _ pid _; do
		kill -KILL "$pid" 2>/dev/null || true
	done < <(processes_of "$work")
	while read -r target; do
		target=$(printf '%b' "$target")
		fusermount3 -uz "$target" 2>/dev/null || umount -l "$target" 2>/dev/null || true
	done < <(awk -v work="$work/" 'index($5 "/", work) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
	rm -rf --one-file-system "$work"
}

# as_user WORK TREE COMMAND...: as an ordinary user, who finds /dev/fuse as udev makes it (for everybody), and the
# source and the build below WORK/.trees, as they may be where only root gets to; in a mount name space of its own.
as_user() {
	local work=$1 tree=$2
	shift 2
	mkdir "$work/.trees" "$work/.trees/source" "$work/.trees/build"
	cp -a /dev/fuse "$work/.trees/fuse"
	chmod 666 "$work/.trees/fuse"
	chown nobody:nogroup "$work"
	# shellcheck disable=SC2016 # expanded by the inner shell
	"$root/scripts/lib/private-mounts" "$work" bash -c '
		set -e
		trees=$1/.trees
		mount --bind "$trees/fuse" /dev/fuse
		mount --bind "$2" "$trees/source"
		mount --bind "$3" "$trees/build"
		cd "$1"
		shift 3
		exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"' \
		as_user "$work" "$root" "$tree" \
		env HOME="$work/home" XDG_STATE_HOME="$work/home/state" KVC_BUILD="$work/.trees/build" "$@"
}

# start_case MODE FILE WORK
start_case() {
	local mode=$1 file=$2 work=$3 tree
	tree=$(tree_of "$mode")
	export KVC_CASE_WORK=$work KVC_BUILD=$tree KVC_TEST_MODE=$mode
	case $mode in
	user)
		if ((EUID != 0)); then
			bash "$file"
		else
			as_user "$work" "$tree" bash "${file/#"$root"/$work/.trees/source}"
		fi
		;;
	# The clients are not what is tested.
	asan | tsan) KVC_CLIENTS=$build/tests/clients sanitized "$mode" "$work/.sanitizer" bash "$file" ;;
	*) bash "$file" ;;
	esac
}

# What the sanitizers found; fails when there is something.
sanitizer_reports() {
	local file found=0
	for file in "$1"/.sanitizer.*; do
		[[ -s $file ]] || continue
		echo "---- ${file##*/}"
		cat "$file"
		found=1
	done
	return $found
}

# run_case MODE FILE OUTCOME: runs one case and leaves "RC SECONDS LOG" in OUTCOME.
run_case() {
	local mode=$1 file=$2 outcome=$3 work rc=0 begin log pid limit reason
	begin=$(now_ms)
	log=$logs/$(case_name "$mode" "$file" | tr / -).log
	reason=$(mark_value "$file" "not-in: $mode")
	if [[ -n $reason ]]; then
		echo "skipped: $reason" >"$log"
		echo "77 0.00 $log" >"$outcome"
		return
	fi
	work=$(mktemp -d "$run_dir/case.XXXXXX")
	limit=$(case_timeout "$mode" "$file")
	export -f start_case as_user sanitized fixed_addresses tree_of
	build=$build root=$root timeout --kill-after=5 "$limit" \
		bash -c 'set -euo pipefail; start_case "$@"' start_case "$mode" "$file" "$work" >"$log" 2>&1 || rc=$?
	((rc != 124 && rc != 137)) || echo "timeout after $limit s" >>"$log"
	sanitizer_reports "$work" >>"$log" || rc=1
	clean_case "$work" >>"$log" 2>&1
	echo "$rc $(seconds_since "$begin") $log" >"$outcome"
}

# report_case MODE FILE OUTCOME
report_case() {
	local name rc seconds log
	name=$(case_name "$1" "$2")
	read -r rc seconds log <"$3"
	case $rc in
	0) report PASS "$name" "$seconds" ;;
	77) report SKIP "$name" "$seconds" "$log" ;;
	*) report FAIL "$name" "$seconds" "$log" ;;
	esac
}

# run_beside WIDTH RUN...: at most WIDTH at a time, each "MODE FILE"; each is reported as it ends.
run_beside() {
	local width=$1 run pid outcomes
	local -A running=()
	shift
	outcomes=$(mktemp -d "$run_dir/outcomes.XXXXXX")
	for run in "$@" ''; do
		# The empty one at the end waits for the rest.
		while ((${#running[@]} >= (${#run} > 0 ? width : 1))); do
			wait -n -p pid "${!running[@]}" || true
			report_case "${running[$pid]%% *}" "${running[$pid]#* }" "$outcomes/$pid"
			unset "running[$pid]"
		done
		[[ -n $run ]] || break
		# The subshell must not clean up for all of us.
		(trap - EXIT && run_case "${run%% *}" "${run#* }" "$outcomes/$BASHPID") &
		running[$!]=$run
	done
}

# runs_of MODE KIND [N REST]: the cases of a kind in a mode, a line "MODE FILE" each; those that one_in N REST lets
# through.
runs_of() {
	local file
	find_cases "$2" | if (($# > 2)); then one_in "$3" "$4"; else cat; fi | while IFS= read -r file; do
		echo "$1 $file"
	done
}

# run_cases: those on stdin, as runs_of writes them. The modes are mixed, so that what waits and what works overlap.
run_cases() {
	local run
	local -a together=() alone=()
	while IFS= read -r run; do
		if has_mark "${run#* }" parallel; then
			together+=("$run")
		else
			alone+=("$run")
		fi
	done
	if [[ ! -e /dev/fuse ]]; then
		modprobe fuse 2>/dev/null || true
	fi
	run_beside $((jobs + 2)) ${together[@]+"${together[@]}"}
	run_beside 1 ${alone[@]+"${alone[@]}"}
}
