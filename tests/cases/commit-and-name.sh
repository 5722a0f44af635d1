#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A name that is removed, replaced or moved with its directory while writers of it are being committed: nothing removed
# comes back, what a rename put there stays, and the daemon lives.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
cat >"$WORK/race.py" <<'P'
import os, shutil, sys, time
d, how = sys.argv[1] + "/d", sys.argv[2]
os.makedirs(d, exist_ok=True)
f, end = d + "/f", time.time() + 3
for flags in (os.O_RDWR, os.O_RDWR | os.O_TRUNC):
    if os.fork() == 0:
        while time.time() < end:
            try:
                fd = os.open(f, flags | os.O_CREAT, 0o644)
                os.write(fd, b"x" * 65536)
                os.close(fd)
            except OSError:
                pass
        os._exit(0)
while time.time() < end:
    time.sleep(0.005)
    try:
        if how == "unlink":
            os.unlink(f)
        elif how == "rename":
            os.rename(f, f + ".moved")
        else:
            os.rename(d, d + "2")
            os.rename(d + "2", d)
    except OSError:
        pass
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
time.sleep(0.2)
shutil.rmtree(sys.argv[1])
time.sleep(0.3)
assert not os.path.exists(sys.argv[1]), "what was removed is back"
P
cat >"$WORK/replaced.py" <<'P'
import os, sys
f = sys.argv[1] + "/f"
for new in (".n.tmp", "n"):
    new = os.path.dirname(f) + "/" + new
    open(f, "w").write("old")
    a = os.open(f, os.O_RDWR)
    os.write(a, b"A")
    open(new, "w").write("new version")
    os.rename(new, f)
    os.close(a)
    assert open(f).read() == "new version", "the overwriter of what was replaced came after it"
    os.unlink(f)
P
start_fs
for how in unlink rename directory; do
	python3 "$WORK/race.py" "$MNT/$how" "$how" || fail "$how"
done
mkdir "$MNT/replaced"
python3 "$WORK/replaced.py" "$MNT/replaced"
wait_until 10 "no read lock is left" status_is l1_read_locks 0
wait_until 10 "no staging file is left" status_is l1_staging_objects 0
restart_fs
assert_eq "" "$(find "$MNT" -type f ! -path "$MNT/.kvcache/*")" "files after the restart"
stop_fs
