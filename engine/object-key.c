/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Scopes are interned in one table that holds no reference of its own. A count goes from 1 to 0
 * only under the table's lock, and lookups add theirs under it too, so a lookup never finds a scope
 * that is on its way out. Every other change of a count is a plain atomic.
 *
 * Hashes are seeded once per process: whoever chooses names cannot choose collisions.
 */

#include "config.h"

#include "kvcache/object-key.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "engine/lock.h"
#include "kvcache/key-codec.h"

typedef struct Scope {
	/* Immutable. */
	KvcKeyScope fields; /* first: what everybody else sees */
	uint64_t hash;
	/* Atomic; reaches 0 under scopes.lock only. */
	int refs;
	char strings[]; /* model_name, NUL, cache_salt, NUL */
} Scope;

/* A key may be released under any lock, a leaf included: hence a rank after all of them. */
static struct {
	KvcMutex lock;
	GHashTable *table; /* Protected by lock. Scope -> itself, not owned */
} scopes = {.lock = {PTHREAD_MUTEX_INITIALIZER, KVC_LOCK_KEY_SCOPES}};

G_DEFINE_QUARK(kvc - key - error - quark, kvc_key_error)

/* ---- Hashing ------------------------------------------------------------------------------- */

static uint64_t process_seed;

static void
init_process_seed(void)
{
	struct timespec now;

	if (getrandom(&process_seed, sizeof(process_seed), 0) == sizeof(process_seed))
		return;
	/* Only a kernel without the call gets here: guessable, but not the same every time. */
	clock_gettime(CLOCK_REALTIME, &now);
	process_seed = (uint64_t)now.tv_nsec * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)now.tv_sec;
}

static uint64_t
get_process_seed(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_process_seed);
	return process_seed;
}

#ifdef HAVE_XXHASH

#include <xxhash.h>

static uint64_t
hash_bytes(const void *data, size_t len, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, len, seed);
}

#else

static inline uint64_t
rotate_left(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

static inline void
sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotate_left(v[1], 13) ^ v[0];
	v[0] = rotate_left(v[0], 32);
	v[2] += v[3];
	v[3] = rotate_left(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate_left(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate_left(v[1], 17) ^ v[2];
	v[2] = rotate_left(v[2], 32);
}

/* SipHash-1-3 (Aumasson, Bernstein) keyed with the process's seed and SEED. */
static uint64_t
hash_bytes(const void *data, size_t len, uint64_t seed)
{
	uint64_t k0 = get_process_seed(), word;
	uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), seed ^ UINT64_C(0x646f72616e646f6d),
			 k0 ^ UINT64_C(0x6c7967656e657261), seed ^ UINT64_C(0x7465646279746573)};
	const uint8_t *p = data;
	size_t left = len;

	for (; left >= sizeof(word); left -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	/* The last word carries the length, so that a tail of zeros counts. */
	word = 0;
	memcpy(&word, p, left);
	word ^= (uint64_t)len << 56;
	v[3] ^= word;
	sip_round(v);
	v[0] ^= word;
	v[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif

/* Each field is hashed with its length and seeds the next one: no two splits of a text collide. */
static uint64_t
hash_scope(const KvcKeyScope *scope)
{
	const uint32_t numbers[3] = {scope->kv_rank, scope->object_group_id, scope->is_plain};
	uint64_t hash = get_process_seed();

	hash = hash_bytes(scope->model_name, strlen(scope->model_name), hash);
	hash = hash_bytes(scope->cache_salt, strlen(scope->cache_salt), hash);
	return hash_bytes(numbers, sizeof(numbers), hash);
}

static uint64_t
hash_key(const KvcObjectKey *key)
{
	const Scope *scope = (const Scope *)key->scope;
	uint64_t seed = scope->hash ^ key->space * UINT64_C(0x9e3779b97f4a7c15);

	return hash_bytes(key->chunk_hash, key->chunk_hash_len, seed);
}

/* ---- Scopes -------------------------------------------------------------------------------- */

static unsigned
scope_table_hash(const void *p)
{
	const Scope *scope = p;

	return (unsigned)scope->hash;
}

static gboolean
scope_table_equal(const void *pa, const void *pb)
{
	const Scope *a = pa, *b = pb;

	return a->hash == b->hash && a->fields.kv_rank == b->fields.kv_rank &&
	       a->fields.object_group_id == b->fields.object_group_id &&
	       a->fields.is_plain == b->fields.is_plain &&
	       !strcmp(a->fields.model_name, b->fields.model_name) &&
	       !strcmp(a->fields.cache_salt, b->fields.cache_salt);
}

/* TEXT fit for one line of a message: control characters and invalid UTF-8 escaped. */
static char *
printable(const char *text)
{
	static const char all_but_ascii[] =
		"\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f"
		"\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
		"\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf"
		"\xb0\xb1\xb2\xb3\xb4\xb5\xb6\xb7\xb8\xb9\xba\xbb\xbc\xbd\xbe\xbf"
		"\xc0\xc1\xc2\xc3\xc4\xc5\xc6\xc7\xc8\xc9\xca\xcb\xcc\xcd\xce\xcf"
		"\xd0\xd1\xd2\xd3\xd4\xd5\xd6\xd7\xd8\xd9\xda\xdb\xdc\xdd\xde\xdf"
		"\xe0\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xeb\xec\xed\xee\xef"
		"\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff";

	return g_strescape(text, g_utf8_validate(text, -1, NULL) ? all_but_ascii : NULL);
}

/* Sets ERROR to "WHAT "TEXT" PROBLEM" and returns false, so that a failing check is one statement.
 */
static bool
fail_text(const char *what, const char *text, const char *problem, GError **error)
{
	g_autofree char *shown = printable(text);

	g_set_error(error, KVC_KEY_ERROR, EINVAL, "%s \"%s\" %s", what, shown, problem);
	return false;
}

static bool
check_model_name(const char *model_name, GError **error)
{
	if (!*model_name)
		return fail_text("model name", model_name, "is empty", error);
	if (!g_utf8_validate(model_name, -1, NULL))
		return fail_text("model name", model_name, "is not UTF-8", error);
	if (strchr(model_name, '@'))
		return fail_text("model name", model_name, "contains '@'", error);
	return true;
}

static bool
check_cache_salt(const char *cache_salt, GError **error)
{
	long chars;

	if (!g_utf8_validate(cache_salt, -1, NULL))
		return fail_text("cache salt", cache_salt, "is not UTF-8", error);
	if (strpbrk(cache_salt, "@/\\"))
		return fail_text("cache salt", cache_salt, "contains one of '@', '/' and '\\'",
				 error);
	chars = g_utf8_strlen(cache_salt, -1);
	if (chars > KVC_SALT_MAX_CHARS) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL,
			    "cache salt \"%s\" has %ld characters, at most %d are allowed",
			    cache_salt, chars, KVC_SALT_MAX_CHARS);
		return false;
	}
	return true;
}

static Scope *
scope_copy(const Scope *probe)
{
	size_t model_size = strlen(probe->fields.model_name) + 1;
	size_t salt_size = strlen(probe->fields.cache_salt) + 1;
	Scope *scope = g_malloc(sizeof(*scope) + model_size + salt_size);

	*scope = *probe;
	scope->refs = 1;
	memcpy(scope->strings, probe->fields.model_name, model_size);
	memcpy(scope->strings + model_size, probe->fields.cache_salt, salt_size);
	scope->fields.model_name = scope->strings;
	scope->fields.cache_salt = scope->strings + model_size;
	return scope;
}

/* The scope equal to PROBE with one more reference, made if there is none. */
static Scope *
intern_scope(const Scope *probe)
{
	Scope *scope;

	kvc_mutex_lock(&scopes.lock);
	if (!scopes.table)
		scopes.table = g_hash_table_new(scope_table_hash, scope_table_equal);
	scope = g_hash_table_lookup(scopes.table, probe);
	if (scope) {
		__atomic_fetch_add(&scope->refs, 1, __ATOMIC_RELAXED);
	} else {
		scope = scope_copy(probe);
		g_hash_table_add(scopes.table, scope);
	}
	kvc_mutex_unlock(&scopes.lock);
	return scope;
}

KvcKeyScope *
kvc_key_scope_new(const char *model_name,
		  uint32_t kv_rank,
		  uint32_t object_group_id,
		  const char *cache_salt,
		  GError **error)
{
	Scope probe = {.fields = {.model_name = model_name,
				  .cache_salt = cache_salt ? cache_salt : "",
				  .kv_rank = kv_rank,
				  .object_group_id = object_group_id}};

	if (!check_model_name(probe.fields.model_name, error) ||
	    !check_cache_salt(probe.fields.cache_salt, error))
		return NULL;
	probe.hash = hash_scope(&probe.fields);
	return &intern_scope(&probe)->fields;
}

static bool
check_directory(const char *directory, GError **error)
{
	g_auto(GStrv) components = g_strsplit(directory, "/", -1);

	for (char **p = components; *p; p++)
		if (!**p || !strcmp(*p, ".") || !strcmp(*p, ".."))
			return fail_text("directory", directory, "is not a plain relative path",
					 error);
	return true;
}

KvcKeyScope *
kvc_key_scope_new_plain(const char *directory, GError **error)
{
	Scope probe = {
		.fields = {.model_name = directory, .cache_salt = "", .is_plain = true},
	};

	if (!check_directory(directory, error))
		return NULL;
	probe.hash = hash_scope(&probe.fields);
	return &intern_scope(&probe)->fields;
}

KvcKeyScope *
kvc_key_scope_ref(KvcKeyScope *scope)
{
	__atomic_fetch_add(&((Scope *)scope)->refs, 1, __ATOMIC_RELAXED);
	return scope;
}

void
kvc_key_scope_unref(KvcKeyScope *fields)
{
	Scope *scope = (Scope *)fields;
	int refs;
	bool is_last;

	if (!scope)
		return;
	refs = __atomic_load_n(&scope->refs, __ATOMIC_RELAXED);
	while (refs > 1)
		if (__atomic_compare_exchange_n(&scope->refs, &refs, refs - 1, true,
						__ATOMIC_RELEASE, __ATOMIC_RELAXED))
			return;

	kvc_mutex_lock(&scopes.lock);
	is_last = __atomic_sub_fetch(&scope->refs, 1, __ATOMIC_ACQ_REL) == 0;
	if (is_last)
		g_hash_table_remove(scopes.table, scope);
	kvc_mutex_unlock(&scopes.lock);
	if (is_last)
		g_free(scope);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

static bool
check_chunk_hash_len(size_t len, GError **error)
{
	if (len >= KVC_CHUNK_HASH_MIN_BYTES && len <= KVC_CHUNK_HASH_MAX_BYTES)
		return true;
	g_set_error(error, KVC_KEY_ERROR, EINVAL, "a chunk hash of %zu bytes: %d to %d are allowed",
		    len, KVC_CHUNK_HASH_MIN_BYTES, KVC_CHUNK_HASH_MAX_BYTES);
	return false;
}

static bool
check_name(const char *name, size_t len, GError **error)
{
	g_autofree char *text = g_strndup(len ? name : "", MIN(len, KVC_NAME_MAX_BYTES));

	if (len > KVC_NAME_MAX_BYTES) {
		g_set_error(error, KVC_KEY_ERROR, ENAMETOOLONG,
			    "a name of %zu bytes: at most %d are allowed", len, KVC_NAME_MAX_BYTES);
		return false;
	}
	if (len == 0)
		return fail_text("name", text, "is empty", error);
	if (memchr(name, '/', len) || memchr(name, '\0', len))
		return fail_text("name", text, "contains '/' or NUL", error);
	if (!strcmp(text, ".") || !strcmp(text, ".."))
		return fail_text("name", text, "is not a file's", error);
	return true;
}

static bool
check_space(const KvcKeyScope *scope, KvcSpace space, GError **error)
{
	if (scope->is_plain == (space == KVC_SPACE_PLAIN))
		return true;
	g_set_error(error, KVC_KEY_ERROR, EINVAL, "there are no keys of space %d in %s scope",
		    (int)space, scope->is_plain ? "a plain" : "an ordinary");
	return false;
}

static bool
check_chunk_hash(KvcSpace space, const void *chunk_hash, size_t len, GError **error)
{
	switch (space) {
	case KVC_SPACE_CHUNK:
		return check_chunk_hash_len(len, error);
	case KVC_SPACE_PLAIN:
	case KVC_SPACE_PREFIX:
		return check_name(chunk_hash, len, error);
	}
	g_set_error(error, KVC_KEY_ERROR, EINVAL, "there is no key space %d", (int)space);
	return false;
}

KvcObjectKey *
kvc_object_key_new(
	KvcKeyScope *scope, KvcSpace space, const void *chunk_hash, size_t len, GError **error)
{
	KvcObjectKey *key;

	if (!check_chunk_hash(space, chunk_hash, len, error) || !check_space(scope, space, error))
		return NULL;
	/* Not sizeof: its padding would cost a byte per key. */
	key = g_malloc(offsetof(KvcObjectKey, chunk_hash) + len);
	key->scope = kvc_key_scope_ref(scope);
	key->refs = 1;
	key->chunk_hash_len = (uint16_t)len;
	key->space = (uint8_t)space;
	memcpy(key->chunk_hash, chunk_hash, len);
	key->hash = hash_key(key);
	return key;
}

KvcObjectKey *
kvc_object_key_ref(const KvcObjectKey *key)
{
	KvcObjectKey *mutable_key = (KvcObjectKey *)key;

	__atomic_fetch_add(&mutable_key->refs, 1, __ATOMIC_RELAXED);
	return mutable_key;
}

void
kvc_object_key_unref(KvcObjectKey *key)
{
	if (!key || __atomic_sub_fetch(&key->refs, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	kvc_key_scope_unref(key->scope);
	g_free(key);
}

unsigned
kvc_object_key_hash(const void *key)
{
	uint64_t hash = ((const KvcObjectKey *)key)->hash;

	return (unsigned)(hash ^ hash >> 32);
}

gboolean
kvc_object_key_equal(const void *pa, const void *pb)
{
	const KvcObjectKey *a = pa, *b = pb;

	if (a == b)
		return TRUE;
	/* Scopes are interned: equal ones are the same. */
	return a->hash == b->hash && a->scope == b->scope && a->space == b->space &&
	       a->chunk_hash_len == b->chunk_hash_len &&
	       !memcmp(a->chunk_hash, b->chunk_hash, a->chunk_hash_len);
}

static char *
object_name(const KvcObjectKey *key)
{
	g_autofree char *name = NULL;

	if (key->space == KVC_SPACE_CHUNK)
		return kvc_object_key_hash_hex(key);
	name = g_strndup((const char *)key->chunk_hash, key->chunk_hash_len);
	return printable(name);
}

char *
kvc_object_key_to_string(const KvcObjectKey *key)
{
	const KvcKeyScope *scope = key->scope;
	g_autofree char *model = printable(scope->model_name);
	g_autofree char *salt = printable(scope->cache_salt);
	g_autofree char *name = object_name(key);

	if (scope->is_plain)
		return g_strdup_printf("%s%s%s", model, *model ? "/" : "", name);
	return g_strdup_printf(
		"%s%s@%08x@%x%s%s/%s", key->space == KVC_SPACE_PREFIX ? "prefix:" : "", model,
		scope->kv_rank, scope->object_group_id, *salt ? "@" : "", salt, name);
}

char *
kvc_object_key_hash_hex(const KvcObjectKey *key)
{
	return kvc_hex_encode(key->chunk_hash, key->chunk_hash_len);
}
