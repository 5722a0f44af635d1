/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mirror-fs SOURCE MOUNTPOINT: a FUSE file system that shows the directory SOURCE, in the
 * foreground. Stopped by SIGSTOP it is a store that hangs: whoever asks it for something waits, in
 * the kernel, until it goes on.
 */

#define FUSE_USE_VERSION 35

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

static int source = -1;

/* Relative to SOURCE. */
static const char *
relative(const char *path)
{
	return path[1] ? path + 1 : ".";
}

/* Extended attributes have no call that takes a directory's descriptor. */
static void
absolute(const char *path, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "/proc/self/fd/%d/%s", source, relative(path));
}

static int
result(long rc)
{
	return rc < 0 ? -errno : (int)rc;
}

/* ---- Names --------------------------------------------------------------------------------- */

static int
mirror_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	return result(fi ? fstat((int)fi->fh, st)
			 : fstatat(source, relative(path), st, AT_SYMLINK_NOFOLLOW));
}

static int
mirror_readdir(const char *path,
	       void *buffer,
	       fuse_fill_dir_t fill,
	       off_t offset,
	       struct fuse_file_info *fi,
	       enum fuse_readdir_flags flags)
{
	int fd = openat(source, relative(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir)))
		fill(buffer, entry->d_name, NULL, 0, 0);
	closedir(dir);
	return 0;
}

static int
mirror_mkdir(const char *path, mode_t mode)
{
	return result(mkdirat(source, relative(path), mode));
}

static int
mirror_unlink(const char *path)
{
	return result(unlinkat(source, relative(path), 0));
}

static int
mirror_rmdir(const char *path)
{
	return result(unlinkat(source, relative(path), AT_REMOVEDIR));
}

static int
mirror_rename(const char *path, const char *new_path, unsigned flags)
{
	return result(renameat2(source, relative(path), source, relative(new_path), flags));
}

static int
mirror_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	return result(fchmodat(source, relative(path), mode, 0));
}

static int
mirror_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
	return result(utimensat(source, relative(path), times, AT_SYMLINK_NOFOLLOW));
}

static int
mirror_statfs(const char *path, struct statvfs *vfs)
{
	return result(fstatvfs(source, vfs));
}

/* ---- Files --------------------------------------------------------------------------------- */

static int
mirror_open(const char *path, struct fuse_file_info *fi)
{
	int fd = openat(source, relative(path), fi->flags & ~O_DIRECT);

	fi->fh = (uint64_t)fd;
	fi->direct_io = (fi->flags & O_DIRECT) != 0;
	return fd < 0 ? -errno : 0;
}

static int
mirror_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	int fd = openat(source, relative(path), (fi->flags & ~O_DIRECT) | O_CREAT, mode);

	fi->fh = (uint64_t)fd;
	fi->direct_io = (fi->flags & O_DIRECT) != 0;
	return fd < 0 ? -errno : 0;
}

static int
mirror_read(const char *path, char *data, size_t bytes, off_t offset, struct fuse_file_info *fi)
{
	return result(pread((int)fi->fh, data, bytes, offset));
}

static int
mirror_write(
	const char *path, const char *data, size_t bytes, off_t offset, struct fuse_file_info *fi)
{
	return result(pwrite((int)fi->fh, data, bytes, offset));
}

static int
mirror_truncate(const char *path, off_t bytes, struct fuse_file_info *fi)
{
	int fd = fi ? (int)fi->fh : openat(source, relative(path), O_WRONLY | O_CLOEXEC);
	int rc = fd < 0 ? -errno : result(ftruncate(fd, bytes));

	if (!fi && fd >= 0)
		close(fd);
	return rc;
}

static int
mirror_fallocate(const char *path, int mode, off_t offset, off_t bytes, struct fuse_file_info *fi)
{
	return result(fallocate((int)fi->fh, mode, offset, bytes));
}

static int
mirror_fsync(const char *path, int is_data_only, struct fuse_file_info *fi)
{
	return result(fsync((int)fi->fh));
}

static int
mirror_release(const char *path, struct fuse_file_info *fi)
{
	close((int)fi->fh);
	return 0;
}

/* ---- Extended attributes ------------------------------------------------------------------- */

static int
mirror_setxattr(const char *path, const char *name, const char *value, size_t bytes, int flags)
{
	char full[PATH_MAX];

	absolute(path, full);
	return result(setxattr(full, name, value, bytes, flags));
}

static int
mirror_getxattr(const char *path, const char *name, char *value, size_t bytes)
{
	char full[PATH_MAX];

	absolute(path, full);
	return result(getxattr(full, name, value, bytes));
}

static int
mirror_listxattr(const char *path, char *list, size_t bytes)
{
	char full[PATH_MAX];

	absolute(path, full);
	return result(listxattr(full, list, bytes));
}

static int
mirror_removexattr(const char *path, const char *name)
{
	char full[PATH_MAX];

	absolute(path, full);
	return result(removexattr(full, name));
}

static const struct fuse_operations operations = {
	.getattr = mirror_getattr,
	.readdir = mirror_readdir,
	.mkdir = mirror_mkdir,
	.unlink = mirror_unlink,
	.rmdir = mirror_rmdir,
	.rename = mirror_rename,
	.chmod = mirror_chmod,
	.utimens = mirror_utimens,
	.statfs = mirror_statfs,
	.open = mirror_open,
	.create = mirror_create,
	.read = mirror_read,
	.write = mirror_write,
	.truncate = mirror_truncate,
	.fallocate = mirror_fallocate,
	.fsync = mirror_fsync,
	.release = mirror_release,
	.setxattr = mirror_setxattr,
	.getxattr = mirror_getxattr,
	.listxattr = mirror_listxattr,
	.removexattr = mirror_removexattr,
};

int
main(int argc, char **argv)
{
	char *arguments[] = {argv[0], "-f", "-omax_threads=16", argc == 3 ? argv[2] : NULL, NULL};

	if (argc != 3)
		errx(2, "usage: mirror-fs SOURCE MOUNTPOINT");
	source = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (source < 0)
		err(2, "%s", argv[1]);
	umask(0);
	return fuse_main(4, arguments, &operations, NULL);
}
