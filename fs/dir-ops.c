/* SPDX-License-Identifier: Apache-2.0 */

/*
 * OPENDIR, READDIR, READDIRPLUS, RELEASEDIR. Opening a prefix directory submits one prefetch task
 * for its chain and is answered when the lookup phase is done; READDIR never waits. The handle
 * keeps the loaded chunks locked.
 */

#include "fs/internal.h"

#include <errno.h>
#include <string.h>

/* The loads of a prefix directory begin at the first open of an entry, or after this. */
#define START_LOADS_NS (50 * INT64_C(1000000))
/*
 * Offsets of prefix directories, of other directories and of temporary names; those of objects are
 * their sequences, far below.
 */
#define PREFIX_OFFSET (INT64_C(1) << 60)
#define CHILD_OFFSET (INT64_C(1) << 61)
#define TEMP_OFFSET (INT64_C(1) << 62)
/* A directory is small, and its plain files are told with their attributes, if it has fewer. */
#define PAGE 64

/* ---- OPENDIR ------------------------------------------------------------------------------- */

typedef struct Opendir {
	Kvcfs *fs;
	fuse_req_t req;
	struct fuse_file_info fi;
	KvcfsHandle *handle; /* owned until answered */
	int64_t deadline_ns;
	bool has_checked, has_renewed, has_waited_chain, has_waited_commit;
} Opendir;

static void opendir_step(Opendir *open);

static void
opendir_fail(Opendir *open, int errnum)
{
	fuse_reply_err(open->req, errnum);
	kvcfs_handle_free(open->handle);
	g_free(open);
}

static void
opendir_end(Opendir *open)
{
	KvcfsHandle *handle = open->handle;
	open->fi.fh = (uintptr_t)handle;
	if (fuse_reply_open(open->req, &open->fi) != 0)
		kvcfs_handle_release(handle);
	g_free(open);
}

typedef struct StartTimer {
	Kvcfs *fs;
	KvcfsHandle *handle; /* only compared until it is found to be open */
} StartTimer;

static void
start_loads(fuse_req_t req, KvcfsWake why, void *user)
{
	StartTimer *timer = user;
	Kvcfs *fs = timer->fs;
	pthread_mutex_lock(&fs->names);
	if (g_ptr_array_remove_fast(fs->held_dirs, timer->handle))
		kvc_prefetch_handle_start(kvcfs_fetch_handle(timer->handle->fetch));
	pthread_mutex_unlock(&fs->names);
	g_free(timer);
}

/* How many keys from the first are known to exist: what a listing shows without waiting. */
static size_t
count_known(Kvcfs *fs, const GPtrArray *keys)
{
	size_t n = 0;
	while (n < keys->len && kvcfs_object_exists(fs, keys->pdata[n]))
		n++;
	return n;
}

static bool
after_plan(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	Opendir *open = user;
	Kvcfs *fs = open->fs;
	KvcfsHandle *handle = open->handle;
	if (why == KVCFS_WAKE_INTERRUPT) {
		opendir_fail(open, EINTR);
		return false;
	}
	ssize_t found = why == KVCFS_WAKE_DONE
				? kvc_prefetch_handle_get_found(kvcfs_fetch_handle(fetch))
				: -1;
	handle->n_found = found >= 0 ? (size_t)found : count_known(fs, handle->keys);
	bool is_kept = why == KVCFS_WAKE_DONE;
	if (is_kept) {
		StartTimer *timer = g_new(StartTimer, 1);
		*timer = (StartTimer){fs, handle};
		handle->fetch = fetch;
		pthread_mutex_lock(&fs->names);
		g_ptr_array_add(fs->open_prefixes, handle);
		g_ptr_array_add(fs->held_dirs, handle);
		pthread_mutex_unlock(&fs->names);
		kvcfs_pending_release(kvcfs_pending_new(
			fs->pendings, NULL, kvcfs_now_ns() + START_LOADS_NS, start_loads, timer));
	}
	opendir_end(open);
	return is_kept;
}

static void
plan_chain(Opendir *open)
{
	Kvcfs *fs = open->fs;
	KvcfsHandle *handle = open->handle;
	handle->keys = kvcfs_prefix_run(handle->inode);
	handle->key_set = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	for (guint i = 0; i < handle->keys->len; i++)
		g_hash_table_add(handle->key_set, handle->keys->pdata[i]);
	if (handle->keys->len == 0) {
		opendir_end(open);
		return;
	}
	KvcPrefetchParams params = {
		.keys = (KvcObjectKey *const *)handle->keys->pdata,
		.n_keys = handle->keys->len,
		.flags = KVC_PREFETCH_HOLD,
	};
	kvcfs_fetch_start(fs, open->req, &params, true, open->deadline_ns, after_plan, open);
}

static void
after_wait(fuse_req_t req, KvcfsWake why, void *user)
{
	Opendir *open = user;
	if (why == KVCFS_WAKE_INTERRUPT)
		opendir_fail(open, EINTR);
	else
		opendir_step(open);
}

static void
after_check(fuse_req_t req, KvcfsWake why, void *user)
{
	Opendir *open = user;
	if (why != KVCFS_WAKE_INTERRUPT && !kvcfs_prefix_renew(open->handle->inode))
		opendir_fail(open, ENOENT);
	else
		after_wait(req, why, open);
}

static void
after_renewal(fuse_req_t req, KvcfsWake why, void *user)
{
	Opendir *open = user;
	if (why == KVCFS_WAKE_TIMEOUT)
		kvcfs_listing_note_stale(open->handle->inode);
	after_wait(req, why, open);
}

static void
opendir_step(Opendir *open)
{
	Kvcfs *fs = open->fs;
	KvcfsInode *dir = open->handle->inode;
	bool is_prefix = dir->kind == KVCFS_PREFIX;
	if (is_prefix && !open->has_checked && kvcfs_prefix_is_check_due(dir)) {
		open->has_checked = true;
		kvcfs_coherence_check(fs, open->req, kvcfs_inode_get_key(dir), after_check, open);
		return;
	}
	if (is_prefix && !open->has_waited_chain && !kvcfs_prefix_is_loaded(dir)) {
		open->has_waited_chain = true;
		kvcfs_prefix_wait(dir, open->req, open->deadline_ns, after_wait, open);
		return;
	}
	if (!is_prefix && !open->has_renewed && kvcfs_listing_is_due(dir)) {
		open->has_renewed = true;
		kvcfs_listing_renew(dir, open->req, after_renewal, open);
		return;
	}
	KvcfsClosingFilter filter = {.scope = dir->scope, .prefix = is_prefix ? dir : NULL};
	if (!open->has_waited_commit && kvcfs_is_closing(fs, &filter)) {
		open->has_waited_commit = true;
		kvcfs_wait_for_commit(fs, open->req, &filter, after_wait, open);
		return;
	}
	if (is_prefix) {
		plan_chain(open);
		return;
	}
	if (dir->kind == KVCFS_DIR)
		open->handle->children = kvcfs_tree_list(dir);
	opendir_end(open);
}

static GPtrArray *
control_files(Kvcfs *fs)
{
	GPtrArray *children = g_ptr_array_new();
	for (int i = 0; i < kvcfs_control_count(); i++)
		g_ptr_array_add(children, kvcfs_control_lookup(fs, kvcfs_control_name(i)));
	return children;
}

void
kvcfs_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	Kvcfs *fs = kvcfs_of(req);
	KvcfsInode *dir = kvcfs_inode_of(fs, ino);
	bool is_prefix = dir->kind == KVCFS_PREFIX;
	Opendir *open = g_new0(Opendir, 1);
	open->fs = fs;
	open->req = req;
	open->fi = *fi;
	open->deadline_ns = kvcfs_now_ns() + fs->config.load_timeout_ns;
	open->handle =
		kvcfs_handle_new(is_prefix ? KVCFS_HANDLE_PREFIX_DIR : KVCFS_HANDLE_DIR, dir);
	if (dir->kind == KVCFS_CONTROL_ROOT)
		open->handle->children = control_files(fs);
	if (dir->scope)
		opendir_step(open);
	else
		opendir_end(open);
}

/* ---- READDIR ------------------------------------------------------------------------------- */

typedef struct Listing {
	fuse_req_t req;
	char *data;
	size_t size, used;
	GPtrArray *told; /* READDIRPLUS: the inodes in it, with references; NULL: READDIR */
} Listing;

/* ENTRY: its node id may be 0, the kernel then asks for the name. false: no room for it any more.
 */
static bool
add_param(Listing *listing, const char *name, const struct fuse_entry_param *entry, off_t next)
{
	char *data = listing->data + listing->used;
	size_t room = listing->size - listing->used;
	size_t n = listing->told
			   ? fuse_add_direntry_plus(listing->req, data, room, name, entry, next)
			   : fuse_add_direntry(listing->req, data, room, name, &entry->attr, next);
	if (n > room)
		return false;
	listing->used += n;
	return true;
}

static bool
add_entry(Listing *listing, const char *name, uint64_t ino, mode_t mode, off_t next)
{
	struct fuse_entry_param entry = {.attr = {.st_ino = ino, .st_mode = mode}};
	return add_param(listing, name, &entry, next);
}

/*
 * A plain file with its attributes, unless a LOOKUP would ask L2. Not so those of hash names: by
 * which directory one was looked up decides over the readahead.
 */
static bool
add_plain(Listing *listing, Kvcfs *fs, KvcObjectKey *key, const char *name, off_t next)
{
	struct fuse_entry_param entry;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_object_inode_locked(fs, key);
	pthread_mutex_unlock(&fs->names);
	bool is_told = kvcfs_inode_get_entry(inode, &entry) == 0 && entry.entry_timeout > 0 &&
		       !kvcfs_coherence_is_due(fs, key);
	if (!is_told)
		entry.ino = 0;
	bool fits = add_param(listing, name, &entry, next);
	if (fits && is_told)
		g_ptr_array_add(listing->told, inode);
	else
		kvcfs_inode_unref(inode, 1);
	return fits;
}

static bool
add_dots(Listing *listing, const KvcfsInode *dir, off_t off)
{
	pthread_mutex_lock(&dir->fs->names);
	uint64_t above = dir->parent ? dir->parent->ino : dir->ino;
	pthread_mutex_unlock(&dir->fs->names);
	if (off < 1 && !add_entry(listing, ".", dir->ino, S_IFDIR, 1))
		return false;
	return off >= 2 || add_entry(listing, "..", above, S_IFDIR, 2);
}

/* true: all fit. */
static bool
list_children(Listing *listing, const KvcfsHandle *handle, off_t off)
{
	const KvcfsInode *dir = handle->inode;
	for (off_t i = MAX(off - CHILD_OFFSET, 0); i < (off_t)handle->children->len; i++) {
		const KvcfsInode *child = handle->children->pdata[i];
		if (!add_entry(listing, child->name, child->ino, child->mode, CHILD_OFFSET + i + 1))
			return false;
	}
	/* The root's own, which is in no table. */
	off_t end = CHILD_OFFSET + (off_t)handle->children->len + 1;
	return dir != dir->fs->root || off >= end ||
	       add_entry(listing, KVCFS_CONTROL_DIR, dir->fs->control_root->ino, S_IFDIR, end);
}

static int
compare_sequences(const void *a, const void *b)
{
	const KvcfsInode *x = *(KvcfsInode *const *)a, *y = *(KvcfsInode *const *)b;
	return x->staging->sequence < y->staging->sequence ? -1 : 1;
}

/* In the order in which they got their names, so that a listing can go on after any. */
static void
list_temps(Listing *listing, KvcfsInode *dir, off_t off)
{
	g_autoptr(GPtrArray) temps = g_ptr_array_new();
	GHashTableIter iter;
	KvcfsInode *inode;
	pthread_mutex_lock(&dir->fs->names);
	if (dir->temps) {
		g_hash_table_iter_init(&iter, dir->temps);
		while (g_hash_table_iter_next(&iter, NULL, (void **)&inode))
			if (TEMP_OFFSET + (off_t)inode->staging->sequence > off)
				g_ptr_array_add(temps, inode);
	}
	g_ptr_array_sort(temps, compare_sequences);
	for (guint i = 0; i < temps->len; i++) {
		inode = temps->pdata[i];
		off_t next = TEMP_OFFSET + (off_t)inode->staging->sequence;
		if (!add_entry(listing, inode->staging->temp_name, inode->ino, S_IFREG, next))
			break;
	}
	pthread_mutex_unlock(&dir->fs->names);
}

/* What others left in L2 may be empty, or have a name that means something else here. */
static bool
is_listed(KvcfsInode *dir, const KvcObjectKey *key, const char *name, uint64_t bytes)
{
	KvcfsNameClass class = kvcfs_name_classify(dir->scope, name);
	if (key->space == KVC_SPACE_PREFIX)
		return class == KVCFS_NAME_OTHER;
	if (key->space == KVC_SPACE_PLAIN)
		return class == KVCFS_NAME_PLAIN && !kvcfs_tree_has_child(dir, name);
	return bytes > 0;
}

static bool
list_key(Listing *listing, KvcfsInode *dir, const KvcListEntry *entry, off_t base, bool is_small)
{
	KvcObjectKey *key = entry->key;
	g_autofree char *name = kvcfs_key_to_name(key);
	off_t next = base + (off_t)entry->info.sequence;
	if (!is_listed(dir, key, name, entry->info.bytes))
		return true;
	if (key->space == KVC_SPACE_PLAIN && is_small)
		return add_plain(listing, dir->fs, key, name, next);
	mode_t type = key->space == KVC_SPACE_PREFIX ? S_IFDIR : S_IFREG;
	return add_entry(listing, name, kvcfs_key_ino(key), type, next);
}

/* The keys of SPACES (bits), whose offsets begin at BASE. true: all fit. */
static bool
list_keys(Listing *listing, KvcfsInode *dir, unsigned spaces, off_t base, off_t off)
{
	/* Sequences begin above those of "." and "..". */
	uint64_t after = (uint64_t)MAX(off - base, 0);
	bool fits = true;
	size_t n;
	do {
		KvcListEntry entries[PAGE];
		n = kvc_storage_manager_list(dir->fs->sm, dir->scope, spaces, after, entries, PAGE);
		for (size_t i = 0; i < n; i++) {
			after = entries[i].info.sequence;
			fits = fits &&
			       list_key(listing, dir, &entries[i], base, listing->told && n < PAGE);
			kvc_object_key_unref(entries[i].key);
		}
	} while (fits && n == PAGE);
	return fits;
}

static void
list_prefix(Listing *listing, const KvcfsHandle *handle, off_t off)
{
	KvcfsInode *prefix = handle->inode;
	size_t i = off > 2 ? (size_t)off - 2 : 0;
	for (; off < TEMP_OFFSET && i < handle->n_found; i++) {
		KvcObjectKey *key = handle->keys->pdata[i];
		g_autofree char *name = kvc_object_key_hash_hex(key);
		if (!add_entry(listing, name, kvcfs_key_ino(key), S_IFREG, (off_t)i + 3))
			return;
	}
	off_t end = (off_t)handle->n_found + 3;
	kvcfs_prefix_was_listed(prefix, fuse_req_ctx(listing->req)->pid);
	if (off < end && kvcfs_prefix_shows_keys_file(prefix)) {
		KvcfsInode *keys = kvcfs_prefix_keys_inode(prefix);
		bool fits = add_entry(listing, KVCFS_KEYS_FILE, keys->ino, S_IFREG, end);
		kvcfs_inode_unref(keys, 1);
		if (!fits)
			return;
	}
	list_temps(listing, prefix, off);
}

/*
 * Objects, prefix directories, other directories, temporary files. Objects come first, here and by
 * inode number: tar and cp then meet an object before the prefixes that list it, and ask for links
 * there.
 */
static void
list_directory(Listing *listing, const KvcfsHandle *handle, off_t off)
{
	KvcfsInode *dir = handle->inode;
	const unsigned prefixes = 1u << KVC_SPACE_PREFIX;
	if (dir->scope && off < PREFIX_OFFSET && !list_keys(listing, dir, ~prefixes, 0, off))
		return;
	if (dir->scope && off < CHILD_OFFSET &&
	    !list_keys(listing, dir, prefixes, PREFIX_OFFSET, off))
		return;
	if (handle->children && off < TEMP_OFFSET && !list_children(listing, handle, off))
		return;
	if (dir->scope)
		list_temps(listing, dir, off);
}

static int
reply_listing(Listing *listing, const KvcfsHandle *handle, off_t off)
{
	g_autofree char *data = g_malloc(listing->size);
	listing->data = data;
	if (add_dots(listing, handle->inode, off)) {
		if (handle->inode->kind == KVCFS_PREFIX)
			list_prefix(listing, handle, off);
		else
			list_directory(listing, handle, off);
	}
	return fuse_reply_buf(listing->req, data, listing->used);
}

void
kvcfs_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	Listing listing = {.req = req, .size = size};
	reply_listing(&listing, kvcfs_handle_of(fi), off);
}

/*
 * The kernel asks so for the first page of a directory, and for more when its entries are looked
 * up. Those of a large one it gets as by READDIR: each would be an inode that it keeps.
 */
void
kvcfs_op_readdirplus(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	Kvcfs *fs = kvcfs_of(req);
	g_autoptr(GPtrArray) told = g_ptr_array_new();
	Listing listing = {.req = req, .size = size, .told = told};
	bool is_refused = reply_listing(&listing, kvcfs_handle_of(fi), off) != 0;
	for (guint i = 0; i < told->len; i++) {
		if (is_refused)
			kvcfs_inode_unref(told->pdata[i], 1);
		else
			kvcfs_count(fs, entries_with_attributes);
	}
}

/* ---- RELEASEDIR ---------------------------------------------------------------------------- */

void
kvcfs_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	kvcfs_handle_release(kvcfs_handle_of(fi));
	fuse_reply_err(req, 0);
}
