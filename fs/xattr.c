/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Extended attributes: those that a user sets, and user.kvcache.*, which are computed.
 *
 * Computed ones are not listed (as in CephFS), only answered when asked for by name: a list is what
 * cp -a, rsync -X and tar --xattrs copy, and a copy is not to carry what another place computed.
 * tar even makes a file with xattrs by mknod(2) first, which no object here can come from. To set
 * or remove one is nevertheless accepted and does nothing, since copies of the files of the fs
 * adapter bring such names along; only "pinned" does what it says.
 *
 * What no file here has is answered without a look at anything: the kernel asks for
 * security.capability at the first write to an inode, ls and cp for ACLs.
 */

#include "fs/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/xattr.h>

#define PINNED KVC_XATTR_OWN_PREFIX "pinned"

/* What is asked about, as of one moment. */
typedef struct Subject {
	KvcfsInode *inode;
	KvcObjectKey *key;  /* owned; of the object, or of what it will be; or NULL */
	KvcKeyScope *scope; /* owned, or NULL */
	bool is_known;	    /* the engine has it: info is filled */
	const char *state;  /* of a file that the engine does not have */
	KvcObjectInfo info;
	KvcResidency residency;
	bool is_pinned;
} Subject;

/* ---- The computed ones ---------------------------------------------------------------------- */

/* Each appends its value; false: it has none. */

static bool
print_tiers(const Subject *s, GString *out)
{
	if (s->info.tiers & KVC_TIER_L1)
		g_string_append(out, "l1");
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++) {
		const char *type = kvc_storage_manager_adapter_type(s->inode->fs->sm, i);
		if (type && (s->info.tiers & (1u << i)))
			g_string_append_printf(out, "%s%s", out->len ? "," : "", type);
	}
	return s->is_known;
}

static bool
print_state(const Subject *s, GString *out)
{
	const char *state = s->state;
	if (!state)
		state = !s->residency.is_resident      ? "stored"
			: s->residency.is_dirty	       ? "dirty"
			: s->residency.is_unreplicated ? "unreplicated"
			: s->info.tiers & ~KVC_TIER_L1 ? "replicated"
			: s->info.is_removed	       ? "removed"
						       : "resident";
	g_string_append(out, state);
	return true;
}

static bool
print_read_locks(const Subject *s, GString *out)
{
	g_string_append_printf(out, "%u", s->residency.read_locks);
	return true;
}

static bool
print_hits(const Subject *s, GString *out)
{
	g_string_append_printf(out, "%" PRIu32, s->info.hits);
	return true;
}

static bool
print_last_access(const Subject *s, GString *out)
{
	const int64_t sec = 1000000000;
	g_string_append_printf(out, "%" PRIi64 ".%09" PRIi64, s->info.atime_ns / sec,
			       s->info.atime_ns % sec);
	return s->is_known;
}

static bool
print_crc32c(const Subject *s, GString *out)
{
	uint32_t crc;
	if (!s->is_known || kvc_storage_manager_get_crc32c(s->inode->fs->sm, s->key, &crc) < 0)
		return false;
	g_string_append_printf(out, "%08" PRIx32, crc);
	return true;
}

static bool
print_pinned(const Subject *s, GString *out)
{
	g_string_append_c(out, s->is_pinned ? '1' : '0');
	return true;
}

static bool
print_model_name(const Subject *s, GString *out)
{
	if (s->scope)
		g_string_append(out, s->scope->model_name);
	return s->scope != NULL;
}

static bool
print_kv_rank(const Subject *s, GString *out)
{
	if (s->scope)
		g_string_append_printf(out, "%08" PRIx32, s->scope->kv_rank);
	return s->scope && !s->scope->is_plain;
}

static bool
print_group(const Subject *s, GString *out)
{
	if (s->scope)
		g_string_append_printf(out, "%" PRIx32, s->scope->object_group_id);
	return s->scope && !s->scope->is_plain;
}

static bool
print_salt(const Subject *s, GString *out)
{
	if (s->scope)
		g_string_append(out, s->scope->cache_salt);
	return s->scope && !s->scope->is_plain;
}

static bool
print_chunk_hash(const Subject *s, GString *out)
{
	if (!s->key || s->key->space != KVC_SPACE_CHUNK)
		return false;
	g_autofree char *hex = kvc_object_key_hash_hex(s->key);
	g_string_append(out, hex);
	return true;
}

static bool
print_space(const Subject *s, GString *out)
{
	static const char *const names[] = {
		[KVC_SPACE_CHUNK] = "chunk",
		[KVC_SPACE_PLAIN] = "plain",
		[KVC_SPACE_PREFIX] = "prefix",
	};
	if (s->key)
		g_string_append(out, names[s->key->space]);
	return s->key != NULL;
}

static bool print_help(const Subject *s, GString *out);

/* As the manual has them. */
static const struct Computed {
	const char *name; /* after KVC_XATTR_OWN_PREFIX */
	const char *help;
	bool of_directories; /* of ranks and prefixes too */
	bool (*print)(const Subject *s, GString *out);
} computed[] = {
	{"tiers", "where it is: l1 and the types of L2 adapters", false, print_tiers},
	{"state", "what it is at: temporary, writing, dirty, ...", false, print_state},
	{"read_locks", "who holds it in L1", false, print_read_locks},
	{"hits", "opens for reading since it became known", false, print_hits},
	{"last_access", "the time of the last one, in seconds", false, print_last_access},
	{"crc32c", "checksum of what is in L1", false, print_crc32c},
	{"pinned", "1: not evicted from L1; may be set", false, print_pinned},
	{"model_name", "of its key", true, print_model_name},
	{"kv_rank", "of its key, hex", true, print_kv_rank},
	{"object_group_id", "of its key, hex", true, print_group},
	{"cache_salt", "of its key", true, print_salt},
	{"chunk_hash", "of its key, hex", false, print_chunk_hash},
	{"space", "chunk, plain or prefix", true, print_space},
	{"help", "these lines", true, print_help},
};

static bool
print_help(const Subject *s, GString *out)
{
	for (size_t i = 0; i < G_N_ELEMENTS(computed); i++)
		g_string_append_printf(out, KVC_XATTR_OWN_PREFIX "%s  %s\n", computed[i].name,
				       computed[i].help);
	return true;
}

/* What the fs adapter puts on its own files, and a copy of such a file brings along. */
static const char *const foreign_names[] = {"size", "attr", "key"};

static const struct Computed *
find_computed(const char *name)
{
	if (!g_str_has_prefix(name, KVC_XATTR_OWN_PREFIX))
		return NULL;
	for (size_t i = 0; i < G_N_ELEMENTS(computed); i++)
		if (strcmp(name + strlen(KVC_XATTR_OWN_PREFIX), computed[i].name) == 0)
			return &computed[i];
	return NULL;
}

static bool
is_foreign(const char *name)
{
	for (size_t i = 0; i < G_N_ELEMENTS(foreign_names); i++)
		if (strcmp(name + strlen(KVC_XATTR_OWN_PREFIX), foreign_names[i]) == 0)
			return true;
	return false;
}

/* ---- The subject ---------------------------------------------------------------------------- */

static void
look_at_inode_locked(Subject *s, const KvcfsInode *inode)
{
	const KvcfsStaging *st = inode->staging;
	const KvcObjectKey *key = st ? st->target : inode->key;
	KvcKeyScope *scope = key ? key->scope : st ? st->dir->scope : inode->scope;
	s->key = key ? kvc_object_key_ref(key) : NULL;
	s->scope = scope ? kvc_key_scope_ref(scope) : NULL;
	s->is_pinned = inode->is_pinned;
	if (inode->is_unlinked)
		s->state = "unlinked";
	else if (st)
		s->state = st->target ? "writing" : "temporary";
}

static void
subject_init(Subject *s, KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	*s = (Subject){.inode = inode};
	pthread_mutex_lock(&fs->names);
	look_at_inode_locked(s, inode);
	pthread_mutex_unlock(&fs->names);
	if (s->state || inode->kind != KVCFS_OBJECT || !s->key)
		return;
	s->is_known = kvc_storage_manager_stat(fs->sm, s->key, &s->info) == 0;
	kvc_storage_manager_get_residency(fs->sm, s->key, &s->residency);
	s->is_pinned = s->residency.is_pinned;
	if (!s->is_known)
		s->state = "lost";
}

static void
subject_deinit(Subject *s)
{
	if (s->key)
		kvc_object_key_unref(s->key);
	if (s->scope)
		kvc_key_scope_unref(s->scope);
}

static bool
applies(const struct Computed *c, const KvcfsInode *inode)
{
	bool is_directory = inode->kind == KVCFS_RANK || inode->kind == KVCFS_PREFIX;
	return inode->kind == KVCFS_OBJECT || (is_directory && c->of_directories);
}

/* The value of C (transfer full), or NULL. */
static GString *
compute(const struct Computed *c, const Subject *s)
{
	GString *value = g_string_new(NULL);
	if (applies(c, s->inode) && c->print(s, value))
		return value;
	g_string_free(value, TRUE);
	return NULL;
}

/* ---- Those of users ------------------------------------------------------------------------- */

static KvcXattrs *
get_xattrs(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	g_autoptr(KvcObjectKey) key = kvcfs_attr_engine_key(inode);
	if (key && inode->kind == KVCFS_OBJECT && kvc_storage_manager_stat(fs->sm, key, NULL) == 0)
		return kvc_storage_manager_get_xattrs(fs->sm, key);
	pthread_mutex_lock(&fs->names);
	KvcXattrs *xattrs = kvc_xattrs_ref(inode->xattrs);
	pthread_mutex_unlock(&fs->names);
	return xattrs;
}

static int
change_in_inode_locked(
	KvcfsInode *inode, const char *name, const void *value, size_t bytes, int flags)
{
	KvcXattrs *changed = NULL;
	int rc = kvc_xattrs_change(inode->xattrs, name, value, bytes, flags, &changed);
	if (rc == 0) {
		kvc_xattrs_unref(inode->xattrs);
		inode->xattrs = changed;
		inode->ctime_ns = kvcfs_wall_ns();
	}
	return rc;
}

/* In the copies that will replace the object KEY, as attr.c does. */
static void
change_in_overwriters(
	Kvcfs *fs, const KvcObjectKey *key, const char *name, const void *value, size_t bytes)
{
	pthread_mutex_lock(&fs->names);
	const GPtrArray *writers = kvcfs_staging_writers_locked(fs, key);
	for (guint i = 0; writers && i < writers->len; i++) {
		KvcfsInode *inode = writers->pdata[i];
		if (inode->staging->is_overwrite)
			change_in_inode_locked(inode, name, value, bytes, 0);
	}
	pthread_mutex_unlock(&fs->names);
}

static int
change_in_engine(
	Kvcfs *fs, KvcObjectKey *key, const char *name, const void *value, size_t bytes, int flags)
{
	if (value)
		return kvc_storage_manager_set_xattr(fs->sm, key, name, value, bytes, flags);
	return kvc_storage_manager_remove_xattr(fs->sm, key, name);
}

/* VALUE NULL: removes. */
static int
change(KvcfsInode *inode, const char *name, const void *value, size_t bytes, int flags)
{
	Kvcfs *fs = inode->fs;
	g_autoptr(KvcObjectKey) key = kvcfs_attr_engine_key(inode);
	int rc = -ENOENT;
	if (inode->kind == KVCFS_CONTROL || inode->kind == KVCFS_CONTROL_ROOT)
		return -EOPNOTSUPP;
	if (key && inode->kind == KVCFS_OBJECT)
		rc = change_in_engine(fs, key, name, value, bytes, flags);
	if (rc == 0)
		change_in_overwriters(fs, key, name, value, bytes);
	if (rc != -ENOENT)
		return rc;
	pthread_mutex_lock(&fs->names);
	rc = change_in_inode_locked(inode, name, value, bytes, flags);
	pthread_mutex_unlock(&fs->names);
	/* The chain has a copy. */
	if (rc == 0 && key && inode->kind == KVCFS_PREFIX)
		change_in_engine(fs, key, name, value, bytes, 0);
	return rc;
}

static int
set_pinned(KvcfsInode *inode, bool pinned)
{
	Kvcfs *fs = inode->fs;
	if (inode->kind != KVCFS_OBJECT)
		return pinned ? -EOPNOTSUPP : 0;
	pthread_mutex_lock(&fs->names);
	inode->is_pinned = pinned; /* of a file on its way: at its commit */
	pthread_mutex_unlock(&fs->names);
	g_autoptr(KvcObjectKey) key = kvcfs_attr_engine_key(inode);
	return key ? kvc_storage_manager_set_pinned(fs->sm, key, pinned) : 0;
}

static int
set_own(KvcfsInode *inode, const char *name, const char *value, size_t bytes, int flags)
{
	if (!find_computed(name))
		return is_foreign(name) ? 0 : -EOPNOTSUPP;
	if (flags & XATTR_CREATE)
		return -EEXIST;
	if (strcmp(name, PINNED) != 0)
		return 0;
	if (bytes != 1 || (*value != '0' && *value != '1'))
		return -EINVAL;
	return set_pinned(inode, *value == '1');
}

static int
remove_own(KvcfsInode *inode, const char *name)
{
	if (strcmp(name, PINNED) == 0)
		return set_pinned(inode, false);
	return find_computed(name) ? 0 : -ENODATA;
}

/* ---- The requests --------------------------------------------------------------------------- */

static void
reply_value(fuse_req_t req, const void *value, size_t bytes, size_t size)
{
	if (size == 0)
		fuse_reply_xattr(req, bytes);
	else if (bytes > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, bytes);
}

static void
get_own(fuse_req_t req, KvcfsInode *inode, const struct Computed *c, size_t size)
{
	Subject subject;
	subject_init(&subject, inode);
	GString *value = compute(c, &subject);
	subject_deinit(&subject);
	if (!value) {
		fuse_reply_err(req, ENODATA);
		return;
	}
	reply_value(req, value->str, value->len, size);
	g_string_free(value, TRUE);
}

void
kvcfs_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	if (!g_str_has_prefix(name, KVC_XATTR_USER_PREFIX)) {
		bool is_capability = strcmp(name, "security.capability") == 0;
		fuse_reply_err(req, is_capability ? ENODATA : EOPNOTSUPP);
		return;
	}
	const struct Computed *c = find_computed(name);
	if (c) {
		get_own(req, inode, c, size);
		return;
	}
	g_autoptr(KvcXattrs) xattrs = get_xattrs(inode);
	size_t bytes;
	const void *value = kvc_xattrs_get(xattrs, name, &bytes);
	if (value)
		reply_value(req, value, bytes, size);
	else
		fuse_reply_err(req, ENODATA);
}

void
kvcfs_op_setxattr(
	fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	int rc = -EOPNOTSUPP;
	if (g_str_has_prefix(name, KVC_XATTR_OWN_PREFIX))
		rc = set_own(inode, name, value, size, flags);
	else if (kvc_xattr_name_is_user(name))
		rc = change(inode, name, value ? value : "", size, flags);
	fuse_reply_err(req, -rc);
}

void
kvcfs_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	int rc = -EOPNOTSUPP;
	if (g_str_has_prefix(name, KVC_XATTR_OWN_PREFIX))
		rc = remove_own(inode, name);
	else if (kvc_xattr_name_is_user(name))
		rc = change(inode, name, NULL, 0, 0);
	fuse_reply_err(req, -rc);
}

void
kvcfs_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	g_autoptr(KvcXattrs) xattrs = get_xattrs(kvcfs_inode_of(kvcfs_of(req), ino));
	GString *names = g_string_new(NULL);
	size_t cursor = 0;
	const char *name;
	while (kvc_xattrs_next(xattrs, &cursor, &name, NULL, NULL))
		g_string_append_len(names, name, (gssize)strlen(name) + 1);
	reply_value(req, names->str, names->len, size);
	g_string_free(names, TRUE);
}
