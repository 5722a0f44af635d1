#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What changes a chain is seen at once under every name: entries that a new .keys drops, links, an append by whoever
# made the directory, an object that is removed and stored again, a chain that is renamed while only L2 has it.

. "$(dirname "$0")/lib.sh"

a=$(chunk_hash a) b=$(chunk_hash b) c=$(chunk_hash c)
P=$RANK/p

start_fs
mkdir -p "$RANK"
mkdir "$P"
for i in "$a" "$b" "$c"; do
	echo "$i" >"$RANK/$i"
	ln "$RANK/$i" "$P/"
done

# The kernel forgets what a new .keys leaves out, and then the object can be made there anew.
stat "$P/$a" "$P/$b" "$P/$c" >/dev/null
echo "$a" >"$P/.keys"
wait_until 10 "$b is no name of the directory" eval "! [[ -e '$P/$b' ]]"
rm "$RANK/$b"
echo again >"$P/$b" || fail "create of what had left the directory"
expect_output again cat "$RANK/$b"
rm "$P/.keys"
wait_until 10 "$a is no name of the directory" eval "! [[ -e '$P/$a' ]]"

# Links are counted once, however often the kernel forgets the directory.
ln "$RANK/$a" "$P/"
if [[ $EUID -eq 0 && -w /proc/sys/vm/drop_caches ]]; then
	for i in 1 2 3; do
		control flush /
		echo 2 >/proc/sys/vm/drop_caches
		ls "$P" >/dev/null
		assert_eq 2 "$(stat -c %h "$RANK/$a")" "links after the kernel has forgotten the directory $i times"
	done
fi

# One process makes a directory, its entries and then appends to its .keys, as one that has never listed it.
python3 - "$RANK" "$b" "$c" "$(chunk_hash d)" <<'P' || fail "an append to .keys by the maker"
import os, sys
rank, b, c, d = sys.argv[1:]
q = rank + "/q"
os.mkdir(q)
for h in b, c:
    os.link(f"{rank}/{h}", f"{q}/{h}")
for text, want in ((d + "\n", [b, c, d]), ("no hash\n", [b, c, d])):
    fd = os.open(q + "/.keys", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, text.encode())
    except OSError:
        pass
    os.close(fd)
    got = open(q + "/.keys").read().split()
    assert got == want, (text, got, want)
P

# Removed and stored again at once, in the same process, under a name that the kernel knows.
ln "$RANK/$c" "$P/"
python3 - "$RANK" "$c" <<'P' || fail "an object that is stored again"
import os, sys
rank, c = sys.argv[1:]
for i in range(100):
    os.stat(f"{rank}/p/{c}")
    os.unlink(f"{rank}/{c}")
    with open(f"{rank}/p/{c}", "w") as f:
        f.write("again")
    assert open(f"{rank}/p/{c}").read() == "again"
P

# A rename onto a directory that lists nothing, while both chains are only in L2.
for ((i = 0; i < 8; i++)); do
	mkdir "$RANK/from$i" "$RANK/to$i"
	ln "$RANK/$a" "$RANK/from$i/"
	chunk_hash "nowhere" >"$RANK/to$i/.keys"
	evict /
	mv -T "$RANK/from$i" "$RANK/to$i"
	expect_output "$a" ls "$RANK/to$i"
	ln "$RANK/$b" "$RANK/to$i/"
	control flush /
done
kill_fs
umount -l "$MNT"
start_fs
for ((i = 0; i < 8; i++)); do
	expect_output "$(printf '%s\n' "$a" "$b")" ls -U "$RANK/to$i"
done
stop_fs
