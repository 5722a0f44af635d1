/* SPDX-License-Identifier: Apache-2.0 */

/* AWS Signature Version 4. See s3-sign.h. */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "s3-sign.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define HASH_BYTES 32

/* ---- Encoding ------------------------------------------------------------------------------ */

void
s3_append_encoded(GString *out, const char *text, bool keep_slash)
{
	for (const char *p = text; *p; p++) {
		if (g_ascii_isalnum(*p) || strchr("-._~", *p) || (keep_slash && *p == '/'))
			g_string_append_c(out, *p);
		else
			g_string_append_printf(out, "%%%02X", (unsigned char)*p);
	}
}

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

char *
s3_query_format(const char *const *pairs)
{
	g_autoptr(GPtrArray) parts = g_ptr_array_new_with_free_func(g_free);
	GString *query = g_string_new(NULL);

	for (; *pairs; pairs += 2) {
		GString *part = g_string_new(NULL);

		s3_append_encoded(part, pairs[0], false);
		g_string_append_c(part, '=');
		s3_append_encoded(part, pairs[1], false);
		g_ptr_array_add(parts, g_string_free(part, FALSE));
	}
	/* No name here is the beginning of another one, so this is the order of the names. */
	g_ptr_array_sort(parts, compare_strings);
	for (guint i = 0; i < parts->len; i++)
		g_string_append_printf(query, "%s%s", i ? "&" : "",
				       (const char *)g_ptr_array_index(parts, i));
	return g_string_free(query, FALSE);
}

char *
s3_sign_date(int64_t time_ns)
{
	time_t seconds = (time_t)(time_ns / INT64_C(1000000000));
	struct tm tm;
	char text[32];

	gmtime_r(&seconds, &tm);
	strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &tm);
	return g_strdup(text);
}

/* ---- Signing ------------------------------------------------------------------------------- */

static void
hmac(const void *key, size_t key_len, const char *text, uint8_t out[HASH_BYTES])
{
	GHmac *mac = g_hmac_new(G_CHECKSUM_SHA256, key, key_len);
	gsize len = HASH_BYTES;

	g_hmac_update(mac, (const guchar *)text, (gssize)strlen(text));
	g_hmac_get_digest(mac, out, &len);
	g_hmac_unref(mac);
}

/* Without blanks at the ends, and one where there are several. */
static void
append_trimmed(GString *out, const char *value)
{
	size_t len = strlen(value);

	while (len > 0 && value[len - 1] == ' ')
		len--;
	while (len > 0 && *value == ' ')
		value++, len--;
	for (size_t i = 0; i < len; i++)
		if (value[i] != ' ' || value[i + 1] != ' ')
			g_string_append_c(out, value[i]);
}

static int
compare_headers(const void *a, const void *b)
{
	return strcmp(((const S3Header *)a)->name, ((const S3Header *)b)->name);
}

/* The hash of the canonical request (transfer full); *NAMES (transfer full) of what is signed. */
static char *
hash_request(const S3Signed *request, char **names)
{
	g_autofree S3Header *headers =
		g_memdup2(request->headers, request->n_headers * sizeof(*headers));
	g_autoptr(GString) text = g_string_new(NULL);
	GString *list = g_string_new(NULL);

	qsort(headers, request->n_headers, sizeof(*headers), compare_headers);
	g_string_append_printf(text, "%s\n%s\n%s\n", request->method, request->path,
			       request->query);
	for (size_t i = 0; i < request->n_headers; i++) {
		g_string_append_printf(text, "%s:", headers[i].name);
		append_trimmed(text, headers[i].value);
		g_string_append_c(text, '\n');
		g_string_append_printf(list, "%s%s", i ? ";" : "", headers[i].name);
	}
	g_string_append_printf(text, "\n%s\n%s", list->str, request->payload_hash);
	*names = g_string_free(list, FALSE);
	return g_compute_checksum_for_string(G_CHECKSUM_SHA256, text->str, (gssize)text->len);
}

char *
s3_sign(const S3Signer *signer, const S3Signed *request)
{
	g_autofree char *day = g_strndup(signer->date, 8);
	g_autofree char *scope =
		g_strdup_printf("%s/%s/%s/aws4_request", day, signer->region, signer->service);
	g_autofree char *names = NULL;
	g_autofree char *hash = hash_request(request, &names);
	g_autofree char *text =
		g_strdup_printf(ALGORITHM "\n%s\n%s\n%s", signer->date, scope, hash);
	g_autofree char *secret = g_strconcat("AWS4", signer->secret_key, NULL);
	g_autoptr(GString) signature = g_string_new(NULL);
	uint8_t key[HASH_BYTES];

	hmac(secret, strlen(secret), day, key);
	explicit_bzero(secret, strlen(secret));
	hmac(key, sizeof(key), signer->region, key);
	hmac(key, sizeof(key), signer->service, key);
	hmac(key, sizeof(key), "aws4_request", key);
	hmac(key, sizeof(key), text, key);
	for (size_t i = 0; i < sizeof(key); i++)
		g_string_append_printf(signature, "%02x", key[i]);
	return g_strdup_printf(ALGORITHM " Credential=%s/%s, SignedHeaders=%s, Signature=%s",
			       signer->access_key, scope, names, signature->str);
}
