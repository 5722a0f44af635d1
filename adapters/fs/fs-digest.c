/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Keys whose path is not fit for a file (fs-names.c) are stored as <digest>.kvc directly in
 * base_path, with the key itself in an xattr. The name says where to look, the xattr what is there:
 * a file whose xattr is missing, or names a key that does not belong under its name, is foreign.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include <kvcache/key-codec.h>

#include "fs.h"

#define KEY_XATTR "user.kvcache.key"
#define SUFFIX ".kvc"
#define DIGEST_DIGITS 64
/* What the kernel lets an xattr have at most. */
#define XATTR_MAX_BYTES 65536
/* File systems that keep xattrs in one block (ext4) say ENOSPC to longer ones. */
#define SMALL_XATTR_BYTES 1024

bool
fs_is_digest_name(const char *path)
{
	return strlen(path) == DIGEST_DIGITS + strlen(SUFFIX) &&
	       strspn(path, "0123456789abcdef") == DIGEST_DIGITS &&
	       !strcmp(path + DIGEST_DIGITS, SUFFIX);
}

char *
fs_digest_name_format(const KvcObjectKey *key)
{
	g_autofree char *digest = kvc_object_key_digest(key);

	return g_strconcat(digest, SUFFIX, NULL);
}

/* Is ERRNUM how a file system says that a file has no (such) xattr? */
static bool
is_no_xattr(int errnum)
{
	return errnum == ENODATA || errnum == ENOTSUP || errnum == ERANGE;
}

/* The xattr of FD, or of NAME in the directory when FD is -1: bytes, or -errno. */
static ssize_t
read_xattr(FsAdapter *fs, const char *name, int fd, char *text, size_t size)
{
	char file[DIGEST_DIGITS + 40];
	ssize_t len;

	snprintf(file, sizeof(file), "/proc/self/fd/%d/%s", fs->base_fd, name);
	len = fd < 0 ? lgetxattr(file, KEY_XATTR, text, size)
		     : fgetxattr(fd, KEY_XATTR, text, size);
	return len < 0 ? -errno : len;
}

int
fs_digest_check(FsAdapter *fs, const KvcObjectKey *key, const char *path, int fd)
{
	if (!fs_is_digest_name(path))
		return 0;
	g_autofree char *expected = kvc_object_key_serialize(key);
	size_t size = strlen(expected);
	g_autofree char *text = g_malloc(size);
	ssize_t len = read_xattr(fs, path, fd, text, size);

	if (len < 0 && !is_no_xattr((int)-len))
		return (int)-len;
	return len == (ssize_t)size && !memcmp(text, expected, size) ? 0 : ENOENT;
}

KvcObjectKey *
fs_digest_read_key(FsAdapter *fs, const char *name, int *errnum)
{
	g_autofree char *text = g_malloc(XATTR_MAX_BYTES + 1);
	ssize_t len = read_xattr(fs, name, -1, text, XATTR_MAX_BYTES);
	g_autoptr(KvcObjectKey) key = NULL;
	g_autofree char *path = NULL;

	*errnum = len < 0 && !is_no_xattr((int)-len) ? (int)-len : 0;
	if (len < 0)
		return NULL;
	text[len] = '\0';
	key = kvc_object_key_deserialize(text);
	if (!key)
		return NULL;
	path = fs_path_format(fs, key);
	return strcmp(path, name) ? NULL : g_steal_pointer(&key);
}

int
fs_digest_write_key(FsAdapter *fs, int fd, const KvcObjectKey *key)
{
	g_autofree char *text = kvc_object_key_serialize(key);
	size_t size = strlen(text);

	if (fsetxattr(fd, KEY_XATTR, text, size, 0) == 0)
		return 0;
	if (errno == ENOTSUP) {
		fs_note_no_xattrs(fs, errno);
		return -ENOTSUP;
	}
	if (errno == E2BIG || errno == ERANGE || (errno == ENOSPC && size > SMALL_XATTR_BYTES))
		return -ENAMETOOLONG;
	return -errno;
}

int
fs_digest_remove_key(int fd)
{
	return fremovexattr(fd, KEY_XATTR) < 0 && errno != ENODATA ? -errno : 0;
}

bool
fs_digest_is_keys_fault(const char *path, int rc)
{
	return (rc == -ENOTSUP || rc == -ENAMETOOLONG) && fs_is_digest_name(path);
}
