/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RANDOM_ENGINE_OPERATIONS_H
#define TESTS_RANDOM_ENGINE_OPERATIONS_H

/* The operations of the random test on single keys, each with what the model says of its result. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/random/engine-model.h"

#define N_WORKERS 4
#define N_OWN 12    /* of each kind and worker */
#define N_SHARED 8  /* of each kind */
#define N_HANDLES 6 /* of a worker, at most */
#define N_HELD 3    /* objects that a worker holds for a while */
#define N_KEYS 6    /* of a prefetch, at most */
#define L1_SIZE (UINT64_C(1200) << 10)
#define PATIENCE_NS (60 * KVC_SEC_NS)

typedef struct Test {
	KvcStorageManager *sm;
	unsigned seed;
	bool loses; /* loads fail, and all stores of an object may: what is known may be forgotten
		     */
	int64_t until_ns;
	KvcKeyScope *shared_scopes[2];
	ModelKey shared[2][N_SHARED];			 /* plain files, chunks */
	int n_wrong, n_flushes, n_handles, n_operations; /* Atomic */
} Test;

typedef struct Handle {
	KvcPrefetchHandle *handle;
	struct Calls *calls;
	unsigned flags;
	size_t n;
	ModelMark marks[N_KEYS];
	bool has_timeout, is_cancelled, is_started, has_result;
	unsigned n_locks, n_taken[N_KEYS];
} Handle;

/* Owned by the callbacks until user_free. */
typedef struct Calls {
	Test *test;
	int n_planned, n_done; /* Atomic */
} Calls;

typedef struct Held {
	KvcL1Object *object;
	uint32_t id;
} Held;

/* Drawn for each step whether needed or not, so that a seed gives the same steps. */
typedef struct Draw {
	unsigned operation, kind, key, other, flags, n, choice;
	bool is_shared;
} Draw;

#define N_TRACED 40

typedef struct Worker {
	Test *test;
	unsigned number;
	unsigned step;
	GRand *rand;
	KvcKeyScope *scopes[2];
	ModelKey own[2][N_OWN];
	uint32_t last_own; /* content */
	Handle handles[N_HANDLES];
	size_t n_handles;
	Held held[N_HELD];
	Draw traced[N_TRACED]; /* of the last steps */
	pthread_t thread;
} Worker;

/* What W did last with its own keys of one kind, a line each. */
static inline void
print_trace(const Worker *w, bool is_chunk)
{
	for (unsigned i = MIN(w->step, N_TRACED); i-- > 0;) {
		const Draw *d = &w->traced[(w->step - i) % N_TRACED];
		if (!d->is_shared && d->kind == is_chunk)
			fprintf(stderr,
				"  %u steps ago: operation %u key %u other %u flags %x choice %x\n",
				i, d->operation, d->key % N_OWN, d->other, d->flags, d->choice);
	}
}

__attribute__((format(printf, 3, 4))) static inline void
wrong(Worker *w, const ModelKey *k, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_autofree char *text = g_strdup_vprintf(format, args);
	va_end(args);
	g_autofree char *name = k ? kvc_object_key_to_string(k->key) : g_strdup("-");

	__atomic_fetch_add(&w->test->n_wrong, 1, __ATOMIC_SEQ_CST);
	fprintf(stderr, "worker %u step %u: %s%s: %s\n", w->number, w->step, name,
		k && k->is_shared ? " (shared)" : "", text);
	if (k && !k->is_shared)
		print_trace(w, k->is_chunk);
}

/* In a test that loses nothing what was committed stays known. */
static inline bool
must_be_known(const Worker *w, const ModelKey *k)
{
	return !w->test->loses && !k->is_shared && model_key_now(k) != 0;
}

/* Is K surely not known? */
static inline bool
is_deleted(const ModelKey *k)
{
	return !k->is_shared && model_key_now(k) == 0;
}

/* ---- Single operations --------------------------------------------------------------------- */

static inline void
check_stat(Worker *w, ModelKey *k)
{
	KvcObjectInfo info;
	int rc = kvc_storage_manager_stat(w->test->sm, k->key, &info);

	if (k->is_shared)
		return;
	if (rc < 0) {
		if (must_be_known(w, k))
			wrong(w, k, "not known, it has content %u", model_key_now(k));
		return;
	}
	if (is_deleted(k)) {
		wrong(w, k, "deleted, but known in tiers %x, %" PRIu64 " bytes", info.tiers,
		      info.bytes);
		return;
	}
	if (info.bytes != content_bytes(model_key_now(k)))
		wrong(w, k, "known with %" PRIu64 " bytes, it has content %u of %zu", info.bytes,
		      model_key_now(k), content_bytes(model_key_now(k)));
	if (!w->test->loses && k->mode && (info.mode & 07777) != k->mode)
		wrong(w, k, "mode %o, it was set to %o", info.mode, k->mode);
}

static inline void
check_object(Worker *w, ModelMark mark, KvcL1Object *object, const char *how)
{
	uint32_t id = content_read(object);

	if (id == 0)
		wrong(w, mark.key, "%s: %" PRIu64 " bytes of no content", how,
		      kvc_l1_object_get_bytes(object));
	else if (!model_allows(mark, id))
		wrong(w, mark.key, "%s: content %u (%u), it has %u (from %zu)", how, id,
		      id - mark.key->base, model_key_now(mark.key), mark.from);
}

/* Releases OBJECT now, or in some steps, when its bytes must be the same. */
static inline void
hold_or_release(Worker *w, KvcL1Object *object, unsigned choice)
{
	Held *held = &w->held[choice % N_HELD];

	if (choice % 4 != 0) {
		kvc_storage_manager_finish_read(w->test->sm, object);
		return;
	}
	if (held->object) {
		if (content_read(held->object) != held->id)
			wrong(w, NULL, "the bytes of a held object changed");
		kvc_storage_manager_finish_read(w->test->sm, held->object);
	}
	*held = (Held){object, content_read(object)};
}

static inline void
read_key(Worker *w, ModelKey *k, unsigned choice)
{
	ModelMark mark = model_mark(k);
	KvcL1Object *object;

	if (kvc_storage_manager_reserve_read(w->test->sm, k->key, &object) < 0)
		return;
	check_object(w, mark, object, "reserve_read");
	hold_or_release(w, object, choice);
}

/* A reservation, of less first and then extended or not, that holds ID; NULL: no room. */
static inline KvcL1Object *
write_content(Worker *w, ModelKey *k, uint32_t id, unsigned choice)
{
	KvcStorageManager *sm = w->test->sm;
	size_t bytes = content_bytes(id);
	KvcL1Object *object;
	int rc = kvc_storage_manager_reserve_write(sm, choice % 2 ? k->key : NULL,
						   choice % 3 ? bytes : bytes / 2, &object);

	if (rc < 0) {
		if (rc != -ENOSPC)
			wrong(w, k, "reserve_write: %s", g_strerror(-rc));
		return NULL;
	}
	if (choice % 3 == 0)
		rc = kvc_storage_manager_extend_write(sm, object, bytes);
	if (rc == 0)
		rc = content_write(id, object);
	if (rc == 0 && choice % 16 != 0)
		return object;
	if (rc < 0 && rc != -ENOSPC)
		wrong(w, k, "write: %s", g_strerror(-rc));
	kvc_storage_manager_abort_write(sm, object);
	return NULL;
}

/* True: ID became what K has. */
static inline bool
commit_content(Worker *w, ModelKey *k, uint32_t id, KvcFinishMode mode, unsigned choice)
{
	KvcL1Object *object = write_content(w, k, id, choice);

	if (!object)
		return false;
	int rc = kvc_storage_manager_finish_write(w->test->sm, object, k->key, mode);
	if (rc == KVC_FINISHED_DROPPED && mode != KVC_FINISH_FIRST_WINS)
		wrong(w, k, "a commit that replaces was dropped");
	else if (rc == KVC_FINISHED_DROPPED && is_deleted(k))
		wrong(w, k, "a commit was dropped, but the key is deleted");
	else if (rc < 0 && rc != -ENOSPC)
		wrong(w, k, "finish_write: %s", g_strerror(-rc));
	else if (rc == 0 && mode == KVC_FINISH_FIRST_WINS && must_be_known(w, k) &&
		 (!k->is_chunk || content_bytes(id) != content_bytes(model_key_now(k))))
		wrong(w, k, "content %u took the place of %u", id, model_key_now(k));
	return rc == 0;
}

static inline void
commit_key(Worker *w, ModelKey *k, const Draw *d)
{
	KvcFinishMode mode = d->flags % 2 ? KVC_FINISH_REPLACE : KVC_FINISH_FIRST_WINS;

	if (k->is_shared)
		pthread_mutex_lock(&k->lock);
	uint32_t id = model_next_content(k, &w->last_own);
	if (id != 0 && commit_content(w, k, id, mode, d->choice)) {
		model_took_effect(k, id);
		k->was_renamed = false;
	} else if (id != 0) {
		model_had_no_effect(k, id);
	}
	if (k->is_shared)
		pthread_mutex_unlock(&k->lock);
	check_stat(w, k);
}

/* Other bytes for a chunk that is there: the first ones win. */
static inline void
commit_other_chunk(Worker *w, ModelKey *k, const Draw *d)
{
	if (!k->is_chunk || !must_be_known(w, k))
		return;
	if (commit_content(w, k, k->base + 1, KVC_FINISH_FIRST_WINS, d->choice))
		wrong(w, k, "other bytes took the place of a chunk");
	check_stat(w, k);
}

static inline void
delete_key(Worker *w, ModelKey *k)
{
	if (k->is_shared)
		pthread_mutex_lock(&k->lock);
	if (k->is_shared && !k->is_chunk && k->begun + 1 < MAX_VERSIONS)
		__atomic_add_fetch(&k->begun, 1, __ATOMIC_SEQ_CST);
	int rc = kvc_storage_manager_delete(w->test->sm, k->key);
	if (rc == 0 && is_deleted(k))
		wrong(w, k, "deleted twice");
	else if (rc < 0 && (rc != -ENOENT || must_be_known(w, k)))
		wrong(w, k, "delete: %s", g_strerror(-rc));
	if (rc == 0)
		model_took_effect(k, 0);
	if (k->is_shared)
		pthread_mutex_unlock(&k->lock);
	check_stat(w, k);
	read_key(w, k, 1);
}

static inline void
rename_key(Worker *w, ModelKey *from, ModelKey *to, unsigned flags)
{
	if (from->is_chunk || from->is_shared || from == to)
		return;
	flags &= KVC_RENAME_NOREPLACE;
	int rc = kvc_storage_manager_rename(w->test->sm, from->key, to->key, flags);
	if (rc == -EEXIST && (!flags || is_deleted(to)))
		wrong(w, to, "rename: %s", g_strerror(-rc));
	else if (rc == -ENOENT && must_be_known(w, from))
		wrong(w, from, "rename: %s", g_strerror(-rc));
	else if (rc < 0 && rc != -EEXIST && rc != -ENOENT)
		wrong(w, from, "rename: %s", g_strerror(-rc));
	else if (rc == 0 && is_deleted(from))
		wrong(w, from, "renamed, but it is deleted");
	else if (rc == 0 && flags && must_be_known(w, to))
		wrong(w, to, "replaced by a rename that must not");
	if (rc == 0) {
		model_key_set(to, model_key_now(from));
		to->mode = from->mode;
		to->was_renamed = true;
		model_key_set(from, 0);
	}
	check_stat(w, from);
	check_stat(w, to);
}

static inline void
evict_key(Worker *w, ModelKey *k)
{
	int rc = kvc_storage_manager_evict(w->test->sm, k->key);

	if (rc < 0 && rc != -ENOENT && rc != -EBUSY)
		wrong(w, k, "evict: %s", g_strerror(-rc));
	check_stat(w, k);
}

typedef struct Flush {
	Test *test;
	int refs;    /* Atomic: the waiter and the callback */
	int is_done; /* Atomic */
	int error;
} Flush;

static inline void
flush_unref(Flush *flush)
{
	if (__atomic_sub_fetch(&flush->refs, 1, __ATOMIC_ACQ_REL) == 0)
		g_free(flush);
}

static inline void
on_flushed(void *user, int error)
{
	Flush *flush = user;

	flush->error = error;
	__atomic_store_n(&flush->is_done, 1, __ATOMIC_RELEASE);
	__atomic_fetch_sub(&flush->test->n_flushes, 1, __ATOMIC_SEQ_CST);
	flush_unref(flush);
}

/* Every other flush is waited for. */
static inline void
flush_key(Worker *w, ModelKey *k, unsigned choice)
{
	Flush *flush = g_new0(Flush, 1);
	int64_t until = kvc_now_ns() + PATIENCE_NS;
	KvcObjectInfo info;

	*flush = (Flush){.test = w->test, .refs = 2};
	__atomic_fetch_add(&w->test->n_flushes, 1, __ATOMIC_SEQ_CST);
	kvc_storage_manager_flush(w->test->sm, k->key, on_flushed, flush);
	while (choice % 2 && !__atomic_load_n(&flush->is_done, __ATOMIC_ACQUIRE) &&
	       kvc_now_ns() < until)
		g_usleep(200);
	if (choice % 2 && !__atomic_load_n(&flush->is_done, __ATOMIC_ACQUIRE)) {
		wrong(w, k, "a flush did not end");
	} else if (choice % 2 && !k->is_shared) {
		int error = flush->error;
		if (must_be_known(w, k) && error != 0)
			wrong(w, k, "flush: %s", g_strerror(-error));
		if (must_be_known(w, k) && error == 0 &&
		    kvc_storage_manager_stat(w->test->sm, k->key, &info) == 0 &&
		    !(info.tiers & ~KVC_TIER_L1))
			wrong(w, k, "flushed, but no L2 has it");
		if (is_deleted(k) && error != -ENOENT)
			wrong(w, k, "flush of a deleted key: %d", error);
	}
	flush_unref(flush);
}

static inline void
change_mode(Worker *w, ModelKey *k, unsigned choice)
{
	KvcObjectAttributes attributes = {.mode = 0600 | choice % 64};
	int rc = kvc_storage_manager_set_attributes(w->test->sm, k->key, &attributes,
						    KVC_ATTRIBUTE_MODE);

	if (rc == 0 && is_deleted(k))
		wrong(w, k, "deleted, but its mode was set");
	else if (rc < 0 && (rc != -ENOENT || must_be_known(w, k)))
		wrong(w, k, "set_attributes: %s", g_strerror(-rc));
	if (rc == 0 && !k->is_shared)
		k->mode = attributes.mode;
	check_stat(w, k);
}

static inline ModelKey *
find_own(Worker *w, unsigned kind, const KvcObjectKey *key)
{
	for (size_t i = 0; i < N_OWN; i++)
		if (kvc_object_key_equal(w->own[kind][i].key, key))
			return &w->own[kind][i];
	return NULL;
}

/* The directory is this worker's only: the list is exact. */
static inline void
list_own(Worker *w, unsigned kind)
{
	KvcListEntry entries[5];
	bool seen[N_OWN] = {false};
	uint64_t after = 0;
	size_t n;

	while ((n = kvc_storage_manager_list(w->test->sm, w->scopes[kind], UINT32_MAX, after,
					     entries, G_N_ELEMENTS(entries))) > 0) {
		for (size_t i = 0; i < n; i++) {
			ModelKey *k = find_own(w, kind, entries[i].key);
			if (!k || is_deleted(k) || seen[k - w->own[kind]])
				wrong(w, k, "listed, but deleted or listed already");
			else if (entries[i].info.bytes != content_bytes(model_key_now(k)))
				wrong(w, k, "listed with %" PRIu64 " bytes", entries[i].info.bytes);
			if (k)
				seen[k - w->own[kind]] = true;
			if (entries[i].info.sequence <= after)
				wrong(w, k, "listed out of order");
			after = entries[i].info.sequence;
			kvc_object_key_unref(entries[i].key);
		}
	}
	for (size_t i = 0; i < N_OWN; i++)
		if (!seen[i] && must_be_known(w, &w->own[kind][i]))
			wrong(w, &w->own[kind][i], "not listed");
}

#endif
