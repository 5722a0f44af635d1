/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_OPTIONS_H
#define KVCACHE_OPTIONS_H

/*
 * Options of adapters and policies: one table per module feeds parsing, --help and manuals.
 *
 * A specification is "type=fs,base_path=/data" or, where json-glib was there at build time,
 * LMCache's JSON object {"type":"fs","base_path":"/data"}. In the key=value form a backslash quotes
 * the next character (for ',' and '\' in values). Options that were checked do not change: they may
 * be read from any thread.
 */

#include "kvcache/decls.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

KVC_BEGIN_DECLS

/* Error domain of option parsing; the code is an errno value (EINVAL, ERANGE, ENOENT). */
#define KVC_OPTIONS_ERROR (kvc_options_error_quark())
GQuark kvc_options_error_quark(void);

typedef enum {
	KVC_OPTION_STRING,
	KVC_OPTION_BOOL,   /* true, false, yes, no, on, off, 1, 0 */
	KVC_OPTION_INT,	   /* signed decimal */
	KVC_OPTION_SIZE,   /* bytes, with K, M, G, T as powers of 1024 */
	KVC_OPTION_DOUBLE, /* plain decimal */
} KvcOptionType;

typedef struct KvcOptionSpec {
	const char *name; /* NULL ends a table */
	KvcOptionType type;
	bool required;
	const char *default_value; /* NULL: none */
	double min, max;	   /* allowed range of numbers; both 0: no limit */
	const char *help;	   /* one line */
	bool is_secret;		   /* never shown: a password */
} KvcOptionSpec;

typedef struct KvcOptions KvcOptions;

/*
 * Splits TEXT into its type and its options and returns them unchecked (transfer full), or NULL
 * with ERROR set: malformed text (with the position), a key twice, no "type".
 */
KvcOptions *kvc_options_parse(const char *text, GError **error);
/* The value of "type". */
const char *kvc_options_type(const KvcOptions *options);
/*
 * Checks OPTIONS against SPECS (ended by a NULL name; COMMON may be NULL: options every module of
 * the kind takes) and fills in defaults. false with ERROR set that quotes the offender: an unknown
 * key (names the nearest known one), a missing required key, a value of the wrong type or out of
 * range.
 */
bool kvc_options_check(KvcOptions *options,
		       const KvcOptionSpec *specs,
		       const KvcOptionSpec *common,
		       GError **error);
void kvc_options_free(KvcOptions *options);

/*
 * Values after kvc_options_check(). The name must be in the tables (asserted). get_string is for
 * options of every type: their text; the others return 0 or false for what is not set.
 */
const char *kvc_options_get_string(const KvcOptions *options, const char *name); /* NULL: not set */
bool kvc_options_get_bool(const KvcOptions *options, const char *name);
int64_t kvc_options_get_int(const KvcOptions *options, const char *name);
uint64_t kvc_options_get_size(const KvcOptions *options, const char *name);
double kvc_options_get_double(const KvcOptions *options, const char *name);

/* Parses "64M" into bytes; false with ERROR set that quotes TEXT (also on overflow, sign, junk). */
bool kvc_parse_size(const char *text, uint64_t *bytes, GError **error);
/* The entry of NAMES (NULL-terminated) nearest to NAME by edit distance, or NULL when none is near.
 */
const char *kvc_nearest_name(const char *name, const char *const *names);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcOptions, kvc_options_free)

KVC_END_DECLS

#endif
