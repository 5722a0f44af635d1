#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The manuals say what there is: every option, adapter option and policy of --help, every control file, every line of
# status and stats of a real mount is in a manual, and nothing else is; the example of kvcachefs(8) works; mandoc finds
# no error in them.
#
# parallel

. "$(dirname "$0")/lib.sh"

commands=$SRC/man/kvcachefs.8.scd
lines=$SRC/man/kvcachefs-stats.7.scd
"$KVCACHEFS" --help >"$WORK/help"

# plain: scdoc's marks removed; an underscore within a word is not one.
plain() {
	sed -E 's/\\//g; s/\*//g; s/(^|[^[:alnum:]_])_+/\1/g; s/_+($|[^[:alnum:]_])/\1/g'
}

# section FILE TITLE: what is below "# TITLE".
section() {
	awk -v title="# $2" '/^# / { on = $0 == title; next } on' "$1"
}

# terms: the names that are explained, "TITLE TERM" with the words of the last "## TITLE" before.
terms() {
	awk '/^## / { title = substr($0, 4) " "; next } /^\*/ { print title $0 }' | plain
}

# entry FILE TERM: the term and its text.
entry() {
	plain <"$1" | awk -v term="$2" '/^[^\t]/ { on = $0 == term } on'
}

# same WHAT WANT GOT: the same lines, in whatever order.
same() {
	local difference
	difference=$(diff <(sort <<<"$2") <(sort <<<"$3")) || fail "$1 (<: not in the manual, >: only there):"$'\n'"$difference"
	echo "$1: $(wc -l <<<"$2")"
}

# ---- --help ----------------------------------------------------------------------------------

# help_part TITLE: the lines of --help from the one that begins with TITLE to the next empty one.
help_part() {
	awk -v title="$1" 'index($0, title) == 1 { on = 1; next } !NF { on = 0 } on' "$WORK/help"
}

# Two blanks end the left column.
left_column() {
	sed -E 's/^ +//; s/  .*//'
}

same "options" "$(help_part "Options:" | left_column)" "$(section "$commands" OPTIONS | terms)"
n=0
while IFS= read -r line; do
	[[ $line == *"(default: "* ]] || continue
	value=${line##*"(default: "}
	entry "$commands" "$(left_column <<<"$line")" | grep -qF -- "Default: ${value%)}" ||
		fail "kvcachefs(8) does not give the default of: $line"
	n=$((n + 1))
done < <(help_part "Options:" && help_part "L2 adapters")
echo "defaults: $n"

# "NAME OPTION=TYPE" for each option; the names of adapters are indented by 2, their options by 6.
adapter_options=$(help_part "L2 adapters" | awk '
	/^  [^ ]/ { adapter = $1 == "every" ? "every adapter" : $1 }
	/^      / { print adapter " " $1 }')
# available LINES: without those of an adapter that not every build has.
available() {
	local adapter lines=$1
	for adapter in resp s3; do
		grep -q "^$adapter " <<<"$adapter_options" || lines=$(sed "/^$adapter /d" <<<"$lines")
	done
	printf '%s\n' "$lines"
}
same "options of adapters" "$adapter_options" "$(available "$(section "$commands" "L2 ADAPTERS" | terms)")"

policies=$(for kind in Store Prefetch Eviction; do
	help_part "$kind policies" | awk -v kind="$kind" '{ print kind " policies " $1 }'
done)
same "policies" "$policies" "$(section "$commands" POLICIES | terms)"

# ---- Status and stats ------------------------------------------------------------------------

# A specification for each adapter there is.
declare -A specs=([fs]="type=fs,base_path=$L2/fs,breaker_cooldown_s=0.1,breaker_max_s=0.2" [mock]="type=mock,max_size_gb=1"
	[fault_inject]='type=fault_inject,inner=type=mock\,max_size_gb=1'
	[raw_block]="type=raw_block,device_path=$L2/raw,capacity_bytes=300K,slot_bytes=4K"
	# Of a cluster: it has the lines of one server, too.
	[resp]="type=resp,host=127.0.0.1,port=1,cluster_mode=true,breaker_cooldown_s=0.1,breaker_max_s=0.2"
	[s3]="type=s3,s3_endpoint=http://127.0.0.1:1,s3_bucket=none,credentials_file=$WORK/keys,breaker_cooldown_s=0.1,breaker_max_s=0.2")
printf '[default]\naws_access_key_id = A\naws_secret_access_key = B\n' >"$WORK/keys"
chmod 600 "$WORK/keys"
declare -a mounted=() arguments=()
while read -r adapter; do
	[[ -n ${specs[$adapter]:-} ]] || fail "no specification for the adapter $adapter in this test"
	mounted+=("$adapter")
	arguments+=(--l2-adapter "${specs[$adapter]}")
done < <(help_part "L2 adapters" | awk '/^  [^ ]/ && $1 != "every" { print $1 }')
start_bare "${arguments[@]}"

# Lines that come only after a failure: the directory of fs is gone, raw_block is too small. (mock has the object then.)
mkdir -p "$RANK"
rm -r "$L2/fs"
mkchunk "$RANK/$(chunk_hash 0)" 64K
has_line() {
	grep -q "^$1 " "$MNT/.kvcache/status"
}
wait_until 20 "a store fails" has_line "l2\.[0-9]*\.last_error"
wait_until 20 "its object is not dirty any more" status_is l1_dirty_objects 0
awk '{ print $1 }' "$MNT/.kvcache/status" >"$WORK/status"
awk '{ print $1 }' "$MNT/.kvcache/stats" >"$WORK/stats"
controls=$(ls "$MNT/.kvcache")
if command -v getfattr >/dev/null; then
	xattrs=$(getfattr --absolute-names --only-values -n user.kvcache.help "$RANK" | cut -d ' ' -f 1)
	same "xattrs" "$xattrs" "$(section "$commands" "EXTENDED ATTRIBUTES" | terms)"
fi
stop_fs

same "control files" "$controls" "$(section "$commands" "CONTROL FILES" | terms)"
section "$lines" STATUS | terms >"$WORK/status.manual"
same "status" "$(grep -v '^l2\.' "$WORK/status")" "$(grep -v '^Of ' "$WORK/status.manual")"
every=$(sed -n 's/^Of every adapter //p' "$WORK/status.manual")
for i in "${!mounted[@]}"; do
	own=$(sed -n "s/^Of an adapter of type ${mounted[i]} //p" "$WORK/status.manual")
	same "status of ${mounted[i]}" "$(sed -n "s/^l2\.$i\./l2.N./p" "$WORK/status")" "$every"$'\n'"$own"
done
while read -r _ _ _ _ _ adapter _; do
	[[ -n ${specs[$adapter]:-} ]] || fail "kvcachefs-stats(7) has lines of an adapter $adapter"
done < <(grep '^Of an adapter of type ' "$WORK/status.manual")

section "$lines" STATS | terms >"$WORK/stats.manual"
same "stats of the engine" "$(grep -v '^mount_' "$WORK/stats")" "$(sed -n 's/^Of the engine //p' "$WORK/stats.manual")"
same "stats of the mount" "$(grep '^mount_' "$WORK/stats")" "$(sed -n 's/^Of the mount //p' "$WORK/stats.manual")"

# ---- The example -----------------------------------------------------------------------------

kvcachefs() {
	"$KVCACHEFS" --state-dir "$STATE" "$@"
}
no_daemon() {
	! find_daemon >/dev/null
}
section "$commands" EXAMPLES | sed '/^```$/d' |
	sed "s|/mnt/kvcache|$MNT|g; s|/var/lib/kvcachefs/l2|$L2/example|g" >"$WORK/example"
[[ -s $WORK/example ]] || fail "kvcachefs(8) has no example"
. "$WORK/example" >"$WORK/output"
cat "$WORK/output"
assert_eq $'9f86d081884c7d65\n60303ae22b998861\nhealth ok\nl1_objects 0' "$(cat "$WORK/output")" "output of the example"
wait_until 20 "the daemon of the example ends" no_daemon
assert_eq 2 "$(find "$L2/example" -name '*.data' | wc -l)" "objects that the example stored"

# ---- Their form ------------------------------------------------------------------------------

require_cmd scdoc
require_cmd mandoc
for page in "$SRC"/man/*.scd; do
	roff=$WORK/$(basename "$page" .scd)
	scdoc <"$page" >"$roff" || fail "$page: scdoc"
	mandoc -T lint -W error "$roff" || fail "$page: mandoc"
done
