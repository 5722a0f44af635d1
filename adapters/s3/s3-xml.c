/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The two documents that a store sends: a page of a listing, and an error. Names of elements are
 * taken as they are, in whatever name space.
 */

#include <string.h>

#include "s3.h"

/* No document of these nests deeper. */
#define MAX_DEPTH 8

typedef struct Parser {
	const char *root; /* which element is asked for */
	unsigned depth;
	bool is_entry; /* in one of the Contents of the root */
	GString *text; /* of the innermost element */
	S3Page *page;  /* or NULL: an error */
	S3Entry entry;
	bool has_bytes, has_end; /* of the entry; of the document */
	bool is_encoded;	 /* names are, as was asked for: not every store does that */
	char *code, *message;
} Parser;

static void
fail(GError **error, const char *what)
{
	g_set_error_literal(error, G_MARKUP_ERROR, G_MARKUP_ERROR_INVALID_CONTENT, what);
}

static void
start_element(GMarkupParseContext *context,
	      const char *name,
	      const char **attribute_names,
	      const char **attribute_values,
	      void *user,
	      GError **error)
{
	Parser *p = user;

	p->depth++;
	g_string_truncate(p->text, 0);
	if (p->depth > MAX_DEPTH)
		fail(error, "nested too deep");
	else if (p->depth == 1 && strcmp(name, p->root) != 0)
		fail(error, "another document");
	else if (p->depth == 2 && p->page && !strcmp(name, "Contents"))
		p->is_entry = true;
}

static int64_t
parse_time(const char *text)
{
	g_autoptr(GDateTime) time = g_date_time_new_from_iso8601(text, NULL);

	return time ? g_date_time_to_unix(time) * KVC_SEC_NS +
			       g_date_time_get_microsecond(time) * INT64_C(1000)
		    : 0;
}

/* An element of an entry. */
static void
take_field(Parser *p, const char *name, GError **error)
{
	if (!strcmp(name, "Key")) {
		g_free(p->entry.name);
		p->entry.name = g_strdup(p->text->str);
	} else if (!strcmp(name, "Size")) {
		p->has_bytes = g_ascii_string_to_unsigned(p->text->str, 10, 0, INT64_MAX,
							  &p->entry.bytes, error);
	} else if (!strcmp(name, "LastModified")) {
		p->entry.mtime_ns = parse_time(p->text->str);
	}
}

static void
end_entry(Parser *p, GError **error)
{
	p->is_entry = false;
	if (!p->entry.name || !p->has_bytes) {
		fail(error, "an entry without Key or Size");
		return;
	}
	g_array_append_val(p->page->entries, p->entry);
	p->entry = (S3Entry){0};
	p->has_bytes = false;
}

static void
end_element(GMarkupParseContext *context, const char *name, void *user, GError **error)
{
	Parser *p = user;

	if (p->depth == 3 && p->is_entry)
		take_field(p, name, error);
	else if (p->depth == 2 && p->is_entry)
		end_entry(p, error);
	else if (p->depth == 2 && p->page && !strcmp(name, "IsTruncated"))
		p->page->is_truncated = !strcmp(p->text->str, "true");
	else if (p->depth == 2 && p->page && !strcmp(name, "EncodingType"))
		p->is_encoded = !strcmp(p->text->str, "url");
	else if (p->depth == 2 && !p->page && !strcmp(name, "Code") && !p->code)
		p->code = g_strdup(p->text->str);
	else if (p->depth == 2 && !p->page && !strcmp(name, "Message") && !p->message)
		p->message = g_strdup(p->text->str);
	p->has_end = p->depth == 1;
	p->depth--;
	g_string_truncate(p->text, 0);
}

static void
take_text(GMarkupParseContext *context, const char *text, gsize len, void *user, GError **error)
{
	Parser *p = user;

	g_string_append_len(p->text, text, (gssize)len);
}

static bool
parse(Parser *p, const char *text, size_t len)
{
	static const GMarkupParser parser = {
		.start_element = start_element, .end_element = end_element, .text = take_text};
	g_autoptr(GMarkupParseContext) context =
		g_markup_parse_context_new(&parser, G_MARKUP_TREAT_CDATA_AS_TEXT, p, NULL);

	p->text = g_string_new(NULL);
	bool is_good = g_markup_parse_context_parse(context, text, (gssize)len, NULL) &&
		       g_markup_parse_context_end_parse(context, NULL) && p->has_end;
	g_string_free(p->text, TRUE);
	g_free(p->entry.name);
	return is_good;
}

static void
entry_clear(void *data)
{
	g_free(((S3Entry *)data)->name);
}

/* As of a form: a blank may be a '+'. */
static bool
decode_names(S3Page *page)
{
	for (guint i = 0; i < page->entries->len; i++) {
		S3Entry *entry = &g_array_index(page->entries, S3Entry, i);
		char *name = g_uri_unescape_string(g_strdelimit(entry->name, "+", ' '), NULL);

		if (!name)
			return false;
		g_free(entry->name);
		entry->name = name;
	}
	return true;
}

bool
s3_page_parse(const char *text, size_t len, S3Page *page)
{
	Parser p = {.root = "ListBucketResult", .page = page};

	*page = (S3Page){.entries = g_array_new(FALSE, FALSE, sizeof(S3Entry))};
	g_array_set_clear_func(page->entries, entry_clear);
	if (parse(&p, text, len) && (!p.is_encoded || decode_names(page)))
		return true;
	s3_page_clear(page);
	return false;
}

void
s3_page_clear(S3Page *page)
{
	g_clear_pointer(&page->entries, g_array_unref);
}

bool
s3_error_parse(const char *text, size_t len, char **code, char **message)
{
	Parser p = {.root = "Error"};

	if (parse(&p, text, len) && p.code) {
		*code = p.code;
		*message = p.message;
		return true;
	}
	g_free(p.code);
	g_free(p.message);
	return false;
}
