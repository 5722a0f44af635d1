/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_RAW_BLOCK_TEST_RAW_BLOCK_UTIL_H
#define ADAPTERS_RAW_BLOCK_TEST_RAW_BLOCK_UTIL_H

/* A store in a file of a temporary directory, and each operation as one blocking call. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/io.h>
#include <kvcache/registry.h>

#include "raw_block-format.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

typedef struct Store {
	char *path;
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	KvcOptions *options;
} Store;

/* A directory in memory if there is one, else TMPDIR or /var/tmp (transfer full, of dir_remove). */
char *dir_new(void);
/* The same on a disk. */
char *disk_dir_new(void);
void dir_remove(char *dir);

/* Opens PATH with EXTRA (",name=value", ...) behind the path. */
void store_open(Store *store, const char *path, const char *extra);
/* Why that is refused (transfer full). */
char *refusal(const char *path, const char *extra);
void store_close(Store *store);

/* What the adapter logs is not shown. */
void log_silence(void);
/* A seed for random numbers: KVC_TEST_SEED, or another one each time. Printed. */
uint64_t test_seed(void);
/* The next number of STATE. */
uint64_t random_next(uint64_t *state);
/* Below N. */
uint32_t random_below(uint64_t *state, uint32_t n);

/* Keys number NUMBER of each space (transfer full). */
KvcObjectKey *chunk(uint32_t number);
KvcObjectKey *plain(uint32_t number);
KvcObjectKey *prefix(uint32_t number);

/* As the engine gives it: page aligned, zero behind the bytes, which depend on SEED. */
KvcMemoryObj memory_new(size_t bytes, uint64_t seed);
void memory_free(KvcMemoryObj *memory);

void await_event(int fd);
int64_t put_object(Store *store, KvcObjectKey *key, const KvcMemoryObj *memory);
/* The same for an object of BYTES of SEED. */
int64_t put(Store *store, KvcObjectKey *key, size_t bytes, uint64_t seed);
/* 1: loaded, and these are the bytes of SEED; 0: a miss; -1: other bytes. */
int get(Store *store, KvcObjectKey *key, size_t bytes, uint64_t seed);
/* Is it there? INFO (may be NULL) has a reference to its extended attributes. Leaves no lock. */
bool find(Store *store, KvcObjectKey *key, KvcL2ObjectInfo *info);
bool delete_key(Store *store, KvcObjectKey *key);
/* The keys of a whole listing. */
GPtrArray *list_keys(Store *store);
/* The line NAME of describe (transfer full). */
char *line_of(Store *store, const char *name);
KvcL2Usage usage_of(Store *store);

/* The bytes of a file (transfer full), and back. */
uint8_t *file_read(const char *path, size_t *bytes);
void file_write(const char *path, const void *data, size_t bytes);
/* Writes BYTES at OFFSET of a file. */
void file_patch(const char *path, uint64_t offset, const void *data, size_t bytes);
/* The superblock A of the store in a file. */
RawBlockSuper super_of(const char *path);

#endif
