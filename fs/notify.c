/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The one thread that tells the kernel what it must forget. It holds no lock while it does: the
 * kernel takes the directory's, which a request in progress may hold (its fs/fuse/dir.c).
 */

#include "fs/internal.h"
#include "fs/prefix-chain.h"

#include <string.h>

struct KvcfsNotifier {
	Kvcfs *fs;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	/* Protected by lock. */
	GQueue lost; /* of Lost: the kernel does not know yet */
	bool is_stopping;
};

typedef struct Lost {
	KvcObjectKey *key; /* owned */
	KvcfsInode *dir;   /* owned reference: only its name in there; NULL: all names */
	bool is_own;	   /* by a request of the kernel's: the name in its directory is gone */
} Lost;

/*
 * What the calling thread is removing on the kernel's behalf. To tell the kernel of that name would
 * be of no use, and would wait for the lock of the directory, which the request holds: killed in
 * between, the daemon could not end, and nobody would answer the request.
 */
static _Thread_local const KvcObjectKey *own_key;

typedef struct Entry {
	KvcfsInode *dir; /* owned reference */
	char *name;
} Entry;

static void
add_dir_locked(GArray *entries, KvcfsInode *dir, const char *name)
{
	Entry entry = {kvcfs_inode_ref_locked(dir), g_strdup(name)};
	g_array_append_val(entries, entry);
}

/* Every name that KEY has in this mount. */
static GArray *
find_names(Kvcfs *fs, KvcObjectKey *key, bool but_own)
{
	GArray *entries = g_array_new(FALSE, FALSE, sizeof(Entry));
	g_autofree char *name = kvcfs_key_to_name(key);
	pthread_mutex_lock(&fs->names);
	KvcfsInode *dir = kvcfs_tree_find_dir_locked(fs, key->scope);
	if (dir && !but_own)
		add_dir_locked(entries, dir, name);
	if (dir && dir->nlinks && g_hash_table_contains(dir->nlinks, key)) {
		GHashTableIter iter;
		KvcfsInode *prefix;
		g_hash_table_iter_init(&iter, fs->prefixes);
		while (g_hash_table_iter_next(&iter, NULL, (void **)&prefix))
			if (prefix->parent == dir && kvcfs_prefix_has_locked(prefix, key))
				add_dir_locked(entries, prefix, name);
	}
	pthread_mutex_unlock(&fs->names);
	return entries;
}

static void
forget_entry(Kvcfs *fs, KvcfsInode *dir, const char *name)
{
	if (fs->se)
		fuse_lowlevel_notify_inval_entry(fs->se, kvcfs_inode_nodeid(dir), name,
						 strlen(name));
}

static void
forget_lost(Kvcfs *fs, const Lost *lost)
{
	if (lost->dir) {
		g_autofree char *name = kvcfs_key_to_name(lost->key);
		forget_entry(fs, lost->dir, name);
		return;
	}
	g_autoptr(GArray) entries = find_names(fs, lost->key, lost->is_own);
	for (guint i = 0; i < entries->len; i++) {
		Entry *entry = &g_array_index(entries, Entry, i);
		forget_entry(fs, entry->dir, entry->name);
		kvcfs_inode_unref(entry->dir, 1);
		g_free(entry->name);
	}
}

static void
lost_free(void *data)
{
	Lost *lost = data;
	kvc_object_key_unref(lost->key);
	if (lost->dir)
		kvcfs_inode_unref(lost->dir, 1);
	g_free(lost);
}

/* The next one (transfer full), or NULL: the end. */
static Lost *
wait_for_lost(KvcfsNotifier *notifier)
{
	Lost *lost = NULL;
	pthread_mutex_lock(&notifier->lock);
	while (!notifier->is_stopping && !(lost = g_queue_pop_head(&notifier->lost)))
		pthread_cond_wait(&notifier->wake, &notifier->lock);
	pthread_mutex_unlock(&notifier->lock);
	return lost;
}

static void *
notify_thread(void *data)
{
	KvcfsNotifier *notifier = data;
	Lost *lost;
	pthread_setname_np(pthread_self(), "kvcfs-notify");
	while ((lost = wait_for_lost(notifier))) {
		forget_lost(notifier->fs, lost);
		lost_free(lost);
	}
	return NULL;
}

KvcfsNotifier *
kvcfs_notifier_new(Kvcfs *fs)
{
	KvcfsNotifier *notifier = g_new0(KvcfsNotifier, 1);
	notifier->fs = fs;
	pthread_mutex_init(&notifier->lock, NULL);
	pthread_cond_init(&notifier->wake, NULL);
	if (pthread_create(&notifier->thread, NULL, notify_thread, notifier) != 0)
		g_error("cannot start a thread");
	return notifier;
}

void
kvcfs_notifier_free(KvcfsNotifier *notifier)
{
	pthread_mutex_lock(&notifier->lock);
	notifier->is_stopping = true;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
	pthread_join(notifier->thread, NULL);
	g_queue_clear_full(&notifier->lost, lost_free);
	pthread_cond_destroy(&notifier->wake);
	pthread_mutex_destroy(&notifier->lock);
	g_free(notifier);
}

void
kvcfs_notifier_set_own(const KvcObjectKey *key)
{
	own_key = key;
}

static void
post(KvcfsNotifier *notifier, Lost lost)
{
	Lost *copy = g_memdup2(&lost, sizeof(lost));
	pthread_mutex_lock(&notifier->lock);
	g_queue_push_tail(&notifier->lost, copy);
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
}

void
kvcfs_notifier_key_lost(KvcfsNotifier *notifier, KvcObjectKey *key)
{
	bool is_own = own_key && kvc_object_key_equal(own_key, key);
	post(notifier, (Lost){.key = kvc_object_key_ref(key), .is_own = is_own});
}

void
kvcfs_notifier_entry_lost_locked(KvcfsNotifier *notifier, KvcfsInode *dir, KvcObjectKey *key)
{
	post(notifier, (Lost){.key = kvc_object_key_ref(key), .dir = kvcfs_inode_ref_locked(dir)});
}
