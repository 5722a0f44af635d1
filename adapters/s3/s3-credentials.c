/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The keys: of the environment, or of a file as the AWS tools have it, which is read again when it
 * has changed, so that keys which are valid for some hours only can be renewed.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <kvcache/options.h>

#include "s3.h"

#define LOOK_NS (1 * KVC_SEC_NS)

static char *
env(const char *name)
{
	const char *value = g_getenv(name);

	return value && *value ? g_strdup(value) : NULL;
}

static char *
file_value(GKeyFile *file, const char *group, const char *key)
{
	char *value = g_key_file_get_value(file, group, key, NULL);

	if (value && !*g_strstrip(value))
		g_clear_pointer(&value, g_free);
	return value;
}

void
s3_credentials_clear(S3Credentials *credentials)
{
	if (credentials->secret_key)
		explicit_bzero(credentials->secret_key, strlen(credentials->secret_key));
	g_clear_pointer(&credentials->access_key, g_free);
	g_clear_pointer(&credentials->secret_key, g_free);
	g_clear_pointer(&credentials->session_token, g_free);
}

/* Goes into headers. */
static bool
is_printable(const char *text)
{
	for (const char *p = text; p && *p; p++)
		if (!g_ascii_isgraph(*p))
			return false;
	return true;
}

static bool
check(S3Credentials *credentials, const char *where, GError **error)
{
	if (!credentials->access_key || !credentials->secret_key)
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "no access key and secret in %s",
			    where);
	else if (!is_printable(credentials->access_key) || !is_printable(credentials->secret_key) ||
		 !is_printable(credentials->session_token))
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "a character that no key can have in %s", where);
	else
		return true;
	s3_credentials_clear(credentials);
	return false;
}

bool
s3_credentials_read(S3Store *store, S3Credentials *credentials, GError **error)
{
	g_autoptr(GKeyFile) file = g_key_file_new();
	g_autofree char *where = NULL;

	*credentials = (S3Credentials){0};
	if (!store->credentials_file) {
		credentials->access_key = env("AWS_ACCESS_KEY_ID");
		credentials->secret_key = env("AWS_SECRET_ACCESS_KEY");
		credentials->session_token = env("AWS_SESSION_TOKEN");
		return check(credentials,
			     "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); "
			     "credentials_file names a file with them",
			     error);
	}
	g_autoptr(GError) why = NULL;
	if (!g_key_file_load_from_file(file, store->credentials_file, G_KEY_FILE_NONE, &why)) {
		/* GLib's words would have the line, which may be the secret. */
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "credentials_file \"%s\": %s",
			    store->credentials_file,
			    why->domain == G_KEY_FILE_ERROR
				    ? "not in the form of ~/.aws/credentials"
				    : why->message);
		return false;
	}
	credentials->access_key = file_value(file, store->profile, "aws_access_key_id");
	credentials->secret_key = file_value(file, store->profile, "aws_secret_access_key");
	credentials->session_token = file_value(file, store->profile, "aws_session_token");
	where = g_strdup_printf("[%s] of credentials_file \"%s\"", store->profile,
				store->credentials_file);
	return check(credentials, where, error);
}

static int64_t
mtime_ns(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? st.st_mtim.tv_sec * KVC_SEC_NS + st.st_mtim.tv_nsec : 0;
}

/* One that cannot be read now is as if it had not changed. */
static void
renew_locked(S3Store *store)
{
	int64_t now_ns = kvc_now_ns();
	S3Credentials credentials;
	g_autoptr(GError) error = NULL;

	if (!store->credentials_file || now_ns - store->credentials_read_ns < LOOK_NS)
		return;
	store->credentials_read_ns = now_ns;
	int64_t changed_ns = mtime_ns(store->credentials_file);
	if (changed_ns == store->credentials_mtime_ns)
		return;
	if (!s3_credentials_read(store, &credentials, &error)) {
		g_warning("s3: %s", error->message);
	} else {
		s3_credentials_clear(&store->credentials);
		store->credentials = credentials;
	}
	store->credentials_mtime_ns = changed_ns;
}

void
s3_credentials_get(S3Store *store, S3Credentials *credentials)
{
	pthread_mutex_lock(&store->lock);
	renew_locked(store);
	credentials->access_key = g_strdup(store->credentials.access_key);
	credentials->secret_key = g_strdup(store->credentials.secret_key);
	credentials->session_token = g_strdup(store->credentials.session_token);
	pthread_mutex_unlock(&store->lock);
}
