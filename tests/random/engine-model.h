/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RANDOM_ENGINE_MODEL_H
#define TESTS_RANDOM_ENGINE_MODEL_H

/*
 * What a random test of the engine knows: contents that name themselves, and for each key which of
 * them it may have.
 *
 * A content is a number (never 0) that all its bytes and its size follow from, so any byte that is
 * not of the right content is seen. The bytes of a chunk are the same in every version, those of a
 * plain file differ in each.
 *
 * A key of one thread only: LOG has every content that it ever had, 0 where it was deleted, and the
 * last one is what it has. A key of all threads: whoever changes it holds LOCK; version BEGUN is
 * the last one tried, ENDED the last one that took effect before now, a deletion included: nothing
 * older may be read by who begins after that.
 */

#include "engine/lock.h"
#include "kvcache/storage-manager.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_OBJECT_BYTES 24000
#define MAX_VERSIONS (1u << 20)

/* ---- Contents ------------------------------------------------------------------------------ */

static inline uint64_t
mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static inline size_t
content_bytes(uint32_t id)
{
	return sizeof(id) + mix(id) % MAX_OBJECT_BYTES;
}

static inline void
content_fill(uint32_t id, uint8_t data[MAX_OBJECT_BYTES + 16])
{
	for (size_t at = 0; at < content_bytes(id); at += sizeof(uint64_t)) {
		uint64_t word = mix((uint64_t)id << 32 | at);
		memcpy(data + at, &word, sizeof(word));
	}
	memcpy(data, &id, sizeof(id));
}

static inline int
content_write(uint32_t id, KvcL1Object *object)
{
	uint8_t data[MAX_OBJECT_BYTES + 16];
	size_t bytes = content_bytes(id);

	content_fill(id, data);
	return pwrite(kvc_l1_object_get_fd(object), data, bytes, 0) == (ssize_t)bytes ? 0 : -errno;
}

/* The content of OBJECT, 0 if its bytes are of none. */
static inline uint32_t
content_read(KvcL1Object *object)
{
	uint8_t data[MAX_OBJECT_BYTES + 16], expected[MAX_OBJECT_BYTES + 16];
	uint32_t id = 0;
	ssize_t n = pread(kvc_l1_object_get_fd(object), data, sizeof(data), 0);

	if (n < (ssize_t)sizeof(id))
		return 0;
	memcpy(&id, data, sizeof(id));
	if ((size_t)n != content_bytes(id) || kvc_l1_object_get_bytes(object) != (uint64_t)n)
		return 0;
	content_fill(id, expected);
	return memcmp(data, expected, (size_t)n) == 0 ? id : 0;
}

/* ---- Keys ---------------------------------------------------------------------------------- */

typedef struct ModelKey {
	/* Immutable. */
	KvcObjectKey *key;
	bool is_chunk, is_shared;
	uint32_t base; /* of its contents */

	/* Of a key of one thread. */
	GArray *log; /* of uint32_t */
	uint32_t mode;
	bool was_renamed; /* since the last commit: L2 may have it under a former name */

	/* Of a key of all threads. */
	pthread_mutex_t lock;  /* whoever changes the key */
	uint32_t begun, ended; /* Atomic */
	uint8_t *is_void;      /* Atomic each: this version never became visible */
} ModelKey;

/* What a read may find that began when this was taken. */
typedef struct ModelMark {
	ModelKey *key;
	size_t from; /* place in the log, or version */
} ModelMark;

static inline void
model_key_init(ModelKey *k, KvcKeyScope *scope, uint32_t base, unsigned number, bool is_shared)
{
	char name[9];

	g_snprintf(name, sizeof(name), "%08x", number);
	k->is_chunk = !scope->is_plain;
	k->is_shared = is_shared;
	k->key = kvc_object_key_new(scope, k->is_chunk ? KVC_SPACE_CHUNK : KVC_SPACE_PLAIN, name, 8,
				    NULL);
	k->base = base;
	k->log = g_array_new(FALSE, TRUE, sizeof(uint32_t));
	g_array_set_size(k->log, 1);
	pthread_mutex_init(&k->lock, NULL);
	if (is_shared && !k->is_chunk)
		k->is_void = g_new0(uint8_t, MAX_VERSIONS);
}

static inline void
model_key_deinit(ModelKey *k)
{
	kvc_object_key_unref(k->key);
	g_array_unref(k->log);
	pthread_mutex_destroy(&k->lock);
	g_free(k->is_void);
}

/* What a key of one thread has now; 0: nothing. */
static inline uint32_t
model_key_now(const ModelKey *k)
{
	return g_array_index(k->log, uint32_t, k->log->len - 1);
}

static inline void
model_key_set(ModelKey *k, uint32_t id)
{
	if (id != model_key_now(k))
		g_array_append_val(k->log, id);
	if (id == 0)
		k->mode = 0;
}

static inline ModelMark
model_mark(ModelKey *k)
{
	size_t from = k->is_shared ? __atomic_load_n(&k->ended, __ATOMIC_SEQ_CST) : k->log->len - 1;

	return (ModelMark){k, from};
}

/* May a read of the key find the content ID, if it began at MARK and has just ended? */
static inline bool
model_allows(ModelMark mark, uint32_t id)
{
	const ModelKey *k = mark.key;

	if (k->is_chunk && k->is_shared)
		return id == k->base;
	if (k->is_shared) {
		uint32_t version = id - k->base;
		return version < MAX_VERSIONS && version >= MAX(mark.from, 1) &&
		       version <= __atomic_load_n(&k->begun, __ATOMIC_SEQ_CST) &&
		       !__atomic_load_n(&k->is_void[version], __ATOMIC_SEQ_CST);
	}
	for (size_t i = mark.from; id != 0 && i < k->log->len; i++)
		if (g_array_index(k->log, uint32_t, i) == id)
			return true;
	return false;
}

/* What the next commit of KEY writes; of a shared one its lock is held. 0: there were too many. */
static inline uint32_t
model_next_content(ModelKey *k, uint32_t *last_own)
{
	if (k->is_chunk)
		return k->base;
	if (!k->is_shared)
		return ++*last_own;
	if (k->begun + 1 >= MAX_VERSIONS)
		return 0;
	return k->base + __atomic_add_fetch(&k->begun, 1, __ATOMIC_SEQ_CST);
}

/* A commit of ID, or a deletion (0), took effect; of a shared key its lock is held. */
static inline void
model_took_effect(ModelKey *k, uint32_t id)
{
	if (!k->is_shared)
		model_key_set(k, id);
	else if (!k->is_chunk)
		__atomic_store_n(&k->ended, id ? id - k->base : k->begun, __ATOMIC_SEQ_CST);
}

/* The commit of ID ended without becoming visible. */
static inline void
model_had_no_effect(ModelKey *k, uint32_t id)
{
	if (k->is_shared && !k->is_chunk)
		__atomic_store_n(&k->is_void[id - k->base], 1, __ATOMIC_SEQ_CST);
}

#endif
