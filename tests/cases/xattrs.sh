#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Extended attributes: those of users stay with the object, over rename, eviction and restart; user.kvcache.* is
# computed, and copies with xattrs work in both directions.
#
# parallel

. "$(dirname "$0")/lib.sh"
require_cmd getfattr
require_cmd setfattr

start_fs
mkdir -p "$RANK"
hash=$(chunk_hash 0)
object=$RANK/$hash
in_l2=$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$hash.data
mkchunk "$WORK/data" 1M

value_of() {
	getfattr --only-values --absolute-names -n "$2" "$1" 2>/dev/null
}
own() {
	value_of "$1" "user.kvcache.$2"
}
# refused TEXT COMMAND...: fails, and says TEXT.
refused() {
	local want=$1 said
	shift
	said=$("$@" 2>&1 >/dev/null) && fail "$* succeeded"
	[[ $said == *"$want"* ]] || fail "$*: $said"
}

# ---- Those of users --------------------------------------------------------------------------

# As vLLM writes: on the temporary file, before the rename.
cp "$WORK/data" "$RANK/.part"
setfattr -n user.vllm.kv_crc32c -v 0x00ff7f01 "$RANK/.part"
setfattr -n user.note -v 'first' "$RANK/.part"
setfattr -n user.note -v 'two words' "$RANK/.part"
setfattr -n user.gone -v x "$RANK/.part"
setfattr -x user.gone "$RANK/.part"
mv "$RANK/.part" "$object"
check_user() {
	assert_eq 00ff7f01 "$(value_of "$object" user.vllm.kv_crc32c | od -An -tx1 | tr -d ' \n')" "binary value $1"
	assert_eq "two words" "$(value_of "$object" user.note)" "text value $1"
	refused "No such attribute" getfattr -n user.gone "$object"
}
check_user "after the rename"
evict "$object"
check_user "after eviction"
restart_fs
check_user "after a restart"
assert_eq "two words" "$(value_of "$in_l2" user.note)" "the file in L2"
assert_same "$WORK/data" "$object"

# Of a committed object: its bytes are not stored again.
stores=$(stat_counter stores)
setfattr -n user.note -v 'changed' "$object"
setfattr -n user.empty "$object"
setfattr -x user.vllm.kv_crc32c "$object"
assert_eq changed "$(value_of "$object" user.note)" "changed value"
sync "$object"
assert_eq changed "$(value_of "$in_l2" user.note)" "changed value in L2 after sync"
refused "No such attribute" getfattr -n user.vllm.kv_crc32c "$in_l2"
assert_eq "$stores" "$(stat_counter stores)" "stores"
restart_fs
assert_eq changed "$(value_of "$object" user.note)" "changed value after a restart"
getfattr --absolute-names -d "$object" | grep -qx 'user.empty=""' || fail "the empty value is not listed"
assert_eq 0 "$(stat_counter loads)" "xattrs loaded something"

# Errors.
refused "No such attribute" setfattr -x user.none "$object"
refused "not " setfattr -n trusted.x -v 1 "$object"
refused "not supported" setfattr -n user.kvcache.pined -v 1 "$object"
refused "Invalid argument" setfattr -n user.kvcache.pinned -v yes "$object"
refused "not supported" setfattr -n user.x -v 1 "$MNT/.kvcache/status"
python3 - "$object" <<'END'
import errno, os, sys
path = sys.argv[1]

def refused(want, call, *args, **keywords):
    try:
        call(*args, **keywords)
    except OSError as error:
        assert error.errno == want, (args[1], errno.errorcode[error.errno])
    else:
        raise AssertionError(args[1])

os.setxattr(path, "user.once", b"1", os.XATTR_CREATE)
refused(errno.EEXIST, os.setxattr, path, "user.once", b"2", os.XATTR_CREATE)
os.setxattr(path, "user.once", b"3", os.XATTR_REPLACE)
assert os.getxattr(path, "user.once") == b"3"
refused(errno.ENODATA, os.setxattr, path, "user.never", b"2", os.XATTR_REPLACE)
refused(errno.ERANGE, os.setxattr, path, "user." + "n" * 251, b"")
os.setxattr(path, "user." + "n" * 250, b"")
big = b"v" * 65000
os.setxattr(path, "user.big", big)
assert os.getxattr(path, "user.big") == big
refused(errno.ENOSPC, os.setxattr, path, "user.bigger", big)
refused(errno.ENODATA, os.getxattr, path, "security.capability")
refused(errno.EOPNOTSUPP, os.getxattr, path, "system.posix_acl_access")
os.removexattr(path, "user.big")
END

# ---- Computed ones ---------------------------------------------------------------------------

control evict "$object"
assert_eq "fs stored 0" "$(own "$object" tiers) $(own "$object" state) $(own "$object" read_locks)" "in L2 only"
refused "No such attribute" getfattr -n user.kvcache.crc32c "$object"
assert_eq 0 "$(own "$object" hits)" "hits"
exec 3<"$object"
assert_eq "l1,fs replicated 1 1" \
	"$(own "$object" tiers) $(own "$object" state) $(own "$object" read_locks) $(own "$object" hits)" "open"
exec 3<&-
assert_le "$(($(date +%s) - 5))" "$(own "$object" last_access | cut -d . -f 1)" "last_access"
assert_eq "$(value_of "$in_l2" user.kvcache.crc32c)" "$(own "$object" crc32c)" "checksum"
assert_eq "meta-llama/Llama-3.1-8B 01000100 0 $hash chunk" \
	"$(own "$object" model_name) $(own "$object" kv_rank) $(own "$object" object_group_id) $(own "$object" chunk_hash) $(own "$object" space)" "key"
assert_eq "" "$(own "$object" cache_salt)" "salt"
assert_eq "meta-llama/Llama-3.1-8B 01000100" "$(own "$RANK" model_name) $(own "$RANK" kv_rank)" "of a rank"
mkchunk "$RANK/.part" 64K
assert_eq "temporary" "$(own "$RANK/.part" state)" "state of a temporary file"
rm "$RANK/.part"

# Pinned: not evicted, by nobody.
setfattr -n user.kvcache.pinned -v 1 "$object"
assert_eq "1 1 1048576" "$(own "$object" pinned) $(status l1_pinned_objects) $(status l1_pinned_bytes)" "pinned"
expect_errno write:EBUSY write "$MNT/.kvcache/evict" "$object"$'\n'
setfattr -x user.kvcache.pinned "$object"
assert_eq "0 0" "$(own "$object" pinned) $(status l1_pinned_objects)" "unpinned"
control evict "$object"

# ---- Copies ----------------------------------------------------------------------------------

# Out and in again, and once more onto what is there; also what the adapter writes on its files.
cp -a "$MNT/meta-llama" "$WORK/copy"
copy=$WORK/copy/Llama-3.1-8B/@01000100/$hash
assert_eq changed "$(value_of "$copy" user.note)" "value in a copy"
mkdir -p "$MNT/copies" "$MNT/a/@00000001"
cp --preserve=all "$in_l2" "$MNT/a/@00000001/$hash"
assert_eq changed "$(value_of "$MNT/a/@00000001/$hash" user.note)" "value in a copy of the file in L2"
if command -v rsync >/dev/null; then
	rsync -aX "$WORK/copy/" "$MNT/copies/"
	rsync -aX "$WORK/copy/" "$MNT/copies/"
	assert_eq changed "$(value_of "$MNT/copies/Llama-3.1-8B/@01000100/$hash" user.note)" "value by rsync"
	assert_same "$WORK/data" "$MNT/copies/Llama-3.1-8B/@01000100/$hash"
fi
# tar makes files with xattrs by mknod, so only those without can come in; a name that nobody set must not be there.
setfattr -x user.note "$object"
for name in empty once "$(printf 'n%.0s' {1..250})"; do
	setfattr -x "user.$name" "$object"
done
assert_eq "" "$(getfattr --absolute-names -d -m - "$object")" "xattrs that are listed"
if grep -q -- --xattrs <<<"$(tar --help)"; then
	mkdir -p "$MNT/tarred"
	tar --xattrs --xattrs-include='*' -C "$MNT/meta-llama" -cf "$WORK/tar" .
	tar --xattrs --xattrs-include='*' -C "$MNT/tarred" -xf "$WORK/tar"
	assert_same "$WORK/data" "$MNT/tarred/Llama-3.1-8B/@01000100/$hash"
fi
stop_fs
