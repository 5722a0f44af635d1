/* SPDX-License-Identifier: Apache-2.0 */

#include "config.h"

#include "kvcache/options.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define TYPE_KEY "type"

typedef struct Option {
	char *name;
	char *text; /* NULL: not set */
	/* Set by kvc_options_check(). */
	bool is_checked;
	KvcOptionType type;
	union {
		bool boolean;
		int64_t integer;
		uint64_t size;
		double real;
	} value;
} Option;

struct KvcOptions {
	GPtrArray *list; /* of owned Option, in the order given; "type" is among them */
};

G_DEFINE_QUARK(kvc - options - error - quark, kvc_options_error)

/* Sets ERROR and returns false, so that a failing check is one statement. */
G_GNUC_PRINTF(3, 4)
static bool
fail(GError **error, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (error)
		*error = g_error_new_valist(KVC_OPTIONS_ERROR, code, format, args);
	va_end(args);
	return false;
}

static void
option_free(void *p)
{
	Option *option = p;

	g_free(option->name);
	g_free(option->text);
	g_free(option);
}

static Option *
find_option(const KvcOptions *options, const char *name)
{
	for (unsigned i = 0; i < options->list->len; i++) {
		Option *option = g_ptr_array_index(options->list, i);

		if (!strcmp(option->name, name))
			return option;
	}
	return NULL;
}

/* TEXT (transfer full) may be NULL. */
static Option *
add_option(KvcOptions *options, const char *name, char *text)
{
	Option *option = g_new0(Option, 1);

	option->name = g_strdup(name);
	option->text = text;
	g_ptr_array_add(options->list, option);
	return option;
}

/*
 * What is malformed may have a password in it, anywhere: errors have positions and keys, and no
 * other part of the text. What is no key may be the tail of a value with a ',' in it.
 */

/* ---- type=fs,base_path=/data ------------------------------------------------------------------
 */

static bool
is_key_char(char c)
{
	return g_ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
}

/* The value that begins at *AT, unquoted (transfer full); *AT moves to the ',' or NUL after it. */
static char *
parse_pair_value(const char **at, GError **error)
{
	g_autoptr(GString) value = g_string_new(NULL);
	const char *p = *at;

	for (; *p && *p != ','; p++) {
		if (*p == '\\' && !*++p) {
			fail(error, EINVAL, "nothing after the backslash at the end");
			return NULL;
		}
		g_string_append_c(value, *p);
	}
	*at = p;
	return g_string_free(g_steal_pointer(&value), FALSE);
}

/* One key=value; *AT moves to the ',' or NUL after it. */
static bool
parse_pair(KvcOptions *options, const char *text, const char **at, GError **error)
{
	g_autofree char *key = NULL;
	const char *start = *at, *p = start;
	char *value;

	while (is_key_char(*p))
		p++;
	if (p == start || *p != '=')
		return fail(error, EINVAL, "at position %zu a %s is expected",
			    (size_t)(p - text) + 1, p == start ? "key" : "'='");
	key = g_strndup(start, (size_t)(p - start));
	if (find_option(options, key))
		return fail(error, EINVAL, "key \"%s\" is there twice, again at position %zu", key,
			    (size_t)(start - text) + 1);
	*at = p + 1;
	value = parse_pair_value(at, error);
	if (!value)
		return false;
	add_option(options, key, value);
	return true;
}

static bool
parse_pairs(KvcOptions *options, const char *text, GError **error)
{
	const char *at = text;

	for (;;) {
		if (!parse_pair(options, text, &at, error))
			return false;
		if (!*at)
			return true;
		at++;
	}
}

/* ---- {"type":"fs","base_path":"/data"} ---------------------------------------------------------
 */

#ifdef HAVE_JSON_GLIB

#include <json-glib/json-glib.h>

/* Bounds the parser's recursion. */
#define JSON_MAX_DEPTH 32

static bool
fail_at(const char *text, const char *at, const char *problem, GError **error)
{
	return fail(error, EINVAL, "%s at position %zu", problem, (size_t)(at - text) + 1);
}

/* *AT is at a '"' and moves behind the closing one. */
static bool
scan_json_string(const char *text, const char **at, GError **error)
{
	const char *p = *at + 1;

	for (; *p && *p != '"'; p++) {
		if (*p != '\\')
			continue;
		if (!strncmp(p, "\\u0000", 6))
			return fail_at(text, p, "a NUL character", error);
		if (!*++p)
			break;
	}
	if (!*p)
		return fail_at(text, *at, "a string without end begins", error);
	*at = p + 1;
	return true;
}

static const char *
skip_digits(const char *p)
{
	while (g_ascii_isdigit(*p))
		p++;
	return p;
}

/* *AT is at a '-' or digit and moves behind the number. */
static bool
scan_json_number(const char *text, const char **at, GError **error)
{
	const char *start = *at, *digits = start + (*start == '-'), *p = skip_digits(digits);
	bool is_integer = true;

	if (*digits == '0')
		p = digits + 1;
	if (p > digits && *p == '.' && g_ascii_isdigit(p[1])) {
		is_integer = false;
		p = skip_digits(p + 1);
	}
	if (p > digits && (*p == 'e' || *p == 'E')) {
		is_integer = false;
		p++;
		p = skip_digits(p + (*p == '-' || *p == '+'));
	}
	if (p == digits || g_ascii_isalnum(*p) || *p == '.' || !g_ascii_isdigit(p[-1]))
		return fail_at(text, start, "a malformed number", error);
	if (is_integer) {
		g_autofree char *number = g_strndup(start, (size_t)(p - start));

		if (!g_ascii_string_to_signed(number, 10, INT64_MIN, INT64_MAX, NULL, NULL))
			return fail_at(text, start, "a number too large", error);
	}
	*at = p;
	return true;
}

/*
 * What json-glib lets pass: integers that overflow wrap silently, 010 is octal and 0x10 hex, \u0000
 * ends a string, comments, single quotes, and a second document replaces the first.
 */
static bool
scan_json(const char *text, GError **error)
{
	const char *p = text;
	int depth = 0;

	while (*p) {
		if (depth == 0 && p > text && !g_ascii_isspace(*p) && *p != '{')
			return fail_at(text, p, "unexpected text", error);
		if (*p == '"') {
			if (!scan_json_string(text, &p, error))
				return false;
			continue;
		}
		if (*p == '-' || g_ascii_isdigit(*p)) {
			if (!scan_json_number(text, &p, error))
				return false;
			continue;
		}
		if (*p == '{' || *p == '[')
			depth++;
		if (depth > JSON_MAX_DEPTH)
			return fail_at(text, p, "too deep a nesting", error);
		if (!g_ascii_isspace(*p) && !g_ascii_isalpha(*p) && !strchr("{}[]:,", *p))
			return fail_at(text, p, "an unexpected character", error);
		if ((*p == '}' || *p == ']') && --depth == 0)
			return p[1 + strspn(p + 1, " \t\r\n")]
				       ? fail_at(text, p + 1, "text after the object", error)
				       : true;
		p++;
	}
	return fail_at(text, p, "the object is not closed", error);
}

typedef struct JsonSeen {
	GHashTable *names; /* "object/name" */
	char *duplicate;   /* the first one, owned */
} JsonSeen;

static void
note_json_member(JsonParser *parser, JsonObject *object, const char *name, void *user)
{
	JsonSeen *seen = user;

	(void)parser;
	if (!g_hash_table_add(seen->names, g_strdup_printf("%p/%s", (void *)object, name)) &&
	    !seen->duplicate)
		seen->duplicate = g_strdup(name);
}

/* The shortest of the usual two spellings that is exact: 0.8, not 0.80000000000000004. */
static char *
format_double(double value)
{
	char text[G_ASCII_DTOSTR_BUF_SIZE];

	g_ascii_formatd(text, sizeof(text), "%.15g", value);
	if (g_ascii_strtod(text, NULL) != value)
		g_ascii_dtostr(text, sizeof(text), value);
	return g_strdup(text);
}

/* The text of a string, number or bool (transfer full), NULL for everything else. */
static char *
format_json_value(JsonNode *node)
{
	if (!JSON_NODE_HOLDS_VALUE(node))
		return NULL;
	switch (json_node_get_value_type(node)) {
	case G_TYPE_STRING:
		return g_strdup(json_node_get_string(node));
	case G_TYPE_BOOLEAN:
		return g_strdup(json_node_get_boolean(node) ? "true" : "false");
	case G_TYPE_INT64:
		return g_strdup_printf("%" G_GINT64_FORMAT, json_node_get_int(node));
	case G_TYPE_DOUBLE:
		return format_double(json_node_get_double(node));
	default:
		return NULL;
	}
}

static bool
take_json_members(KvcOptions *options, JsonObject *object, GError **error)
{
	JsonObjectIter iter;
	const char *name;
	JsonNode *node;

	json_object_iter_init_ordered(&iter, object);
	while (json_object_iter_next_ordered(&iter, &name, &node)) {
		char *value = format_json_value(node);

		if (!value)
			return fail(
				error, EINVAL,
				"key \"%s\" is %s; a string, a number, true or false is expected",
				name, json_node_type_name(node));
		add_option(options, name, value);
	}
	return true;
}

typedef struct JsonPlace {
	unsigned line, position;
} JsonPlace;

/* The parser knows its place only as long as it works. */
static void
note_json_place(JsonParser *parser, const GError *json_error, void *user)
{
	JsonPlace *place = user;

	(void)json_error;
	place->line = json_parser_get_current_line(parser);
	place->position = json_parser_get_current_pos(parser);
}

/* json-glib's own words quote what they stumble over. */
static const char *
describe_json_error(const GError *json_error)
{
	if (json_error->domain != JSON_PARSER_ERROR)
		return "this is no object";
	switch (json_error->code) {
	case JSON_PARSER_ERROR_TRAILING_COMMA:
		return "a ',' without a member after it";
	case JSON_PARSER_ERROR_MISSING_COMMA:
		return "a ',' is missing";
	case JSON_PARSER_ERROR_MISSING_COLON:
		return "a ':' is missing";
	case JSON_PARSER_ERROR_INVALID_BAREWORD:
		return "a word without quotes";
	case JSON_PARSER_ERROR_EMPTY_MEMBER_NAME:
		return "an empty key";
	case JSON_PARSER_ERROR_INVALID_DATA:
		return "this is no UTF-8";
	default:
		return "this is no JSON";
	}
}

static bool
parse_json(KvcOptions *options, const char *text, GError **error)
{
	g_autoptr(JsonParser) parser = json_parser_new();
	g_autoptr(GHashTable) names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
	JsonSeen seen = {.names = names};
	g_autoptr(GError) json_error = NULL;
	g_autofree char *duplicate = NULL;
	JsonPlace place = {0};
	bool is_parsed;

	if (!scan_json(text, error))
		return false;
	g_signal_connect(parser, "object-member", G_CALLBACK(note_json_member), &seen);
	g_signal_connect(parser, "error", G_CALLBACK(note_json_place), &place);
	is_parsed = json_parser_load_from_data(parser, text, -1, &json_error);
	duplicate = seen.duplicate;
	if (!is_parsed)
		return place.line == 0
			       ? fail(error, EINVAL, "%s", describe_json_error(json_error))
			       : fail(error, EINVAL, "Parse error at line %u, position %u: %s",
				      place.line, place.position, describe_json_error(json_error));
	if (duplicate)
		return fail(error, EINVAL, "key \"%s\" is there twice", duplicate);
	return take_json_members(options, json_node_get_object(json_parser_get_root(parser)),
				 error);
}

#else

static bool
parse_json(KvcOptions *options, const char *text, GError **error)
{
	(void)options;
	(void)text;
	return fail(error, EINVAL, "this build has no JSON; write it as type=NAME,key=value,...");
}

#endif

/* ---- Parsing ------------------------------------------------------------------------------- */

KvcOptions *
kvc_options_parse(const char *text, GError **error)
{
	g_autoptr(KvcOptions) options = g_new0(KvcOptions, 1);
	const char *start = text + strspn(text, " \t\r\n");
	const char *type;

	options->list = g_ptr_array_new_with_free_func(option_free);
	if (*start == '{' ? !parse_json(options, start, error) : !parse_pairs(options, text, error))
		return NULL;
	type = kvc_options_type(options);
	if (!type || !*type) {
		fail(error, EINVAL, "a \"" TYPE_KEY "\" is needed, as in type=fs");
		return NULL;
	}
	return g_steal_pointer(&options);
}

const char *
kvc_options_type(const KvcOptions *options)
{
	const Option *option = find_option(options, TYPE_KEY);

	return option ? option->text : NULL;
}

void
kvc_options_free(KvcOptions *options)
{
	if (!options)
		return;
	g_ptr_array_unref(options->list);
	g_free(options);
}

/* ---- Values -------------------------------------------------------------------------------- */

bool
kvc_parse_size(const char *text, uint64_t *bytes, GError **error)
{
	static const char suffixes[] = "KMGT";
	size_t digits = strspn(text, "0123456789");
	g_autofree char *number = g_strndup(text, digits);
	const char *suffix = NULL;
	uint64_t value;
	unsigned shift = 0;

	if (text[digits])
		suffix = strchr(suffixes, g_ascii_toupper(text[digits]));
	if (digits == 0 || (text[digits] && (!suffix || text[digits + 1])))
		return fail(error, EINVAL,
			    "\"%s\" is not a size: a whole number of bytes is expected, "
			    "with an optional K, M, G or T",
			    text);
	if (suffix)
		shift = 10 * (unsigned)(suffix - suffixes + 1);
	if (!g_ascii_string_to_unsigned(number, 10, 0, UINT64_MAX >> shift, &value, NULL))
		return fail(error, ERANGE, "size \"%s\" is more than 64 bits hold", text);
	*bytes = value << shift;
	return true;
}

static bool
parse_bool(const char *text, bool *value, GError **error)
{
	static const char *const names[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

	for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
		if (!g_ascii_strcasecmp(text, names[i])) {
			*value = i % 2;
			return true;
		}
	return fail(error, EINVAL, "\"%s\" is neither true (yes, on, 1) nor false (no, off, 0)",
		    text);
}

static bool
parse_int(const char *text, int64_t *value, GError **error)
{
	size_t sign = *text == '-';
	size_t digits = strspn(text + sign, "0123456789");

	if (digits == 0 || text[sign + digits])
		return fail(error, EINVAL, "\"%s\" is not a whole number", text);
	if (!g_ascii_string_to_signed(text, 10, INT64_MIN, INT64_MAX, value, NULL))
		return fail(error, ERANGE, "\"%s\" is more than 64 bits hold", text);
	return true;
}

static bool
parse_double(const char *text, double *value, GError **error)
{
	char *end;
	double parsed;

	/* strtod would also take spaces, hex, inf and nan. */
	if (text[strspn(text, "0123456789+-.eE")] ||
	    !(g_ascii_isdigit(*text) || *text == '-' || *text == '.'))
		return fail(error, EINVAL, "\"%s\" is not a decimal number", text);
	parsed = g_ascii_strtod(text, &end);
	if (end == text || *end)
		return fail(error, EINVAL, "\"%s\" is not a decimal number", text);
	if (!isfinite(parsed))
		return fail(error, ERANGE, "\"%s\" is too large", text);
	*value = parsed;
	return true;
}

static bool
check_range(const KvcOptionSpec *spec, const char *text, double value, GError **error)
{
	bool has_max = spec->max >= spec->min && (spec->min != 0 || spec->max != 0);

	if (spec->min == 0 && spec->max == 0)
		return true;
	if (value >= spec->min && (!has_max || value <= spec->max))
		return true;
	if (!has_max)
		return fail(error, ERANGE, "\"%s\" is too small, at least %.15g", text, spec->min);
	return fail(error, ERANGE, "\"%s\" is out of range, %.15g to %.15g are allowed", text,
		    spec->min, spec->max);
}

static bool
convert_option(Option *option, const KvcOptionSpec *spec, GError **error)
{
	const char *text = option->text;

	switch (spec->type) {
	case KVC_OPTION_STRING:
		if (spec->required && !*text)
			return fail(error, EINVAL, "is empty (%s)", spec->help);
		return true;
	case KVC_OPTION_BOOL:
		return parse_bool(text, &option->value.boolean, error);
	case KVC_OPTION_INT:
		return parse_int(text, &option->value.integer, error) &&
		       check_range(spec, text, (double)option->value.integer, error);
	case KVC_OPTION_SIZE:
		return kvc_parse_size(text, &option->value.size, error) &&
		       check_range(spec, text, (double)option->value.size, error);
	case KVC_OPTION_DOUBLE:
		return parse_double(text, &option->value.real, error) &&
		       check_range(spec, text, option->value.real, error);
	}
	g_assert_not_reached();
}

/* ---- Checking ------------------------------------------------------------------------------ */

/* The names of both tables, NULL-terminated (transfer container). */
static GPtrArray *
collect_names(const KvcOptionSpec *specs, const KvcOptionSpec *common)
{
	GPtrArray *names = g_ptr_array_new();

	for (; specs && specs->name; specs++)
		g_ptr_array_add(names, (void *)specs->name);
	for (; common && common->name; common++)
		g_ptr_array_add(names, (void *)common->name);
	g_ptr_array_add(names, NULL);
	return names;
}

static bool
fail_unknown_key(const KvcOptions *options, const char *name, GPtrArray *names, GError **error)
{
	const char *nearest = kvc_nearest_name(name, (const char *const *)names->pdata);
	g_autofree char *known = g_strjoinv(", ", (char **)names->pdata);

	return fail(error, ENOENT, "\"%s\" has no option \"%s\"%s%s%s; it takes: %s",
		    kvc_options_type(options), name, nearest ? ", did you mean \"" : "",
		    nearest ? nearest : "", nearest ? "\"?" : "", *known ? known : "none");
}

static bool
check_keys(const KvcOptions *options, GPtrArray *names, GError **error)
{
	for (unsigned i = 0; i < options->list->len; i++) {
		const Option *option = g_ptr_array_index(options->list, i);

		if (strcmp(option->name, TYPE_KEY) &&
		    !g_strv_contains((const char *const *)names->pdata, option->name))
			return fail_unknown_key(options, option->name, names, error);
	}
	return true;
}

/* ERROR, which quotes the value of SPEC, becomes one that does not. */
static void
hide_value(const KvcOptionSpec *spec, GError **error)
{
	if (!error)
		return;
	int code = (*error)->code;
	g_clear_error(error);
	fail(error, code, "a wrong value, which is secret and not shown (%s)", spec->help);
}

static bool
check_spec(KvcOptions *options, const KvcOptionSpec *spec, GError **error)
{
	Option *option = find_option(options, spec->name);

	if (!option)
		option = add_option(options, spec->name, g_strdup(spec->default_value));
	if (!option->text && spec->required)
		return fail(error, EINVAL, "\"%s\" needs the option \"%s\" (%s)",
			    kvc_options_type(options), spec->name, spec->help);
	option->type = spec->type;
	option->is_checked = true;
	if (option->text && !convert_option(option, spec, error)) {
		if (spec->is_secret && spec->type != KVC_OPTION_STRING)
			hide_value(spec, error);
		g_prefix_error(error, "option \"%s\": ", spec->name);
		return false;
	}
	return true;
}

bool
kvc_options_check(KvcOptions *options,
		  const KvcOptionSpec *specs,
		  const KvcOptionSpec *common,
		  GError **error)
{
	g_autoptr(GPtrArray) names = collect_names(specs, common);

	if (!check_keys(options, names, error))
		return false;
	for (; specs && specs->name; specs++)
		if (!check_spec(options, specs, error))
			return false;
	for (; common && common->name; common++)
		if (!check_spec(options, common, error))
			return false;
	return true;
}

/* ---- Reading ------------------------------------------------------------------------------- */

static const Option *
get_checked(const KvcOptions *options, const char *name)
{
	const Option *option = find_option(options, name);

	if (!option || !option->is_checked)
		g_error("option \"%s\" is in no table", name);
	return option;
}

static const Option *
get_typed(const KvcOptions *options, const char *name, KvcOptionType type)
{
	const Option *option = get_checked(options, name);

	if (option->type != type)
		g_error("option \"%s\" is of another type in its table", name);
	return option;
}

/* Of any type: the text tells whether an option is set. */
const char *
kvc_options_get_string(const KvcOptions *options, const char *name)
{
	return get_checked(options, name)->text;
}

bool
kvc_options_get_bool(const KvcOptions *options, const char *name)
{
	return get_typed(options, name, KVC_OPTION_BOOL)->value.boolean;
}

int64_t
kvc_options_get_int(const KvcOptions *options, const char *name)
{
	return get_typed(options, name, KVC_OPTION_INT)->value.integer;
}

uint64_t
kvc_options_get_size(const KvcOptions *options, const char *name)
{
	return get_typed(options, name, KVC_OPTION_SIZE)->value.size;
}

double
kvc_options_get_double(const KvcOptions *options, const char *name)
{
	return get_typed(options, name, KVC_OPTION_DOUBLE)->value.real;
}

/* ---- Nearest name -------------------------------------------------------------------------- */

/* Insertions, deletions and replacements that make B of A; one row of the table at a time. */
static size_t
edit_distance(const char *a, const char *b)
{
	size_t len_b = strlen(b);
	g_autofree size_t *row = g_new(size_t, len_b + 1);

	for (size_t j = 0; j <= len_b; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		size_t diagonal = row[0];

		row[0] = i + 1;
		for (size_t j = 0; j < len_b; j++) {
			size_t replaced = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			row[j + 1] = MIN(replaced, MIN(row[j], row[j + 1]) + 1);
		}
	}
	return row[len_b];
}

const char *
kvc_nearest_name(const char *name, const char *const *names)
{
	const char *nearest = NULL;
	/* A third of the letters, rounded up, may be wrong. */
	size_t best = (strlen(name) + 2) / 3 + 1;

	for (; *names; names++) {
		size_t distance = edit_distance(name, *names);

		if (distance < best && distance < strlen(*names)) {
			best = distance;
			nearest = *names;
		}
	}
	return nearest;
}
