/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whose bytes a file has, beside its name: somebody who swaps two files leaves both with a size and
 * a CRC that fit. The xattr is the begin of the key's digest, or two of them, joined with ',',
 * while a file moves: after a crash it is an object under either name. A file without one is taken
 * as what its name says; a digest name needs none, its file has the whole key.
 */

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#include <kvcache/key-codec.h>

#include "fs.h"

#define ID_DIGITS 16
#define ID_BYTES (ID_DIGITS + 1)

/* PATH for calls that take no directory (transfer full). */
static char *
format_file(const FsAdapter *fs, const char *path)
{
	return g_strdup_printf("/proc/self/fd/%d/%s", fs->base_fd, path);
}

static void
format_id(const KvcObjectKey *key, char *id)
{
	g_autofree char *digest = kvc_object_key_digest(key);

	g_strlcpy(id, digest, ID_BYTES);
}

bool
fs_id_names(const char *text, const KvcObjectKey *key)
{
	char id[ID_BYTES];
	size_t len = strlen(text);

	format_id(key, id);
	if (len == ID_DIGITS)
		return !strcmp(text, id);
	return len == 2 * ID_DIGITS + 1 && text[ID_DIGITS] == ',' &&
	       (!strncmp(text, id, ID_DIGITS) || !strcmp(text + ID_BYTES, id));
}

bool
fs_id_is_others(const char *file, const KvcObjectKey *key)
{
	char text[FS_ID_MAX_BYTES];
	ssize_t len = lgetxattr(file, FS_ID_XATTR, text, sizeof(text) - 1);

	if (len < 0 && errno != ERANGE)
		return false;
	text[MAX(len, 0)] = '\0';
	return !fs_id_names(text, key);
}

void
fs_id_reject(FsAdapter *fs, const char *path)
{
	atomic_fetch_add(&fs->stats.id_mismatches, 1);
	fs_note_bad_file(fs, path, "was written under another name (" FS_ID_XATTR ")");
}

bool
fs_is_others(FsAdapter *fs, const KvcObjectKey *key, const char *path, struct stat *st)
{
	g_autofree char *file = format_file(fs, path);

	while (fs_id_is_others(file, key)) {
		if (fs_was_replaced(fs, path, st))
			continue;
		fs_id_reject(fs, path);
		return true;
	}
	return false;
}

int
fs_id_write(int fd, const KvcObjectKey *key)
{
	char id[ID_BYTES];

	format_id(key, id);
	return fsetxattr(fd, FS_ID_XATTR, id, ID_DIGITS, 0) < 0 ? -errno : 0;
}

/* ---- Moving -------------------------------------------------------------------------------- */

static void
write_id(FsAdapter *fs, const char *path, const KvcObjectKey *key)
{
	g_autofree char *file = format_file(fs, path);
	char id[ID_BYTES];

	format_id(key, id);
	/* Without it, or with both, the file is still the object. */
	if (lsetxattr(file, FS_ID_XATTR, id, ID_DIGITS, 0) < 0 && errno != ENOTSUP)
		fs_note_attribute_error(fs, path, errno);
}

static int
write_both(const char *file, const KvcObjectKey *old_key, const KvcObjectKey *new_key)
{
	char old_id[ID_BYTES], new_id[ID_BYTES];

	format_id(old_key, old_id);
	format_id(new_key, new_id);
	g_autofree char *text = g_strdup_printf("%s,%s", new_id, old_id);
	return lsetxattr(file, FS_ID_XATTR, text, strlen(text), 0);
}

int
fs_id_begin_move(FsAdapter *fs, const FsMove *move)
{
	g_autofree char *file = format_file(fs, move->from);

	if (lgetxattr(file, FS_ID_XATTR, NULL, 0) < 0)
		return 0;
	/* The key may need its room. */
	if (!fs_is_digest_name(move->to) && write_both(file, move->old_key, move->new_key) == 0)
		return 1;
	return lremovexattr(file, FS_ID_XATTR) == 0 || errno == ENODATA ? 1 : -errno;
}

void
fs_id_end_move(FsAdapter *fs, const FsMove *move, bool had_id, bool is_moved)
{
	if (!is_moved && had_id)
		write_id(fs, move->from, move->old_key);
	else if (is_moved && !fs_is_digest_name(move->to) &&
		 (had_id || fs_is_digest_name(move->from)))
		write_id(fs, move->to, move->new_key);
}
