#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Git and SQLite work in a plain directory: they lock by files, change and remove by path what they have open, and look
# whether a file is still there. What they have written is there after a restart, and no lock is left.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd git
require_cmd python3
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 has no sqlite3"
export HOME=$WORK GIT_CONFIG_NOSYSTEM=1 GIT_{AUTHOR,COMMITTER}_{NAME,EMAIL}=kvcachefs

start_fs

# Git: everyday commands. (Not "git gc": it renames what it has packed to a temporary name, EXDEV.)
repo=$MNT/repo
git init -q -b main "$repo"
echo one >"$repo/a"
mkdir "$repo/d"
"$CLIENTS/pattern" 1 3M >"$repo/d/large"
git -C "$repo" add .
git -C "$repo" commit -qm one
expect_output "" git -C "$repo" status --porcelain
echo two >>"$repo/a"
expect_output " M a" git -C "$repo" status --porcelain
git -C "$repo" commit -qam two
git -C "$repo" checkout -qb other
git -C "$repo" mv a b
git -C "$repo" commit -qm three
git -C "$repo" config user.name somebody
git -C "$repo" checkout -q main
git -C "$repo" merge -q other
git -C "$repo" tag -am tag v1
git -C "$repo" stash list
git clone -q "$repo" "$MNT/clone"
expect_output "" git -C "$MNT/clone" status --porcelain

# SQLite: with a journal and with a WAL; a second connection of the process; a rollback.
cat >"$WORK/databases.py" <<'P'
import sqlite3, sys

for mode in ("delete", "wal", "truncate", "persist"):
    path = f"{sys.argv[1]}/{mode}.db"
    one = sqlite3.connect(path)
    assert one.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
    one.execute("create table t(x)")
    for i in range(5):
        one.execute("insert into t values(?)", (i,))
        one.commit()
    two = sqlite3.connect(path)
    two.execute("insert into t values(5)")
    two.commit()
    two.close()
    one.execute("insert into t values(6)")
    one.rollback()
    one.execute("insert into t values(7)")
    one.commit()
    assert one.execute("select count(*), sum(x) from t").fetchone() == (7, 22)
    one.close()
    three = sqlite3.connect(path)
    three.execute("insert into t values(100)")
    three.commit()
    three.close()
P
mkdir "$MNT/db"
python3 "$WORK/databases.py" "$MNT/db"

wait_until 10 "no staging file is left" status_is l1_staging_objects 0
assert_eq "" "$(find "$MNT/repo" "$MNT/db" -name '*.lock' -o -name '*-journal' -size +0 ! -name 'persist*')" "locks that are left"
restart_fs
git -C "$repo" fsck --strict
expect_output "" git -C "$repo" status --porcelain
assert_eq 3 "$(git -C "$repo" rev-list --count v1)" commits
for mode in delete wal truncate persist; do
	expect_output "(8, 122, 'ok')" python3 -c 'import sqlite3, sys; db = sqlite3.connect(sys.argv[1])
print(db.execute("select count(*), sum(x) from t").fetchone() + db.execute("pragma integrity_check").fetchone())' "$MNT/db/$mode.db"
done
stop_fs
