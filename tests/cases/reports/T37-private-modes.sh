#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T37, private modes on a shared mount (safetensors' NamedTempFile; vllm-metal PR 681; granite.build #332; LMCache
# #962): a file that one user makes with mode 0600 and renames is EACCES for another one, also when it was
# loaded from L2, until it is made readable; and what is made in a setgid directory has its group.
#
# not-in: user: one user cannot be two
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd setpriv
require_cmd python3

chmod 711 "$WORK"

# as UID COMMAND...
as() {
	setpriv --reuid="$1" --regid="$1" --clear-groups "${@:2}"
}

# opens ERRNO UID FILE
opens() {
	assert_eq "$1" "$(as "$2" "$CLIENTS/try-call" open-read "$3")" "$3 opened by $2"
}

# check_modes: what users may, and that the files are theirs.
check_modes() {
	local name
	for name in "$RANK/$(chunk_hash 0)" "$MNT/shared/layer.safetensors"; do
		expect_output "600 1000 1000" stat -c '%a %u %g' "$name"
		opens EACCES 1001 "$name"
		assert_eq "open:EACCES" "$(as 1001 "$CLIENTS/try-call" write "$name" x)" "$name written by 1001"
		opens 0 1000 "$name"
		opens 0 0 "$name"
	done
	for name in "$MNT/shared/group/dir" "$MNT/shared/group/dir/below"; do
		expect_output "2755 1000 1500" stat -c '%a %u %g' "$name"
	done
	expect_output "640 1000 1500" stat -c '%a %u %g' "$MNT/shared/group/dir/below/file"
	assert_eq 0 "$(setpriv --reuid=1001 --regid=1001 --groups 1500 "$CLIENTS/try-call" open-read "$MNT/shared/group/dir/below/file")" \
		"opened by one of the group"
	opens EACCES 1001 "$MNT/shared/group/dir/below/file"
}

# The clients are somewhere that not everybody may see.
cp "$CLIENTS/try-call" "$WORK/try-call"
CLIENTS=$WORK
start_fs
mkdir -p "$RANK" "$MNT/shared/group"
chmod 1777 "$RANK" "$MNT/shared"
chgrp 1500 "$MNT/shared/group"
chmod 2777 "$MNT/shared/group"
as 1000 python3 - "$RANK/$(chunk_hash 0)" "$MNT/shared/layer.safetensors" "$MNT/shared/group/dir" <<'P'
import os, sys, tempfile
*files, directory = sys.argv[1:]
for path in files:
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".tmp", delete=False) as file:
        file.write(b"private")
    os.rename(file.name, path)
os.mkdir(directory, 0o755)
os.mkdir(f"{directory}/below", 0o755)
os.close(os.open(f"{directory}/below/file", os.O_CREAT | os.O_WRONLY, 0o640))
P
check_modes
control flush /
control evict /
check_modes
restart_fs
check_modes

chmod 644 "$RANK/$(chunk_hash 0)" "$MNT/shared/layer.safetensors"
for name in "$RANK/$(chunk_hash 0)" "$MNT/shared/layer.safetensors"; do
	opens 0 1001 "$name"
done
stop_fs
