#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# .kvcache/config has a line "name value origin" for every option that --help knows: what is in effect, wherever it was
# set; the command line wins over the file.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# config_is NAME "VALUE ORIGIN"
config_is() {
	assert_eq "$2" "$(control_value config "$1")" "config: $1"
}

# Defaults, and what is computed.
"$KVCACHEFS" --state-dir "$STATE" "$MNT"
DAEMON_PID=$(status pid)
echo "$DAEMON_PID" >>"$WORK/daemons"
control_value config l1-size | grep -qE '^[0-9]+ computed$' || fail "l1-size: $(control_value config l1-size)"
assert_eq "$(control_value config l1-size)" "$(status l1_capacity_bytes) computed" "l1-size and l1_capacity_bytes"
config_is l2-adapter "none default"
config_is l2-prefetch-load-timeout "10 default"
config_is eviction-trigger-watermark "0.8 default"
config_is readahead "4 default"
config_is config "none default"
config_is state-dir "$STATE command-line"
assert_eq 444 "$(stat -c %a "$MNT/.kvcache/config")" "mode of config"
# Every option but those that only ask something has a line, and only options have.
"$KVCACHEFS" --help | awk '/^Options:/ { on = 1; next } !NF { on = 0 } on' | grep -oE -- '--[a-z0-9-]+' |
	sed 's/^--//' | grep -vxE 'help|version' | sort >"$WORK/options"
awk '{ print $1 }' "$MNT/.kvcache/config" | sort >"$WORK/names"
diff "$WORK/options" "$WORK/names" || fail "options (<) and lines of config (>) differ"
stop_fs

# A file, the command line above it, -o as the command line; two adapters in the order of their numbers.
mkdir "$WORK/real-state"
ln -s "$WORK/real-state" "$WORK/state-link"
cat >"$WORK/a file.conf" <<END
# comment
[kvcachefs]
l1-size = 64M
l2-adapter.10 = type=mock,max_size_gb=1
l2-adapter.2 = type=fs,base_path=$L2,io_depth_bytes=64M
readahead=7
lookup-wait=30
options=noatime
drain-timeout = 5
state-dir=$WORK/state-link
END
file="config $WORK/a file.conf"
"$KVCACHEFS" --config "$WORK/a file.conf" --readahead=2 -o noexec,lookup-wait=1.5,temp-names='*.a;*.b' "$MNT"
DAEMON_PID=$(status pid)
echo "$DAEMON_PID" >>"$WORK/daemons"
config_is l1-size "$((64 << 20)) $file:3"
config_is readahead "2 command-line"
config_is lookup-wait "1.5 command-line"
config_is drain-timeout "5 $file:9"
config_is temp-names "*.a,*.b command-line"
config_is config "$WORK/a file.conf command-line"
config_is options.0 "noatime $file:8"
config_is options.1 "noexec command-line"
config_is state-dir "$WORK/real-state $file:10"
control_value config l2-adapter.0 | grep -qE "^type=fs,base_path=$L2,.*,io_depth_bytes=$((64 << 20)),.*shared=true,.* $file:5\$" ||
	fail "l2-adapter.0: $(control_value config l2-adapter.0)"
control_value config l2-adapter.1 | grep -qE "^type=mock,max_size_gb=1,.*latency_ms=0,.*shared=false,.* $file:4\$" ||
	fail "l2-adapter.1: $(control_value config l2-adapter.1)"
assert_eq "fs mock" "$(status l2.0.type) $(status l2.1.type)" "adapters in order"
grep " $MNT " /proc/mounts | grep -q noexec || fail "noexec is not set"
grep " $MNT " /proc/mounts | grep -q noatime || fail "noatime is not set"
# The names that were added are temporary: the file can be written, and is never stored.
mkdir -p "$RANK"
echo x >"$RANK/work.b"
control flush /
assert_eq 1 "$(status l1_staging_objects)" "a temporary file in memory"
mv "$RANK/work.b" "$RANK/$(chunk_hash 0)"
assert_eq x "$(cat "$RANK/$(chunk_hash 0)")" "what was renamed"
expect_errno "open:EINVAL" write-create "$RANK/work.c" x
stop_fs

# The command line's list replaces the file's.
"$KVCACHEFS" --config "$WORK/a file.conf" --l2-adapter type=mock,max_size_gb=2 "$MNT"
DAEMON_PID=$(status pid)
echo "$DAEMON_PID" >>"$WORK/daemons"
assert_eq mock "$(status l2.0.type)" "the adapter of the command line"
! grep -q '^l2\.1\.' "$MNT/.kvcache/status" || fail "an adapter of the file is there too"
stop_fs
