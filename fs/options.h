/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_OPTIONS_H
#define FS_OPTIONS_H

/*
 * The options of kvcachefs, from the command line, "-o" and --config. One table in options.c feeds
 * parsing, --help, .kvcache/config and the manual.
 */

#include "fs/kvcfs.h"

typedef struct KvcfsOptions {
	char *mountpoint; /* as given; NULL with help or version */
	bool help, version, foreground;
	char *state_dir; /* absolute; NULL: the default one */
	int64_t drain_timeout_ns;
	char *config_file;	  /* NULL: none */
	GPtrArray *mount_options; /* of char *: what libfuse is to be told, one an entry, quoted */
	bool has_allow_other, is_read_only,
		is_fake;     /* is_fake: mount(8) only wants to know if it could be */
	GHashTable *origins; /* name, or name.i of a list -> where it was set */

	uint64_t l1_size_bytes;
	uint64_t l1_overrun_bytes, max_object_size_bytes; /* 0: computed from l1_size_bytes */
	GPtrArray *l2_adapters;				  /* of char *, NULL-terminated by parse */
	char *store_policy, *prefetch_policy, *eviction_policy;
	double eviction_trigger_watermark, eviction_ratio;
	unsigned prefetch_max_in_flight;
	int64_t load_timeout_ns, lookup_wait_ns, coherence_ns;
	char *io_mode;
	unsigned readahead;
	GPtrArray *temp_names; /* of char *, NULL-terminated by parse: patterns */
} KvcfsOptions;

/*
 * Parses and checks everything that can be checked without touching a disk: values, specifications
 * of adapters, names of policies. NULL with ERROR set (one line, quotes the offender).
 */
KvcfsOptions *kvcfs_options_parse(int argc, char **argv, GError **error);
void kvcfs_options_free(KvcfsOptions *options);

/* The text of --help, from the table and the registries (transfer full). */
char *kvcfs_options_get_help(void);
/* Points CONFIG at the values in OPTIONS, which must outlive it. */
void kvcfs_options_fill_engine(const KvcfsOptions *options, KvcStorageManagerConfig *config);
void kvcfs_options_fill_fs(const KvcfsOptions *options, KvcfsConfig *config);

/*
 * The text of .kvcache/config (transfer full): "NAME VALUE ORIGIN" lines of what is in effect.
 * STATE_DIR: the real path of the one in use.
 */
char *kvcfs_options_format(const KvcfsOptions *options, const char *state_dir);

/*
 * Calls FUNC for each path an adapter was given (options whose name ends in "path") until it
 * returns false. SPECIFICATION and NAME are for its error message, before which comes which
 * --l2-adapter it is.
 */
typedef bool (*KvcfsPathFunc)(
	void *user, const char *specification, const char *name, const char *path, GError **error);
bool kvcfs_options_foreach_path(const KvcfsOptions *options,
				KvcfsPathFunc func,
				void *user,
				GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcfsOptions, kvcfs_options_free)

#endif
