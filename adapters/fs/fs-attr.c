/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Attributes of objects. The mtime is the file's. Mode and owner are text in an xattr; the file
 * stays its maker's, since other programs read these directories, but who may not read the object
 * may not read the file. The default of a new object (0644, root) is not written down. What tells
 * which version the bytes are is an xattr of its own, so that an older kvcachefs can read the mode;
 * it is written with the bytes only. Other user xattrs are real ones of the file.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "fs.h"

#define ATTR_NAME "user.kvcache.attr"
#define SIZE_NAME "user.kvcache.size"
#define VERSION_NAME "user.kvcache.version"
/* The longest list of names, and value, that Linux has. */
#define XATTR_MAX_BYTES 65536
#define LOG_NS INT64_C(60000000000)

/* ---- Reading ------------------------------------------------------------------------------- */

static void
read_mode(const char *file, KvcL2ObjectInfo *info)
{
	char text[48];
	unsigned mode, uid, gid;
	int end = 0;
	ssize_t len = lgetxattr(file, ATTR_NAME, text, sizeof(text) - 1);

	text[MAX(len, 0)] = '\0';
	if (len < 0 || sscanf(text, "%o %u %u%n", &mode, &uid, &gid, &end) != 3 || text[end] ||
	    mode > 07777)
		return;
	info->mode = S_IFREG | mode;
	info->uid = uid;
	info->gid = gid;
}

static void
read_version(const char *file, KvcL2ObjectInfo *info)
{
	char text[24];
	ssize_t len = lgetxattr(file, VERSION_NAME, text, sizeof(text) - 1);

	text[MAX(len, 0)] = '\0';
	g_ascii_string_to_signed(text, 10, 1, INT64_MAX, &info->version_ns, NULL);
}

/* One that cannot be kept (too many, too big) is left out, and counted. */
static void
read_user_xattr(FsAdapter *fs, const char *file, const char *name, KvcL2ObjectInfo *info)
{
	g_autofree char *value = g_malloc(XATTR_MAX_BYTES);
	ssize_t len = lgetxattr(file, name, value, XATTR_MAX_BYTES);
	KvcXattrs *set;

	if (len < 0)
		return;
	int rc = kvc_xattrs_set(info->xattrs, name, value, (size_t)len, &set);
	if (rc < 0) {
		fs_note_attribute_error(fs, file, -rc);
		return;
	}
	kvc_xattrs_unref(info->xattrs);
	info->xattrs = set;
}

/* false: the file says that it once had another size, or is another key's. */
static bool
read_named(FsAdapter *fs,
	   const KvcObjectKey *key,
	   const char *file,
	   const char *name,
	   KvcL2ObjectInfo *info)
{
	char text[24], expected[24];

	if (kvc_xattr_name_is_user(name)) {
		read_user_xattr(fs, file, name, info);
	} else if (!strcmp(name, ATTR_NAME)) {
		read_mode(file, info);
	} else if (!strcmp(name, VERSION_NAME)) {
		read_version(file, info);
	} else if (!strcmp(name, FS_ID_XATTR)) {
		return !fs_id_is_others(file, key);
	} else if (!strcmp(name, SIZE_NAME)) {
		ssize_t len = lgetxattr(file, SIZE_NAME, text, sizeof(text) - 1);

		text[MAX(len, 0)] = '\0';
		snprintf(expected, sizeof(expected), "%" PRIu64, info->bytes);
		return len < 0 || !strcmp(text, expected);
	}
	return true;
}

/* The names of FILE's xattrs: their length; *LIST is the caller's TEXT, or what is to be freed. */
static ssize_t
list_names(const char *file, char *text, size_t size, char **allocated)
{
	ssize_t len = llistxattr(file, text, size);

	*allocated = NULL;
	if (len >= 0 || errno != ERANGE)
		return len;
	*allocated = g_malloc(XATTR_MAX_BYTES);
	return llistxattr(file, *allocated, XATTR_MAX_BYTES);
}

/* Reads all of what FILE has; false: as read_named(). */
static bool
read_all(FsAdapter *fs, const KvcObjectKey *key, const char *file, KvcL2ObjectInfo *info)
{
	char text[1024];
	g_autofree char *allocated = NULL;
	bool is_whole = true;

	/* Most of what others wrote has none: one call, and only what is there is read. */
	ssize_t len = list_names(file, text, sizeof(text), &allocated);
	const char *names = allocated ? allocated : text;
	for (const char *name = names; is_whole && len > 0 && name < names + len;
	     name += strlen(name) + 1)
		is_whole = read_named(fs, key, file, name, info);
	return is_whole;
}

bool
fs_attr_read(FsAdapter *fs,
	     const KvcObjectKey *key,
	     const char *path,
	     struct stat *st,
	     KvcL2ObjectInfo *info)
{
	g_autofree char *file = g_strdup_printf("/proc/self/fd/%d/%s", fs->base_fd, path);

	do {
		*info = (KvcL2ObjectInfo){.bytes = (uint64_t)st->st_size,
					  .mtime_ns = fs_mtime_ns(st)};
		if (read_all(fs, key, file, info))
			return true;
		kvc_xattrs_unref(g_steal_pointer(&info->xattrs));
	} while (fs_was_replaced(fs, path, st));
	if (fs_id_is_others(file, key))
		fs_id_reject(fs, path);
	else
		atomic_fetch_add(&fs->stats.size_mismatches, 1);
	return false;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static int
write_mtime(int fd, int64_t mtime_ns)
{
	const int64_t sec = 1000000000;
	/* Rounded down, also before the epoch. */
	int64_t ns = ((mtime_ns % sec) + sec) % sec;
	struct timespec times[2] = {
		{.tv_nsec = UTIME_OMIT},
		{.tv_sec = (mtime_ns - ns) / sec, .tv_nsec = ns},
	};

	return mtime_ns != 0 && futimens(fd, times) < 0 ? -errno : 0;
}

mode_t
fs_attr_file_mode(const KvcObjectAttributes *attributes)
{
	const mode_t readers = S_IRGRP | S_IROTH;

	if (!attributes || attributes->mode == 0)
		return 0644;
	return (S_IRUSR | S_IWUSR) | (attributes->mode & readers);
}

static bool
is_default(const KvcObjectAttributes *attributes)
{
	return attributes->mode == KVC_MODE_DEFAULT && attributes->uid == 0 && attributes->gid == 0;
}

static int
write_mode(int fd, const KvcObjectAttributes *attributes, FsAttrWrite how)
{
	char text[48];

	if (is_default(attributes)) {
		if (how == FS_ATTR_NEW || fremovexattr(fd, ATTR_NAME) == 0)
			return 0;
		return errno == ENODATA || errno == ENOTSUP ? 0 : -errno;
	}
	int len = snprintf(text, sizeof(text), "%o %u %u", attributes->mode & 07777,
			   attributes->uid, attributes->gid);
	return fsetxattr(fd, ATTR_NAME, text, (size_t)len, 0) < 0 ? -errno : 0;
}

static int
write_version(FsAdapter *fs, int fd, int64_t version_ns)
{
	char text[24];
	int len = snprintf(text, sizeof(text), "%" PRId64, version_ns);

	if (version_ns == 0 || atomic_load(&fs->no_xattrs))
		return 0;
	return fsetxattr(fd, VERSION_NAME, text, (size_t)len, 0) < 0 ? -errno : 0;
}

/* What the file has and XATTRS has not. */
static int
remove_others(int fd, const KvcXattrs *xattrs)
{
	g_autofree char *names = g_malloc(XATTR_MAX_BYTES);
	ssize_t len = flistxattr(fd, names, XATTR_MAX_BYTES);
	int result = 0;

	for (const char *name = names; len > 0 && name < names + len; name += strlen(name) + 1)
		if (kvc_xattr_name_is_user(name) && !kvc_xattrs_get(xattrs, name, NULL) &&
		    fremovexattr(fd, name) < 0 && errno != ENODATA)
			result = -errno;
	return result;
}

static int
write_xattrs(int fd, const KvcXattrs *xattrs, FsAttrWrite how)
{
	int result = how == FS_ATTR_REPLACE ? remove_others(fd, xattrs) : 0;
	size_t cursor = 0, bytes;
	const char *name;
	const void *value;

	while (kvc_xattrs_next(xattrs, &cursor, &name, &value, &bytes))
		if (fsetxattr(fd, name, value, bytes, 0) < 0)
			result = -errno;
	return result;
}

int
fs_attr_write(FsAdapter *fs,
	      int fd,
	      const char *path,
	      const KvcObjectAttributes *attributes,
	      FsAttrWrite how)
{
	if (!attributes)
		return 0;
	int rc = 0, result = 0;
	if (how == FS_ATTR_NEW)
		result = write_version(fs, fd, attributes->version_ns);
	/* Without a mode nothing is known but the time. */
	if (attributes->mode != 0) {
		rc = write_mode(fd, attributes, how);
		result = result < 0 ? result : rc;
		if (how == FS_ATTR_REPLACE && fchmod(fd, fs_attr_file_mode(attributes)) < 0)
			result = -errno;
		rc = write_xattrs(fd, attributes->xattrs, how);
		result = result < 0 ? result : rc;
	}
	rc = write_mtime(fd, attributes->mtime_ns);
	result = result < 0 ? result : rc;
	if (result < 0)
		fs_note_attribute_error(fs, path, -result);
	return result;
}

static int
set_attributes(FsAdapter *fs,
	       const KvcObjectKey *key,
	       const KvcObjectAttributes *attributes,
	       FsAttrWrite how)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	struct stat st;
	int errnum;
	g_autofree char *path = fs_find_file(fs, key, &st, &errnum);

	if (!path)
		return -errnum;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	int fd = openat(fs->base_fd, path, flags);
	if (fd < 0)
		return -errno;
	int rc = fs_attr_write(fs, fd, path, attributes, how);
	close(fd);
	return rc;
}

int
fs_set_attributes(FsAdapter *fs, const KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	return fs_place_is_lost(fs, KVC_TASK_STORE)
		       ? -FS_LOST
		       : set_attributes(fs, key, attributes, FS_ATTR_REPLACE);
}

void
fs_attr_add(FsAdapter *fs, const KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	if (attributes)
		set_attributes(fs, key, attributes, FS_ATTR_ADD);
}

void
fs_note_attribute_error(FsAdapter *fs, const char *path, int errnum)
{
	int64_t now = kvc_now_ns(), logged = atomic_load(&fs->attribute_logged_ns);

	atomic_fetch_add(&fs->stats.attribute_errors, 1);
	if (logged && now - logged < LOG_NS)
		return;
	atomic_store(&fs->attribute_logged_ns, now);
	g_warning("fs %s: attributes of \"%s\" are not kept: %s (errno %d); its bytes are",
		  fs->base_path, path, g_strerror(errnum), errnum);
}
