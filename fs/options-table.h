/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_OPTIONS_TABLE_H
#define FS_OPTIONS_TABLE_H

/*
 * The table of options, for the files options*.c: it feeds the command line, "-o NAME=VALUE",
 * --config, --help and .kvcache/config.
 */

#include "fs/options.h"

#include "kvcache/adapter.h"

#include <stddef.h>

typedef enum {
	ARG_FLAG,	  /* bool */
	ARG_STRING,	  /* char * */
	ARG_LIST,	  /* GPtrArray *, repeatable */
	ARG_SIZE,	  /* uint64_t */
	ARG_DOUBLE,	  /* double */
	ARG_UINT,	  /* unsigned */
	ARG_SECONDS,	  /* int64_t, in ns */
	ARG_MILLISECONDS, /* int64_t, in ns */
} ArgType;

typedef struct OptionDef {
	const char *name;
	char short_name;
	ArgType type;
	size_t offset; /* in KvcfsOptions */
	double min, max;
	const char *default_value; /* NULL: none, or computed */
	const char *arg;
	const char *help;
} OptionDef;

/* Where a value comes from, as .kvcache/config says it; KVCFS_ORIGIN_FILE goes on FILE:LINE. */
#define KVCFS_ORIGIN_FILE "config "
#define KVCFS_ORIGIN_DEFAULT "default"
#define KVCFS_ORIGIN_COMPUTED "computed"
#define KVCFS_ORIGIN_COMMAND_LINE "command-line"

const OptionDef *kvcfs_option_table(size_t *n);
/* By its long name; NULL: there is none. */
const OptionDef *kvcfs_option_find(const char *name);
/* "; did you mean ...?" for an unknown NAME, or "" (transfer full). DASHES: what precedes it. */
char *kvcfs_option_suggest(const char *dashes, const char *name);
/* Does it only make sense on the command line (--help, --version, --config)? */
bool kvcfs_option_is_command_only(const OptionDef *def);
/* Sets, or for a list appends, the value TEXT. false with ERROR set that quotes name and text. */
bool kvcfs_option_set(KvcfsOptions *options,
		      const OptionDef *def,
		      const char *text,
		      const char *origin,
		      GError **error);
/* The origin of the option, of a list's entry I; never NULL. */
const char *kvcfs_option_origin(const KvcfsOptions *options, const OptionDef *def, guint i);

/* options-file.c: what --config names, below what the command line says. */
bool kvcfs_options_read_file(KvcfsOptions *options, GError **error);
/* The first N mount options, the command line's, go behind those of the file: the last one counts.
 */
void kvcfs_options_put_last(KvcfsOptions *options, guint n);
/*
 * options-mount.c: replaces mount_options from index FIRST on by what libfuse is to be told, one
 * option an entry, after our own among them were set with ORIGIN.
 */
bool kvcfs_options_take_mount_options(KvcfsOptions *options,
				      guint first,
				      const char *origin,
				      GError **error);
/*
 * options-mount.c: was the program called as mount.TYPE? Then *ARGV is rewritten from what mount(8)
 * passes (SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]) to our own command line (transfer full). Else
 * only
 * "-oOPTIONS" becomes two words.
 */
bool
kvcfs_options_take_mount_helper(KvcfsOptions *options, int *argc, char ***argv, GError **error);

/*
 * options-memory.c: a quarter of the machine's memory, or of what the daemon's own memory cgroup
 * may use. In bytes, whole pages.
 */
uint64_t kvcfs_default_l1_size(void);
/* Is it at least one huge page, and no more than there is? Else false with ERROR set. */
bool kvcfs_check_l1_size(uint64_t bytes, GError **error);
/* options-help.c: adapters with their options, and policies (transfer full). */
char *kvcfs_options_describe_modules(void);

/* A parsed and checked specification of an adapter (transfer full), NULL with ERROR set. */
KvcOptions *
kvcfs_check_adapter(const char *specification, const KvcL2AdapterOps **ops, GError **error);

/* Sets ERROR to one line and returns false, so that a failing check is one statement. */
bool kvcfs_options_fail(GError **error, int code, const char *format, ...) G_GNUC_PRINTF(3, 4);

#endif
