/* SPDX-License-Identifier: Apache-2.0 */

/* The text of .kvcache/config: each option as it is in effect, and where its value comes from. */

#include "fs/options-table.h"

#include <inttypes.h>
#include <string.h>

/* VALUE must not break the line. */
static void
append_line(GString *text, const char *name, const char *value, const char *origin)
{
	g_autofree char *safe = g_strescape(value, "\"\\\a\b\f\v\t");
	bool has_control = strpbrk(value, "\n\r") != NULL;
	g_string_append_printf(text, "%s %s %s\n", name, has_control ? safe : value, origin);
}

static void
append_quoted(GString *text, const char *value)
{
	for (const char *p = value; *p != '\0'; p++) {
		if (*p == ',' || *p == '\\')
			g_string_append_c(text, '\\');
		g_string_append_c(text, *p);
	}
}

/* ---- Adapters ------------------------------------------------------------------------------ */

static void
append_adapter_options(GString *text,
		       const KvcOptions *parsed,
		       const KvcOptionSpec *specs,
		       const KvcL2AdapterOps *ops)
{
	for (const KvcOptionSpec *spec = specs; spec != NULL && spec->name != NULL; spec++) {
		const char *value = kvc_options_get_string(parsed, spec->name);
		if (value == NULL && strcmp(spec->name, "shared") == 0)
			value = ops->shared_by_default ? "true" : "false";
		if (value == NULL)
			continue;
		g_string_append_printf(text, ",%s=", spec->name);
		if (spec->is_secret)
			g_string_append(text, "(secret)");
		else if (spec->type == KVC_OPTION_SIZE)
			g_string_append_printf(text, "%" PRIu64,
					       kvc_options_get_size(parsed, spec->name));
		else
			append_quoted(text, value);
	}
}

/* The specification with what it leaves to defaults, without its secrets. */
static char *
format_adapter(const char *specification)
{
	const KvcL2AdapterOps *ops = NULL;
	g_autoptr(KvcOptions) parsed = kvcfs_check_adapter(specification, &ops, NULL);
	GString *text = g_string_new("type=");
	append_quoted(text, kvc_options_type(parsed));
	append_adapter_options(text, parsed, ops->options, ops);
	append_adapter_options(text, parsed, kvc_l2_adapter_get_common_options(), ops);
	return g_string_free(text, FALSE);
}

/* ---- Options ------------------------------------------------------------------------------- */

static char *
format_value(const KvcfsOptions *options, const OptionDef *def)
{
	const void *field = (const char *)options + def->offset;
	char number[G_ASCII_DTOSTR_BUF_SIZE];
	switch (def->type) {
	case ARG_FLAG:
		return g_strdup(*(const bool *)field ? "true" : "false");
	case ARG_STRING:
		return g_strdup(*(char *const *)field);
	case ARG_SIZE:
		return g_strdup_printf("%" PRIu64, *(const uint64_t *)field);
	case ARG_UINT:
		return g_strdup_printf("%u", *(const unsigned *)field);
	case ARG_DOUBLE:
		return g_strdup(
			g_ascii_formatd(number, sizeof number, "%.15g", *(const double *)field));
	default:
		break;
	}
	double scale = def->type == ARG_SECONDS ? 1e9 : 1e6;
	return g_strdup(g_ascii_formatd(number, sizeof number, "%.15g",
					(double)*(const int64_t *)field / scale));
}

/* Patterns came in lists of any length: they are one list here. */
static void
append_temp_names(GString *text, const KvcfsOptions *options, const OptionDef *def)
{
	g_autofree char *joined = g_strjoinv(",", (char **)options->temp_names->pdata);
	append_line(text, def->name, joined[0] != '\0' ? joined : "none",
		    kvcfs_option_origin(options, def, 0));
}

static void
append_list(GString *text, const KvcfsOptions *options, const OptionDef *def)
{
	const GPtrArray *list = *(GPtrArray *const *)((const char *)options + def->offset);
	for (guint i = 0; i < list->len && list->pdata[i] != NULL; i++) {
		bool is_adapter = list == options->l2_adapters;
		g_autofree char *name = g_strdup_printf("%s.%u", def->name, i);
		g_autofree char *value =
			is_adapter ? format_adapter(list->pdata[i]) : g_strdup(list->pdata[i]);
		append_line(text, name, value, kvcfs_option_origin(options, def, i));
	}
	if (list->len == 0 || list->pdata[0] == NULL)
		append_line(text, def->name, "none", KVCFS_ORIGIN_DEFAULT);
}

char *
kvcfs_options_format(const KvcfsOptions *options, const char *state_dir)
{
	size_t n;
	const OptionDef *defs = kvcfs_option_table(&n);
	GString *text = g_string_new(NULL);
	for (size_t i = 0; i < n; i++) {
		const OptionDef *def = &defs[i];
		const char *origin = kvcfs_option_origin(options, def, 0);
		if (kvcfs_option_is_command_only(def) && strcmp(def->name, "config") != 0)
			continue;
		if (strcmp(def->name, "temp-names") == 0) {
			append_temp_names(text, options, def);
			continue;
		}
		if (def->type == ARG_LIST) {
			append_list(text, options, def);
			continue;
		}
		g_autofree char *value = format_value(options, def);
		if (strcmp(def->name, "state-dir") == 0) {
			if (value == NULL)
				origin = KVCFS_ORIGIN_COMPUTED;
			g_free(value);
			value = g_strdup(state_dir);
		}
		append_line(text, def->name, value != NULL ? value : "none", origin);
	}
	return g_string_free(text, FALSE);
}
