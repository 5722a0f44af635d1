#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Which names there are: every other one is refused as it is made, so that nothing is silently unsaved, and errors
# are the ones that engines expect.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK"
hash=$(chunk_hash 0)

# Rank directories have one spelling.
for name in @1000100 @0100010 @010001000 @0100010G @0100010A @01000100@ @01000100@0 @01000100@01 @01000100@1A @01000100@g \
	@01000100@0@ @01000100@0@a@b @01000100@tenant @; do
	expect_errno EINVAL mkdir "$MNT/$MODEL/$name"
	expect_errno ENOENT stat "$MNT/$MODEL/$name"
done
for name in @01000101 @0100010f @01000100@1 @01000100@1a @01000100@0@tenant-a @01000100@1@tenant-a; do
	expect_errno 0 mkdir "$MNT/$MODEL/$name"
	expect_errno EEXIST mkdir "$MNT/$MODEL/$name"
	expect_errno 0 stat "$MNT/$MODEL/$name"
done

# Objects have one spelling: lower-case hex, even, 8 to 128 digits.
for name in "${hash^^}" "${hash:0:63}" "${hash:0:6}" "$hash$hash${hash:0:2}" "g${hash:1}" object object.bin; do
	expect_errno EINVAL create "$RANK/$name"
	expect_errno ENOENT stat "$RANK/$name"
	expect_errno ENOENT open-read "$RANK/$name"
done
for name in "$hash" "${hash:0:8}" "$hash$hash"; do
	expect_errno ENOENT stat "$RANK/$name"
	expect_errno ENOENT open-read "$RANK/$name"
	expect_errno 0 write-create "$RANK/$name" content
	expect_output content cat "$RANK/$name"
done
# A directory cannot take an object's name, a prefix can have any other.
expect_errno EINVAL mkdir "$RANK/$(chunk_hash 1)"
expect_errno EEXIST mkdir "$RANK/$hash"
expect_errno 0 mkdir "$RANK/prefix v3"
expect_errno EINVAL create "$RANK/prefix v3/object"
expect_errno ENOTDIR stat "$RANK/$hash/x"

# Where no rank is in the path any name is a plain file's; one that reads as a rank is none.
for path in "$MNT/plain.bin" "$MNT/hicache/plain.bin" "$MNT/$MODEL/plain.bin" "$MNT/$MODEL/@plain"; do
	mkdir -p "$(dirname "$path")"
	expect_errno ENOENT stat "$path"
	expect_errno 0 create "$path"
	expect_errno 0 unlink "$path"
done
expect_errno EINVAL create "$MNT/$MODEL/@01000102"
rmdir "$MNT/hicache"

# A committed object of a hash name keeps its bytes: it can be opened for writing, not written.
expect_errno 0 open-write "$RANK/$hash"
expect_errno 0 open-readwrite "$RANK/$hash"
expect_errno 0 open-append "$RANK/$hash"
expect_errno write:EROFS write "$RANK/$hash" other
expect_output content cat "$RANK/$hash"
expect_errno 0 open-truncate "$RANK/$hash"
expect_output content cat "$RANK/$hash"

# Nothing that is no object: no links but hard ones into a prefix, no pipes, no other tree.
expect_errno EPERM symlink "$RANK/$(chunk_hash 2)" target
expect_errno EPERM mkfifo "$RANK/$(chunk_hash 2)"
expect_errno ENOENT stat "$RANK/$(chunk_hash 2)"

# Removing.
absent=$(chunk_hash absent)
expect_errno ENOENT unlink "$RANK/$absent"
expect_errno ENOENT rmdir "$RANK/absent"
expect_errno ENOTEMPTY rmdir "$RANK"
expect_errno ENOTEMPTY rmdir "$MNT/meta-llama"
expect_errno EISDIR unlink "$RANK/prefix v3"
expect_errno ENOTDIR rmdir "$RANK/$hash"
expect_errno 0 rmdir "$RANK/prefix v3"
expect_errno 0 rmdir "$MNT/$MODEL/@01000101"
expect_errno ENOENT stat "$MNT/$MODEL/@01000101"
expect_errno 0 unlink "$RANK/$hash"
expect_errno ENOENT unlink "$RANK/$hash"

# Renames of objects would change what a key means.
expect_errno EXDEV rename "$RANK/${hash:0:8}" "$RANK/$(chunk_hash 3)"
expect_errno 0 mkdir "$MNT/$MODEL/@01000101"
expect_errno EXDEV rename "$RANK/${hash:0:8}" "$MNT/$MODEL/@01000101/${hash:0:8}"
expect_errno ENOENT rename "$RANK/$absent" "$RANK/$(chunk_hash 3)"

fs=$("$CLIENTS/try-call" statfs "$MNT")
echo "$fs"
[[ $fs == "bsize=4096 frsize=4096 namemax=1023 "* ]] || fail "statfs: $fs"
stop_fs
