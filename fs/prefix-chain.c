/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/prefix-chain.h"

#include <errno.h>
#include <string.h>

KvcfsChain *
kvcfs_chain_new(void)
{
	KvcfsChain *chain = g_new0(KvcfsChain, 1);
	chain->refs = g_ptr_array_new();
	chain->by_key = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	return chain;
}

static void
free_ref(KvcfsRef *ref)
{
	kvc_object_key_unref(ref->key);
	g_free(ref);
}

void
kvcfs_chain_free(KvcfsChain *chain)
{
	g_hash_table_unref(chain->by_key);
	for (guint i = 0; i < chain->refs->len; i++)
		free_ref(chain->refs->pdata[i]);
	g_ptr_array_unref(chain->refs);
	g_clear_pointer(&chain->load_waiters, g_ptr_array_unref);
	g_clear_pointer(&chain->former, g_ptr_array_unref);
	g_free(chain);
}

void
kvcfs_chain_forget_keys_inode_locked(KvcfsInode *prefix, KvcfsInode *keys)
{
	if (prefix->chain->keys_inode == keys)
		prefix->chain->keys_inode = NULL;
}

void
kvcfs_chain_set_time_locked(KvcfsInode *prefix, int64_t mtime_ns)
{
	KvcfsInode *keys = prefix->chain->keys_inode;
	prefix->chain->mtime_ns = mtime_ns;
	if (!keys)
		return;
	keys->mtime_ns = mtime_ns;
	keys->ctime_ns = kvcfs_wall_ns();
}

GString *
kvcfs_chain_text(const KvcfsChain *chain)
{
	GString *text = g_string_new(NULL);
	for (guint i = 0; i < chain->refs->len; i++) {
		const KvcfsRef *ref = chain->refs->pdata[i];
		if (!ref->is_committed)
			continue;
		g_autofree char *hex = kvc_object_key_hash_hex(ref->key);
		g_string_append(text, hex);
		g_string_append_c(text, '\n');
	}
	return text;
}

bool
kvcfs_chain_has_room(const KvcfsChain *chain, size_t bytes)
{
	return chain->text_bytes + bytes <= KVCFS_CHAIN_MAX_BYTES;
}

GPtrArray *
kvcfs_chain_keys(const KvcfsChain *chain)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	for (guint i = 0; i < chain->refs->len; i++) {
		const KvcfsRef *ref = chain->refs->pdata[i];
		g_ptr_array_add(keys, kvc_object_key_ref(ref->key));
	}
	return keys;
}

void
kvcfs_chain_forget_entries_locked(KvcfsInode *prefix, const GPtrArray *old)
{
	for (guint i = 0; i < old->len; i++)
		if (!kvcfs_prefix_has_locked(prefix, old->pdata[i]))
			kvcfs_notifier_entry_lost_locked(prefix->fs->notifier, prefix,
							 old->pdata[i]);
}

void
kvcfs_chain_set_loaded_locked(KvcfsInode *prefix)
{
	g_autoptr(GPtrArray) former = g_steal_pointer(&prefix->chain->former);
	prefix->chain->is_loaded = true;
	if (former)
		kvcfs_chain_forget_entries_locked(prefix, former);
}

/* The rank directory counts references for st_nlink; a place that a writer only holds is none. */
static void
count_link_locked(KvcfsInode *prefix, KvcObjectKey *key, int change)
{
	KvcfsInode *rank = prefix->parent;
	if (!rank->nlinks)
		rank->nlinks = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						     (GDestroyNotify)kvc_object_key_unref, NULL);
	int n = GPOINTER_TO_INT(g_hash_table_lookup(rank->nlinks, key)) + change;
	if (n > 0)
		g_hash_table_insert(rank->nlinks, kvc_object_key_ref(key), GINT_TO_POINTER(n));
	else
		g_hash_table_remove(rank->nlinks, key);
}

void
kvcfs_chain_set_committed_locked(KvcfsInode *prefix, KvcfsRef *ref, bool is_committed)
{
	size_t line_bytes = 2u * ref->key->chunk_hash_len + 1;
	if (ref->is_committed == is_committed)
		return;
	count_link_locked(prefix, ref->key, is_committed ? 1 : -1);
	prefix->chain->text_bytes += is_committed ? line_bytes : -line_bytes;
	ref->is_committed = is_committed;
}

void
kvcfs_chain_uncount_locked(KvcfsInode *prefix)
{
	const GPtrArray *refs = prefix->chain->refs;
	for (guint i = 0; i < refs->len; i++)
		kvcfs_chain_set_committed_locked(prefix, refs->pdata[i], false);
}

KvcfsRef *
kvcfs_chain_append_locked(KvcfsInode *prefix, KvcObjectKey *key, bool committed)
{
	KvcfsChain *chain = prefix->chain;
	KvcfsRef *ref = g_hash_table_lookup(chain->by_key, key);
	if (!ref) {
		ref = g_new0(KvcfsRef, 1);
		ref->key = kvc_object_key_ref(key);
		g_ptr_array_add(chain->refs, ref);
		g_hash_table_insert(chain->by_key, ref->key, ref);
	} else if (committed && !ref->is_committed) {
		/* A writer's place was only provisional. */
		g_ptr_array_remove(chain->refs, ref);
		g_ptr_array_add(chain->refs, ref);
	}
	if (committed)
		kvcfs_chain_set_committed_locked(prefix, ref, true);
	return ref;
}

void
kvcfs_chain_remove_locked(KvcfsInode *prefix, KvcfsRef *ref)
{
	KvcfsChain *chain = prefix->chain;
	kvcfs_chain_set_committed_locked(prefix, ref, false);
	g_hash_table_remove(chain->by_key, ref->key);
	g_ptr_array_remove(chain->refs, ref);
	free_ref(ref);
}

void
kvcfs_chain_clear_locked(KvcfsInode *prefix)
{
	g_autoptr(GPtrArray) old = g_steal_pointer(&prefix->chain->refs);
	prefix->chain->refs = g_ptr_array_new();
	for (guint i = 0; i < old->len; i++) {
		KvcfsRef *ref = old->pdata[i];
		kvcfs_chain_set_committed_locked(prefix, ref, false);
		if (ref->n_writers > 0) {
			g_ptr_array_add(prefix->chain->refs, ref);
			continue;
		}
		g_hash_table_remove(prefix->chain->by_key, ref->key);
		free_ref(ref);
	}
}

/* ---- Lines --------------------------------------------------------------------------------- */

/*
 * The next line from *TEXT (transfer full, without its newline), NULL at the end; a NUL in a line
 * ends it early for the caller, which then finds it too short or not a hash.
 */
static char *
next_line(const char **text, size_t *len)
{
	if (*len == 0)
		return NULL;
	const char *end = memchr(*text, '\n', *len);
	size_t n = end ? (size_t)(end - *text) : *len;
	char *line = memchr(*text, '\0', n) ? g_strdup("") : g_strndup(*text, n);
	size_t used = end ? n + 1 : n;
	*text += used;
	*len -= used;
	return line;
}

bool
kvcfs_chain_are_lines(const char *text, size_t len)
{
	char *line;
	while ((line = next_line(&text, &len))) {
		bool is_hash = kvcfs_name_is_hash(line);
		g_free(line);
		if (!is_hash)
			return false;
	}
	return true;
}

int
kvcfs_chain_append_lines_locked(KvcfsInode *prefix, const char *text, size_t len)
{
	char *line;
	while ((line = next_line(&text, &len))) {
		g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(prefix->scope, line);
		g_free(line);
		if (!key)
			return -EINVAL;
		kvcfs_chain_append_locked(prefix, key, true);
	}
	return 0;
}

void
kvcfs_chain_replace_locked(KvcfsInode *prefix, const char *text, size_t len)
{
	KvcfsChain *chain = prefix->chain;
	kvcfs_chain_clear_locked(prefix);
	g_autoptr(GPtrArray) held = g_steal_pointer(&chain->refs);
	chain->refs = g_ptr_array_new();
	kvcfs_chain_append_lines_locked(prefix, text, len);
	for (guint i = 0; i < held->len; i++) {
		KvcfsRef *ref = held->pdata[i];
		if (!ref->is_committed)
			g_ptr_array_add(chain->refs, ref);
	}
}

void
kvcfs_chain_install_locked(KvcfsInode *prefix, const char *text, size_t len)
{
	KvcfsChain *chain = prefix->chain;
	g_autoptr(GPtrArray) added = g_steal_pointer(&chain->refs);
	char *line;
	chain->refs = g_ptr_array_new();
	while ((line = next_line(&text, &len))) {
		g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(prefix->scope, line);
		g_free(line);
		if (!key)
			continue;
		KvcfsRef *ref = g_hash_table_lookup(chain->by_key, key);
		if (ref && g_ptr_array_remove(added, ref))
			g_ptr_array_add(chain->refs, ref);
		kvcfs_chain_append_locked(prefix, key, true);
	}
	for (guint i = 0; i < added->len; i++)
		g_ptr_array_add(chain->refs, added->pdata[i]);
	kvcfs_chain_set_loaded_locked(prefix);
}
