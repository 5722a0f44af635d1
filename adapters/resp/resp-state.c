/* SPDX-License-Identifier: Apache-2.0 */

/* What the server refuses, and what status says of it. */

#include <errno.h>
#include <string.h>

#include "resp.h"

/* The first word of an error reply. */
static const struct {
	const char *word;
	RespState state;
	int error;
} refusals[] = {
	{"OOM", RESP_OOM, -ENOSPC},
	{"READONLY", RESP_READONLY, -EROFS},
	{"MISCONF", RESP_READONLY, -EROFS}, /* it cannot save, and takes no changes */
	{"NOREPLICAS", RESP_READONLY, -EROFS},
	{"NOAUTH", RESP_NOAUTH, -EACCES},
	{"WRONGPASS", RESP_NOAUTH, -EACCES},
	{"NOPERM", RESP_NOAUTH, -EACCES},
	{"LOADING", RESP_LOADING, -EHOSTDOWN},
	{"MASTERDOWN", RESP_LOADING, -EHOSTDOWN},
	{"BUSY", RESP_LOADING, -EHOSTDOWN},
	{"CLUSTERDOWN", RESP_CLUSTERDOWN, -EHOSTDOWN},
	{"WRONGTYPE", RESP_OK, -ENOENT}, /* somebody else's */
};

static void
note_text(RespStore *store, const char *text, size_t len)
{
	pthread_mutex_lock(&store->lock);
	g_free(store->server_error);
	store->server_error = g_strndup(text, len);
	g_strcanon(store->server_error,
		   " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
		   "abcdefghijklmnopqrstuvwxyz{|}~",
		   '?');
	pthread_mutex_unlock(&store->lock);
}

int
resp_note_refusal(RespStore *store, const char *text, size_t len)
{
	static const char no_key[] = "ERR no such key"; /* RENAME */
	size_t word = 0;

	if (len == strlen(no_key) && memcmp(text, no_key, len) == 0)
		return -ENOENT;
	while (word < len && text[word] != ' ')
		word++;
	for (size_t i = 0; i < G_N_ELEMENTS(refusals); i++) {
		if (strlen(refusals[i].word) != word || memcmp(refusals[i].word, text, word) != 0)
			continue;
		if (refusals[i].state != RESP_OK) {
			atomic_store(&store->state, refusals[i].state);
			note_text(store, text, len);
		}
		return refusals[i].error;
	}
	note_text(store, text, len);
	return -EIO;
}

void
resp_note_unreachable(RespStore *store, const char *text)
{
	atomic_store(&store->state, RESP_UNREACHABLE);
	note_text(store, text, strlen(text));
}

void
resp_note_untrusted(RespStore *store, const char *text)
{
	atomic_store(&store->state, RESP_UNTRUSTED);
	note_text(store, text, strlen(text));
}

void
resp_note_success(RespStore *store, bool is_change)
{
	int state = atomic_load(&store->state);

	if (state == RESP_OK || (!is_change && (state == RESP_OOM || state == RESP_READONLY)))
		return;
	atomic_compare_exchange_strong(&store->state, &state, RESP_OK);
}

void
resp_describe(void *user_store, KvcDescribeFunc func, void *user)
{
	static const char *const names[RESP_STATES] = {"ok",	    "unreachable", "noauth",
						       "untrusted", "loading",	   "oom",
						       "readonly",  "clusterdown"};
	RespStore *store = user_store;

	pthread_mutex_lock(&store->lock);
	g_autofree char *text = g_strdup(store->server_error);
	pthread_mutex_unlock(&store->lock);
	func(user, "server", names[atomic_load(&store->state)]);
	if (text)
		func(user, "server_error", text);
}
