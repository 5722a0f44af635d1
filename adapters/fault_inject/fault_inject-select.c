/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which keys a fault happens to: by a rate that is drawn from the seed and the key, so that a run
 * can be repeated, by the position in the task, by the chunk hash.
 */

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#include "fault_inject.h"

#define SEPARATORS ",: "

const char *const fault_names[] = {
	"load_miss",	"load_short",  "load_corrupt", "load_silent", "store_error",
	"lookup_error", "lookup_miss", "delete_error", "lost_unlock", "delay",
	"hang",		"lost_result", NULL,
};

static bool
fail(GError **error, const char *option, const char *what, const char *expected)
{
	g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "option \"%s\": \"%s\" is not %s", option,
		    what, expected);
	return false;
}

/* The parts of the list NAME, none of them empty (transfer full). */
static GPtrArray *
split_list(const KvcOptions *options, const char *name)
{
	const char *text = kvc_options_get_string(options, name);
	g_auto(GStrv) parts = g_strsplit_set(text ? text : "", SEPARATORS, -1);
	GPtrArray *list = g_ptr_array_new_with_free_func(g_free);

	for (char **part = parts; *part; part++)
		if (**part)
			g_ptr_array_add(list, g_strdup(*part));
	return list;
}

static bool
read_faults(FaultAdapter *fault, const KvcOptions *options, GError **error)
{
	g_autoptr(GPtrArray) list = split_list(options, "faults");

	for (guint i = 0; i < list->len; i++) {
		const char *name = g_ptr_array_index(list, i);
		unsigned bit = 0;

		while (fault_names[bit] && strcmp(fault_names[bit], name) != 0)
			bit++;
		if (!fault_names[bit]) {
			g_autofree char *known = g_strjoinv(", ", (char **)fault_names);
			g_autofree char *expected = g_strconcat("one of: ", known, NULL);

			return fail(error, "faults", name, expected);
		}
		fault->faults |= 1u << bit;
	}
	return true;
}

static bool
read_positions(FaultAdapter *fault, const KvcOptions *options, GError **error)
{
	g_autoptr(GPtrArray) list = split_list(options, "gap_indices");

	for (guint i = 0; i < list->len; i++) {
		const char *text = g_ptr_array_index(list, i);
		guint64 value;

		if (!g_ascii_string_to_unsigned(text, 10, 0, UINT32_MAX, &value, NULL))
			return fail(error, "gap_indices", text, "a position (0 is the first)");
		size_t position = value;
		g_array_append_val(fault->positions, position);
	}
	return true;
}

static bool
read_names(FaultAdapter *fault, const KvcOptions *options, GError **error)
{
	g_autoptr(GPtrArray) list = split_list(options, "drop_chunk_hashes");

	for (guint i = 0; i < list->len; i++) {
		const char *text = g_ptr_array_index(list, i);

		if (strlen(text) % 2 || strspn(text, "0123456789abcdef") != strlen(text))
			return fail(error, "drop_chunk_hashes", text,
				    "an even number of lower-case hex digits");
		g_hash_table_add(fault->names, g_strdup(text));
	}
	return true;
}

static bool
read_error(FaultAdapter *fault, const KvcOptions *options, GError **error)
{
	static const struct {
		const char *name;
		int number;
	} known[] = {{"EIO", EIO},
		     {"ENOSPC", ENOSPC},
		     {"EROFS", EROFS},
		     {"ECONNREFUSED", ECONNREFUSED},
		     {"ETIMEDOUT", ETIMEDOUT},
		     {"EHOSTDOWN", EHOSTDOWN}};
	const char *text = kvc_options_get_string(options, "error");

	for (size_t i = 0; i < G_N_ELEMENTS(known); i++)
		if (!strcmp(text, known[i].name))
			fault->error = -known[i].number;
	return fault->error || fail(error, "error", text,
				    "one of: EIO, ENOSPC, EROFS, ECONNREFUSED, ETIMEDOUT, "
				    "EHOSTDOWN");
}

bool
fault_select_init(FaultAdapter *fault, const KvcOptions *options, GError **error)
{
	fault->positions = g_array_new(FALSE, FALSE, sizeof(size_t));
	fault->names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
	fault->rate = kvc_options_get_double(options, "rate");
	fault->seed = (uint64_t)kvc_options_get_int(options, "seed");
	fault->redraw = kvc_options_get_bool(options, "redraw");
	fault->left = kvc_options_get_int(options, "max_faults");
	if (fault->left == 0)
		fault->left = -1;
	fault->delay_ns = (int64_t)(kvc_options_get_double(options, "delay_ms") * 1e6);
	fault->switch_path = g_strdup(kvc_options_get_string(options, "switch_path"));
	return read_faults(fault, options, error) && read_positions(fault, options, error) &&
	       read_names(fault, options, error) && read_error(fault, options, error);
}

void
fault_select_deinit(FaultAdapter *fault)
{
	g_array_unref(fault->positions);
	g_hash_table_unref(fault->names);
	g_free(fault->switch_path);
}

bool
fault_is_on(const FaultAdapter *fault)
{
	return !fault->switch_path || access(fault->switch_path, F_OK) == 0;
}

/* FNV-1a of the key's text, then the finalizer of splitmix64: the same on every host. */
static double
draw(uint64_t seed, const KvcObjectKey *key)
{
	g_autofree char *text = kvc_object_key_serialize(key);
	uint64_t hash = UINT64_C(14695981039346656037) ^ (seed * UINT64_C(0x9e3779b97f4a7c15));

	for (const char *p = text; *p; p++)
		hash = (hash ^ (uint8_t)*p) * UINT64_C(1099511628211);
	hash = (hash ^ (hash >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	hash = (hash ^ (hash >> 27)) * UINT64_C(0x94d049bb133111eb);
	hash ^= hash >> 31;
	return (double)(hash >> 11) / (double)(UINT64_C(1) << 53);
}

static bool
is_selected(FaultAdapter *fault, const KvcObjectKey *key, size_t position, uint64_t n_draw)
{
	for (guint i = 0; i < fault->positions->len; i++)
		if (g_array_index(fault->positions, size_t, i) == position)
			return true;
	if (g_hash_table_size(fault->names) > 0) {
		g_autofree char *hex = kvc_object_key_hash_hex(key);

		if (g_hash_table_contains(fault->names, hex))
			return true;
	}
	return fault->rate > 0 && draw(fault->seed + n_draw, key) < fault->rate;
}

bool
fault_take(FaultAdapter *fault, const KvcObjectKey *key, size_t position)
{
	pthread_mutex_lock(&fault->lock);
	uint64_t n_draw = fault->redraw ? fault->draws++ : 0;
	bool is_taken = fault->left != 0 && is_selected(fault, key, position, n_draw);
	if (is_taken) {
		fault->n_faults++;
		if (fault->left > 0)
			fault->left--;
	}
	pthread_mutex_unlock(&fault->lock);
	return is_taken;
}
