/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_FS_TEST_FS_UTIL_H
#define ADAPTERS_FS_TEST_FS_UTIL_H

/* An adapter on a temporary directory, and each operation as one blocking call. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvcache/io.h>
#include <kvcache/registry.h>

#define MIB ((size_t)1 << 20)

typedef struct Fs {
	char *dir;
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	KvcOptions *options;
} Fs;

char *dir_new(const char *parent);
const char *temp_parent(void);
void remove_tree(const char *path);
void fs_open(Fs *fs, const char *dir, const char *extra);
void fs_close(Fs *fs);
void fs_new(Fs *fs, const char *extra);
void fs_free(Fs *fs);
KvcObjectKey *key_new(const char *model,
		      uint32_t rank,
		      uint32_t group,
		      const char *salt,
		      KvcSpace space,
		      const void *name,
		      size_t len);
KvcObjectKey *chunk(uint32_t number);
KvcObjectKey *chain(const char *name);
KvcObjectKey *plain(const char *directory, const char *name);
KvcObjectKey *numbered_chain(uint32_t number);
KvcMemoryObj object_new(size_t bytes, uint32_t seed);
void await_event(int fd);
int64_t store_many(Fs *fs, KvcObjectKey *const *keys, const KvcMemoryObj *objects, size_t n);
int64_t store(Fs *fs, KvcObjectKey *key, size_t bytes, uint32_t seed);
KvcBitmap *load_many(Fs *fs, KvcObjectKey *const *keys, const KvcMemoryObj *objects, size_t n);
bool load(Fs *fs, KvcObjectKey *key, size_t bytes, uint32_t seed);
bool lookup_and_lock(Fs *fs, KvcObjectKey *key, KvcL2ObjectInfo *info);
bool delete_key(Fs *fs, KvcObjectKey *key);
void assert_describes(Fs *fs, const char *name, const char *value);
char *path_of(Fs *fs, const char *name);
bool exists(Fs *fs, const char *name);
void put_file(Fs *fs, const char *name, const void *data, size_t bytes);
KvcL2Usage usage_of(Fs *fs);
GPtrArray *list_keys(Fs *fs, const KvcKeyScope *scope, size_t page);
size_t count_listed(Fs *fs, const KvcObjectKey *key);
char *xattr_of(Fs *fs, const char *name, const char *xattr);
void run_on_ramfs(void (*check)(Fs *fs));
void log_begin(void);
int log_count(const char *text);
void log_end(void);
void fs_open_unprivileged(Fs *fs, const char *dir);
ssize_t list_unprivileged(Fs *fs, char **cursor, KvcL2ListEntry *entries, size_t max);

#endif
