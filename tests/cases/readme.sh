#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The transcript in README.md is what happens: its commands run in order in one shell, and print what it says.
#
# In a ```console block a line that begins with "$ " is a command, the lines after it are its output; "..." stands for
# anything, also for whole lines. /mnt/kvcache and /var/lib/kvcachefs/l2 stand for this case's own mount and L2.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# The commands of the blocks, each followed by its expected output between marks.
transcript=$(awk '/^```console$/ { on = 1; next } /^```$/ { on = 0 } on' "$SRC/README.md" |
	sed "s|/mnt/kvcache|$MNT|g; s|/var/lib/kvcachefs/l2|$L2|g")
[[ -n $transcript ]] || fail "README.md has no transcript"

# matches EXPECTED ACTUAL: "..." in the expected text is a wildcard.
matches() {
	local text=$1 pattern='' quoted
	while [[ $text == *...* ]]; do
		printf -v quoted '%q' "${text%%...*}"
		pattern+=$quoted'*'
		text=${text#*...}
	done
	printf -v quoted '%q' "$text"
	pattern+=$quoted
	# %q writes line breaks as $'..': those need the shell to read them.
	eval "[[ \$2 == $pattern ]]"
}

start_fs
mkfifo "$WORK/commands"
cd "$WORK"
# One shell for all of it, which prints a mark with the exit code after each command.
mark=----end-of-$RANDOM$RANDOM
bash <"$WORK/commands" >>"$WORK/output" 2>&1 &
exec 8>"$WORK/commands"

# run_command COMMAND: its output, without the mark.
run_command() {
	: >"$WORK/output"
	printf '%s\necho "%s $?"\n' "$1" "$mark" >&8
	wait_until 30 "\"$1\" ends" grep -qF -- "$mark" "$WORK/output"
	sed "/$mark/d" "$WORK/output"
}

n=0 command='' expected=''
check_command() {
	local actual
	[[ -n $command ]] || return 0
	actual=$(run_command "$command")
	printf '$ %s\n' "$command" ${actual:+"$actual"} | sed '2,$ s/^\$ //'
	matches "$expected" "$actual" || fail "README.md says of \"$command\":"$'\n'"$expected"
	n=$((n + 1))
}

while IFS= read -r line; do
	if [[ $line == '$ '* ]]; then
		check_command
		command=${line#'$ '} expected=''
	else
		expected+=${expected:+$'\n'}$line
	fi
done <<<"$transcript"
check_command
echo "$n commands"
exec 8>&-
wait_until 10 "no read lock at rest" status_is l1_read_locks 0
cd /
stop_fs
