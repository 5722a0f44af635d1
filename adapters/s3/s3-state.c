/* SPDX-License-Identifier: Apache-2.0 */

/* What an answer means, and what status says of the store. */

#include <errno.h>
#include <string.h>

#include "s3.h"

/* The code of an error. */
static const struct {
	const char *code;
	S3State state;
	int error;
} refusals[] = {
	{"NoSuchKey", S3_OK, -ENOENT},
	{"NoSuchBucket", S3_NOBUCKET, -ENODEV},
	{"PermanentRedirect", S3_NOBUCKET, -ENODEV},
	{"AuthorizationHeaderMalformed", S3_NOBUCKET, -ENODEV}, /* its region is another one */
	{"IllegalLocationConstraintException", S3_NOBUCKET, -ENODEV},
	{"RequestTimeTooSkewed", S3_CLOCK, -EACCES},
	{"SlowDown", S3_SLOWDOWN, -EHOSTDOWN},
	{"TooManyRequests", S3_SLOWDOWN, -EHOSTDOWN},
	{"QuotaExceeded", S3_FULL, -ENOSPC},
	{"XMinioStorageFull", S3_FULL, -ENOSPC},
	{"XMinioAdminBucketQuotaExceeded", S3_FULL, -ENOSPC},
	{"InsufficientStorage", S3_FULL, -ENOSPC},
	{"EntityTooLarge", S3_OK, -EFBIG},
	{"KeyTooLongError", S3_OK, -ENAMETOOLONG},
	{"PreconditionFailed", S3_OK, -EBUSY},
};

/* Where the answer has no text, as that to HEAD. */
static const struct {
	long status;
	S3State state;
	int error;
} statuses[] = {
	{301, S3_NOBUCKET, -ENODEV},	{307, S3_NOBUCKET, -ENODEV}, {400, S3_ERROR, -EIO},
	{401, S3_DENIED, -EACCES},	{403, S3_DENIED, -EACCES},   {404, S3_OK, -ENOENT},
	{412, S3_OK, -EBUSY},		{413, S3_OK, -EFBIG},	     {414, S3_OK, -ENAMETOOLONG},
	{429, S3_SLOWDOWN, -EHOSTDOWN}, {500, S3_ERROR, -EHOSTDOWN}, {502, S3_ERROR, -EHOSTDOWN},
	{503, S3_SLOWDOWN, -EHOSTDOWN}, {504, S3_ERROR, -EHOSTDOWN}, {507, S3_FULL, -ENOSPC},
};

/* ---- Noting -------------------------------------------------------------------------------- */

/* STATE S3_OK: the state stays. */
static void
note(S3Store *store, S3State state, const char *text)
{
	char *copy = g_strdup(text);

	g_strcanon(copy,
		   " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
		   "abcdefghijklmnopqrstuvwxyz{|}~",
		   '?');
	if (strlen(copy) > 200)
		copy[200] = '\0';
	pthread_mutex_lock(&store->lock);
	g_free(store->server_error);
	store->server_error = copy;
	pthread_mutex_unlock(&store->lock);
	if (state == S3_SLOWDOWN)
		atomic_fetch_add(&store->n_slowdowns, 1);
	if (state == S3_UNREACHABLE || state == S3_SLOWDOWN || state == S3_ERROR)
		atomic_store(&store->answered_ns, S3_NEVER_NS);
	if (state != S3_OK)
		atomic_store(&store->state, state);
}

/* What one may not do, or has no room for, another request may still do. */
static void
note_success(S3Store *store, bool is_change)
{
	int state = atomic_load(&store->state);

	atomic_store(&store->answered_ns, kvc_now_ns());
	if (state == S3_OK || (!is_change && (state == S3_FULL || state == S3_DENIED)))
		return;
	atomic_compare_exchange_strong(&store->state, &state, S3_OK);
}

int
s3_note_nonsense(S3Store *store, const S3Exchange *x, const char *text)
{
	g_autofree char *whole = g_strdup_printf("%s %.100s: %s", x->method, x->path, text);

	atomic_fetch_add(&store->n_bad_answers, 1);
	note(store, S3_ERROR, whole);
	return -EIO;
}

void
s3_note_name(S3Store *store, const char *name)
{
	g_autofree char *text =
		g_strdup_printf("a name of %zu bytes, more than %d, cannot be stored: %.60s...",
				strlen(name), S3_MAX_NAME_BYTES, name);

	note(store, S3_OK, text);
}

/* ---- Concluding ---------------------------------------------------------------------------- */

static int
conclude_refusal(S3Store *store, const S3Exchange *x)
{
	g_autofree char *code = NULL, *message = NULL;
	g_autofree char *text = NULL;
	S3State state = x->status >= 500 ? S3_ERROR : S3_OK;
	int error = x->status >= 500 ? -EHOSTDOWN : -EIO;

	for (size_t i = 0; i < G_N_ELEMENTS(statuses); i++)
		if (statuses[i].status == x->status) {
			state = statuses[i].state;
			error = statuses[i].error;
		}
	bool has_code = x->text && x->text->len &&
			s3_error_parse(x->text->str, x->text->len, &code, &message);
	for (size_t i = 0; has_code && i < G_N_ELEMENTS(refusals); i++)
		if (!strcmp(refusals[i].code, code)) {
			state = refusals[i].state;
			error = refusals[i].error;
		}
	if (error == -ENOENT) {
		note_success(store, false);
		return error;
	}
	text = g_strdup_printf("%s: HTTP %ld%s%s%s%s", x->method, x->status, has_code ? " " : "",
			       has_code ? code : "", message ? ": " : "", message ? message : "");
	note(store, state, text);
	return error;
}

int
s3_conclude(S3Store *store, const S3Exchange *x, bool is_change)
{
	if (x->error == -ECANCELED)
		return x->error;
	if (x->error < 0) {
		const char *text = x->error_text ? x->error_text : g_strerror(-x->error);

		if (!kvc_is_connection_error(x->error))
			return s3_note_nonsense(store, x, text);
		note(store, S3_UNREACHABLE, text);
		return x->error;
	}
	if (x->status < 200 || x->status > 299)
		return conclude_refusal(store, x);
	note_success(store, is_change);
	return 0;
}

void
s3_describe(void *user_store, KvcDescribeFunc func, void *user)
{
	static const char *const names[S3_STATES] = {"ok",	 "unreachable", "denied", "clock",
						     "nobucket", "slowdown",	"full",	  "error"};
	S3Store *store = user_store;
	S3HttpCounters http = s3_http_get_counters(store->http);
	const struct {
		const char *name;
		uint64_t value;
	} lines[] = {
		{"max_name_bytes", S3_MAX_NAME_BYTES},
		{"requests", http.requests},
		{"requests_in_flight", http.in_flight},
		{"retries", http.retries},
		{"slowdowns", atomic_load(&store->n_slowdowns)},
		{"bad_answers", atomic_load(&store->n_bad_answers)},
		{"crc_mismatches", atomic_load(&store->n_crc_mismatches)},
		{"attributes_dropped", atomic_load(&store->n_attributes_dropped)},
	};

	pthread_mutex_lock(&store->lock);
	g_autofree char *text = g_strdup(store->server_error);
	pthread_mutex_unlock(&store->lock);
	func(user, "server", names[atomic_load(&store->state)]);
	if (text)
		func(user, "server_error", text);
	for (size_t i = 0; i < G_N_ELEMENTS(lines); i++) {
		char number[24];

		g_snprintf(number, sizeof(number), "%" G_GUINT64_FORMAT, lines[i].value);
		func(user, lines[i].name, number);
	}
}
