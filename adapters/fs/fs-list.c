/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Listing, one page at a time: first the flat directory, then those of shard_dirs, then the
 * trees below prefix/ and plain/.
 *
 * The cursor is the place plus what this pass has counted so far:
 *
 *	d:<counts>:<offset>	in the flat directory: d_off of the last entry seen, which the file
 *				system takes back in a later open (as NFS servers rely on)
 *	s:<counts>:<path>	in shards, which are walked in sorted order: the last path seen
 *	p:<counts>:<path>	below prefix/, the same
 *	f:<counts>:<path>	below plain/, the same
 *
 * so a page costs what is in it. Of a tree the names that come next in a directory are kept from
 * one page to the next (fs-window.c), by one pass; others read them again.
 *
 * A pass of one scope looks at the names in the flat directory only, until one is of that scope,
 * and at one directory of one of the trees.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs.h"

/* As stores that cannot be asked for changes at all. */
#define SHARDS_RELIST_S 30

typedef enum {
	LIST_FLAT,
	LIST_SHARDS,
	LIST_PREFIX,
	LIST_PLAIN,
	LIST_PLACES,
} ListPlace;

/* In a cursor. */
static const char place_letters[] = "dspf";
/* The root of the tree. */
static const char *const place_dirs[LIST_PLACES] = {NULL, ".", FS_PREFIX_DIR, FS_PLAIN_DIR};

typedef struct ListPass {
	FsAdapter *fs;
	const KvcKeyScope *scope;
	KvcL2ListEntry *entries;
	size_t n, max;
	/* So far in this pass: foreign files; objects and bytes from before this run. */
	uint64_t foreign, objects, bytes;
	int errnum; /* of the first directory or file in this pass that could not be read, or 0 */
	ListPlace place;
	long offset;	 /* flat directory */
	char *path;	 /* tree: below its root */
	uint64_t window; /* that the page before has left, or 0 */
	FsWindow *left;	 /* by this page, or NULL */
} ListPass;

static bool
parse_cursor(ListPass *pass, const char *cursor)
{
	int at = 0;

	if (!cursor)
		return true;
	const char *letter = *cursor ? strchr(place_letters, *cursor) : NULL;
	if (!letter ||
	    sscanf(cursor + 1,
		   ":%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT
		   ":%d:%" G_GUINT64_FORMAT ":%n",
		   &pass->foreign, &pass->objects, &pass->bytes, &pass->errnum, &pass->window,
		   &at) != 5 ||
	    at == 0)
		return false;
	pass->place = (ListPlace)(letter - place_letters);
	if (pass->place != LIST_FLAT)
		pass->path = g_strdup(cursor + 1 + at);
	else
		pass->offset = strtol(cursor + 1 + at, NULL, 10);
	return true;
}

static char *
format_cursor(const ListPass *pass)
{
	g_autofree char *offset = g_strdup_printf("%ld", pass->offset);

	return g_strdup_printf("%c:%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT
			       ":%d:%" G_GUINT64_FORMAT ":%s",
			       place_letters[pass->place], pass->foreign, pass->objects,
			       pass->bytes, pass->errnum, pass->left ? pass->left->number : 0,
			       pass->place == LIST_FLAT ? offset : pass->path);
}

/* PATH could not be read: the pass goes on, and fails at its end. What is gone was removed since.
 */
static void
note_unreadable(ListPass *pass, const char *path, int errnum)
{
	if (errnum == ENOENT || errnum == ENOTDIR)
		return;
	fs_note_error(pass->fs, KVC_TASK_LOOKUP, "list", path, errnum);
	if (pass->errnum == 0)
		pass->errnum = errnum;
}

/* When ST's file or its name was last changed: unlike its mtime, nobody can set that. */
static int64_t
ctime_ns(const struct stat *st)
{
	return st->st_ctim.tv_sec * INT64_C(1000000000) + st->st_ctim.tv_nsec;
}

/* The entry of KEY (taken over) whose file is PATH with ST; not one that was cut short, or
 * is another key's. */
static void
add_entry(ListPass *pass, KvcObjectKey *key, const char *path, struct stat *st)
{
	KvcL2ObjectInfo info;

	if (!fs_attr_read(pass->fs, key, path, st, &info)) {
		kvc_object_key_unref(key);
		return;
	}
	if (ctime_ns(st) < pass->fs->opened_ns) {
		pass->objects++;
		pass->bytes += (uint64_t)st->st_size;
	}
	if (pass->scope && key->scope != pass->scope) {
		kvc_object_key_unref(key);
		kvc_xattrs_unref(info.xattrs);
		return;
	}
	pass->entries[pass->n++] = (KvcL2ListEntry){key, info};
}

/* The directory below BASE that has the files of SCOPE which are not in the flat directory
 * (transfer full). */
static char *
scope_dir(FsAdapter *fs, const KvcKeyScope *scope)
{
	KvcSpace space = scope->is_plain ? KVC_SPACE_PLAIN : KVC_SPACE_PREFIX;
	g_autoptr(KvcObjectKey) key = kvc_object_key_new((KvcKeyScope *)scope, space, "x", 1, NULL);
	g_autofree char *path = key ? fs_path_format(fs, key) : NULL;

	/* Of a scope whose files are all in the flat directory, under digests. */
	return path && strchr(path, '/') ? g_path_get_dirname(path) : NULL;
}

/* May the file NAME, in base_path or a shard, be of the scope that the pass is about? Without a
 * look at the file. */
static bool
may_be_listed(const ListPass *pass, const char *name)
{
	if (!pass->scope || fs_is_digest_name(name))
		return true;
	if (pass->scope->is_plain)
		return false;
	g_autoptr(KvcObjectKey) key = fs_path_parse(pass->fs, name);
	return key && key->scope == pass->scope;
}

/* Is there a file of KEY that is looked at before this PATH? The same key would come twice. */
static bool
is_duplicate(FsAdapter *fs, const KvcObjectKey *key, const char *path)
{
	char *other = fs_path_format(fs, key);
	bool is_there = false;
	struct stat st;

	for (unsigned i = 0; other && !is_there && strcmp(other, path); i++) {
		is_there = fstatat(fs->base_fd, other, &st, AT_SYMLINK_NOFOLLOW) == 0;
		g_free(other);
		other = fs_path_format_other(fs, key, i);
	}
	g_free(other);
	return is_there;
}

static void
add_flat_file(ListPass *pass, const struct dirent *entry)
{
	const char *name = entry->d_name;
	KvcObjectKey *key = NULL;
	struct stat st;
	int pid, errnum = 0;

	if (entry->d_type == DT_DIR && fs_is_shard_name(name))
		atomic_store(&pass->fs->has_shards, true);
	if (entry->d_type == DT_DIR || fs_temp_name_parse(name, &pid) || !may_be_listed(pass, name))
		return;
	if (fstatat(pass->fs->base_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		note_unreadable(pass, name, errno);
		return;
	}
	if (S_ISDIR(st.st_mode))
		return;
	if (S_ISREG(st.st_mode))
		key = fs_is_digest_name(name) ? fs_digest_read_key(pass->fs, name, &errnum)
					      : fs_path_parse(pass->fs, name);
	if (errnum)
		note_unreadable(pass, name, errnum);
	else if (!key)
		pass->foreign++;
	else if (is_duplicate(pass->fs, key, name))
		kvc_object_key_unref(key);
	else
		add_entry(pass, key, name, &st);
}

/* Reads on in the flat directory; 0 or -errno. */
static int
list_flat(ListPass *pass)
{
	int fd = openat(pass->fs->base_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!dir) {
		int rc = -errno;

		if (fd >= 0)
			close(fd);
		fs_note_error(pass->fs, KVC_TASK_LOOKUP, "list", pass->fs->base_path, -rc);
		return rc;
	}
	if (pass->offset)
		seekdir(dir, pass->offset);
	errno = 0;
	while (pass->n < pass->max && (entry = readdir(dir))) {
		add_flat_file(pass, entry);
		pass->offset = (long)entry->d_off;
		errno = 0;
	}
	if (pass->n < pass->max && errno)
		note_unreadable(pass, pass->fs->base_path, errno);
	closedir(dir);
	return 0;
}

static void
add_tree_file(ListPass *pass, const char *path, struct stat *st)
{
	KvcObjectKey *key;
	int pid;

	if (fs_temp_name_parse(strrchr(path, '/') + 1, &pid))
		return;
	key = S_ISREG(st->st_mode) ? fs_path_parse(pass->fs, path) : NULL;
	if (!key)
		pass->foreign++;
	else if (pass->place == LIST_SHARDS && is_duplicate(pass->fs, key, path))
		kvc_object_key_unref(key);
	else
		add_entry(pass, key, path, st);
}

/* The stat of PATH in a tree; false: there is nothing to be seen. */
static bool
stat_in_tree(ListPass *pass, const char *path, struct stat *st)
{
	if (fstatat(pass->fs->base_fd, path, st, AT_SYMLINK_NOFOLLOW) == 0)
		return true;
	if (errno == ENAMETOOLONG) /* deeper than any of ours */
		pass->foreign++;
	else
		note_unreadable(pass, path, errno);
	return false;
}

static void walk_tree(ListPass *pass, const char *dir, const char *after);

/* Are files looked for in the directory PATH of a tree? */
static bool
is_walked(const ListPass *pass, const char *path)
{
	const char *slash = strchr(path, '/');

	/* Of shard_dirs the first ones are walked by list_shards(). */
	if (pass->place == LIST_SHARDS)
		return slash && fs_is_shard_name(slash + 1);
	return !pass->scope;
}

/* Without a look at the file: is it one of the pass's scope, or a directory? */
static bool
is_seen(const ListPass *pass, const char *path)
{
	return pass->place != LIST_SHARDS || strlen(path) == strlen("ab/cd") ||
	       may_be_listed(pass, path);
}

/*
 * NAME in the directory DIR of a tree. REST: what of the position is below it, NULL: nothing is.
 */
static void
walk_name(ListPass *pass, const char *dir, const char *name, const char *rest)
{
	g_autofree char *path = g_strdup_printf("%s%s%s", dir, *dir ? "/" : "", name);
	g_autofree char *file = g_strdup_printf("%s/%s", place_dirs[pass->place], path);
	struct stat st;

	if (!is_seen(pass, path) || !stat_in_tree(pass, file, &st))
		return;
	if (S_ISDIR(st.st_mode)) {
		if (is_walked(pass, path))
			walk_tree(pass, path, rest);
		return;
	}
	add_tree_file(pass, pass->place == LIST_SHARDS ? path : file, &st);
	g_free(pass->path);
	pass->path = g_steal_pointer(&path);
}

/* The names of the directory REAL from FROM on (NULL: all), as many as a window has. */
static FsWindow *
open_window(ListPass *pass, const char *real, const char *from)
{
	int errnum;
	FsWindow *window = fs_window_read(pass->fs, real, from, &errnum);

	if (errnum)
		note_unreadable(pass, real, errnum);
	return window;
}

/*
 * Walks the directory DIR (a path below the root of the tree, "" at the root) behind AFTER, which
 * is relative to it; NULL: from the start.
 */
static void
walk_tree(ListPass *pass, const char *dir, const char *after)
{
	const char *root = place_dirs[pass->place];
	g_autofree char *real = g_strdup_printf("%s%s%s", root, *dir ? "/" : "", dir);
	size_t first_len = after ? strcspn(after, "/") : 0;
	g_autofree char *first = after ? g_strndup(after, first_len) : NULL;
	const char *rest = after && after[first_len] ? after + first_len + 1 : NULL;
	FsWindow *window = fs_window_take(pass->fs, pass->window, real);

	if (!window)
		window = open_window(pass, real, first);
	for (;;) {
		GPtrArray *names = window->names;

		for (guint i = 0; i < names->len && pass->n < pass->max; i++) {
			const char *name = names->pdata[i];
			int order = first ? strcmp(name, first) : 1;

			if (order > 0 || (order == 0 && rest))
				walk_name(pass, dir, name, order == 0 ? rest : NULL);
		}
		if (pass->n == pass->max || window->is_last || names->len == 0)
			break;
		g_free(first);
		first = g_strdup(names->pdata[names->len - 1]);
		rest = NULL;
		fs_window_free(window);
		window = open_window(pass, real, first);
	}
	/* The innermost, where the page ends. */
	if (pass->n == pass->max && !pass->left)
		pass->left = window;
	else
		fs_window_free(window);
}

/* The one directory of the tree in which the files of the pass's scope are, behind AFTER. */
static void
list_scope_dir(ListPass *pass, const char *after)
{
	g_autofree char *dir = scope_dir(pass->fs, pass->scope);
	const char *root = place_dirs[pass->place];
	size_t len = strlen(root);

	if (!dir || strncmp(dir, root, len) || (dir[len] != '/' && dir[len] != '\0'))
		return;
	const char *below = dir[len] == '/' ? dir + len + 1 : "";
	size_t skip = *below ? strlen(below) + 1 : 0;
	walk_tree(pass, below, after ? after + skip : NULL);
}

/* The directories of shard_dirs behind AFTER, a path below base_path; NULL: all. */
static void
list_shards(ListPass *pass, const char *after)
{
	const size_t len = strlen("ab");

	if (!atomic_load(&pass->fs->has_shards) || (pass->scope && pass->scope->is_plain))
		return;
	for (unsigned i = 0; i < 256 && pass->n < pass->max; i++) {
		char name[4];
		struct stat st;

		g_snprintf(name, sizeof(name), "%02x", i);
		int order = after ? strncmp(name, after, len) : 1;
		if (order >= 0 && fstatat(pass->fs->base_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISDIR(st.st_mode))
			walk_tree(pass, name, order == 0 ? after + len + 1 : NULL);
	}
}

/* Goes on in the tree where the pass stands. */
static void
list_tree(ListPass *pass)
{
	g_autofree char *after = g_steal_pointer(&pass->path);

	const char *behind = after && *after ? after : NULL;

	pass->path = g_strdup(after ? after : "");
	if (pass->place == LIST_SHARDS)
		list_shards(pass, behind);
	else if (pass->scope)
		list_scope_dir(pass, behind);
	else
		walk_tree(pass, "", behind);
}

/* Goes on where the pass stands, until the page is full or all was seen; 0 or -errno. */
static int
list_page(ListPass *pass)
{
	for (;;) {
		int rc = 0;

		if (pass->place == LIST_FLAT)
			rc = list_flat(pass);
		else
			list_tree(pass);
		if (rc < 0 || pass->n == pass->max || pass->place == LIST_PLACES - 1)
			return rc;
		g_clear_pointer(&pass->path, g_free);
		pass->place++;
	}
}

/* What was there before this run is known now; stores and deletions have been counted all along. */
static void
finish_pass(ListPass *pass)
{
	FsAdapter *fs = pass->fs;

	if (pass->scope)
		return; /* not all was seen */
	atomic_store(&fs->stats.foreign_files, pass->foreign);
	if (!atomic_exchange(&fs->counted, true)) {
		atomic_fetch_add(&fs->bytes_used, (int64_t)pass->bytes);
		atomic_fetch_add(&fs->objects, (int64_t)pass->objects);
	}
	fs_note_space(fs);
}

ssize_t
fs_list(FsAdapter *fs, const KvcKeyScope *scope, char **cursor, KvcL2ListEntry *entries, size_t max)
{
	ListPass pass = {.fs = fs, .scope = scope, .entries = entries, .max = max};
	int rc = parse_cursor(&pass, *cursor) ? 0 : -EINVAL;

	g_clear_pointer(cursor, g_free);
	if (rc == 0 && fs_place_is_lost(fs, KVC_TASK_LOOKUP))
		rc = -FS_LOST;
	if (rc == 0)
		rc = list_page(&pass);
	/* What was found comes before the error: that is told by a page of its own, the last one.
	 */
	bool is_full = pass.n == max && max > 0;
	if (rc == 0 && (is_full || (pass.errnum && pass.n > 0))) {
		*cursor = format_cursor(&pass);
	} else if (rc == 0) {
		finish_pass(&pass);
		rc = -pass.errnum;
	}
	for (size_t i = 0; rc < 0 && i < pass.n; i++) {
		kvc_object_key_unref(entries[i].key);
		kvc_xattrs_unref(entries[i].info.xattrs);
	}
	if (*cursor && pass.left)
		fs_window_leave(fs, pass.left);
	else
		fs_window_free(pass.left);
	g_free(pass.path);
	return rc < 0 ? rc : (ssize_t)pass.n;
}

/* ---- Changes ------------------------------------------------------------------------------- */

/* The mtime of the directory PATH, which moves with each name that comes, goes or is replaced. */
static int
note_changes(FsAdapter *fs, const char *path, uint64_t *stamp, int64_t *changed_ns)
{
	struct stat st;

	if (fstatat(fs->base_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno != ENOENT && errno != ENOTDIR)
			return -errno;
		st = (struct stat){0}; /* made by the first file */
	}
	*stamp = (*stamp * 31 + (uint64_t)st.st_ino) * 31 + (uint64_t)fs_mtime_ns(&st);
	*changed_ns = MAX(*changed_ns, fs_mtime_ns(&st));
	return 0;
}

/* Up to 65536 directories are not asked: they have changed every so often. */
static void
note_period(uint64_t *stamp, int64_t *changed_ns)
{
	const int64_t period_ns = SHARDS_RELIST_S * KVC_SEC_NS;
	int64_t period = g_get_real_time() * 1000 / period_ns;

	*stamp = *stamp * 31 + (uint64_t)period;
	*changed_ns = MAX(*changed_ns, period * period_ns);
}

int
fs_get_changes(FsAdapter *fs, const KvcKeyScope *scope, uint64_t *stamp, int64_t *changed_ns)
{
	g_autofree char *dir = scope_dir(fs, scope);
	int rc = fs_place_is_lost(fs, KVC_TASK_LOOKUP) ? -FS_LOST : 0;

	*stamp = 0;
	*changed_ns = 0;
	/* Few plain files are in the flat directory, under digests: those are found by their names.
	 */
	if (rc == 0 && (!scope->is_plain || !dir))
		rc = note_changes(fs, ".", stamp, changed_ns);
	if (rc == 0 && dir)
		rc = note_changes(fs, dir, stamp, changed_ns);
	if (rc == 0 && !scope->is_plain && atomic_load(&fs->has_shards))
		note_period(stamp, changed_ns);
	return rc;
}
