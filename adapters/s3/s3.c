/* SPDX-License-Identifier: Apache-2.0 */

/* The L2 adapter "s3": any S3-compatible store, by the connector framework. See README.md. */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <kvcache/registry.h>

#include "s3.h"

#define GIB 1073741824.0
/* Requests without payload at the same time: two threads of lookups, and one of all else. */
#define MAX_SMALL (3 * S3_MAX_BATCH / 2)

static const KvcOptionSpec s3_options[] = {
	{.name = "s3_endpoint",
	 .type = KVC_OPTION_STRING,
	 .required = true,
	 .help = "[http[s]://]HOST[:PORT] of the bucket, or of the store if s3_bucket is given"},
	{.name = "s3_bucket",
	 .type = KVC_OPTION_STRING,
	 .help = "name of the bucket, which is then the first part of every path"},
	{.name = "s3_region",
	 .type = KVC_OPTION_STRING,
	 .default_value = "us-east-1",
	 .help = "region of the bucket"},
	{.name = "key_prefix",
	 .type = KVC_OPTION_STRING,
	 .help = "put before the name of every object"},
	{.name = "credentials_file",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of a file as ~/.aws/credentials; without it the environment"},
	{.name = "credentials_profile",
	 .type = KVC_OPTION_STRING,
	 .default_value = "default",
	 .help = "section of that file"},
	{.name = "disable_tls",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "false",
	 .help = "HTTP if s3_endpoint does not say which"},
	{.name = "ca_file",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of the certificates to trust, instead of the system's"},
	{.name = "s3_num_io_threads",
	 .type = KVC_OPTION_INT,
	 .default_value = "16",
	 .min = 1,
	 .max = 256,
	 .help = "objects that are loaded and stored at the same time"},
	{.name = "connection_timeout",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "5",
	 .min = 0.01,
	 .max = 3600,
	 .help = "seconds until a connection has to be there"},
	{.name = "request_timeout",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "10",
	 .min = 0.01,
	 .max = 3600,
	 .help = "seconds that a request may be without any progress"},
	{.name = "max_bytes_in_flight",
	 .type = KVC_OPTION_SIZE,
	 .default_value = "256M",
	 .min = 1 << 20,
	 .max = 1ULL << 40,
	 .help = "bytes of payload in flight"},
	{.name = "max_capacity_gb",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .max = 1e6,
	 .help = "capacity in GiB that df shows; 0: unknown"},
	{.name = NULL},
};

static const KvcL2AdapterOps s3_adapter_ops;

static void
store_free(void *user)
{
	S3Store *store = user;

	if (store->http)
		s3_http_free(store->http);
	s3_credentials_clear(&store->credentials);
	g_hash_table_unref(store->damaged);
	pthread_mutex_destroy(&store->lock);
	g_free(store->server_error);
	g_free(store->base_url);
	g_free(store->host);
	g_free(store->bucket);
	g_free(store->base_path);
	g_free(store->region);
	g_free(store->prefix);
	g_free(store->credentials_file);
	g_free(store->profile);
	g_free(store);
}

static bool
fail(GError **error, const char *text)
{
	g_set_error_literal(error, KVC_OPTIONS_ERROR, EINVAL, text);
	return false;
}

/* ---- Where the bucket is ------------------------------------------------------------------- */

/* The bucket of a host that is a bucket's: "NAME.s3.REGION.amazonaws.com", else "NAME.HOST". */
static char *
bucket_of_host(const char *host)
{
	const char *end = strstr(host, ".s3.");

	if (!end)
		end = strstr(host, ".s3-");
	if (!end)
		end = strchr(host, '.');
	return end ? g_strndup(host, (size_t)(end - host)) : g_strdup(host);
}

static bool
is_host(const char *text)
{
	if (!*text)
		return false;
	for (const char *p = text; *p; p++)
		if (!g_ascii_isalnum(*p) && !strchr(".-_:[]", *p))
			return false;
	return true;
}

static bool
is_bucket(const char *text)
{
	if (strlen(text) < 3 || strlen(text) > 63)
		return false;
	for (const char *p = text; *p; p++)
		if (!g_ascii_isalnum(*p) && !strchr(".-_", *p))
			return false;
	return true;
}

static bool
set_endpoint(S3Store *store, const KvcOptions *options, GError **error)
{
	const char *endpoint = kvc_options_get_string(options, "s3_endpoint");
	const char *bucket = kvc_options_get_string(options, "s3_bucket");
	bool is_plain = kvc_options_get_bool(options, "disable_tls");
	const char *host = endpoint;

	if (g_str_has_prefix(endpoint, "http://")) {
		is_plain = true;
		host += strlen("http://");
	} else if (g_str_has_prefix(endpoint, "https://")) {
		is_plain = false;
		host += strlen("https://");
	}
	store->host = g_strdup(host);
	if (g_str_has_suffix(store->host, "/"))
		store->host[strlen(store->host) - 1] = '\0';
	if (!is_host(store->host))
		return fail(error, "s3_endpoint is not [http[s]://]HOST[:PORT]; the bucket is "
				   "named by s3_bucket");
	store->bucket = bucket ? g_strdup(bucket) : bucket_of_host(store->host);
	if (!is_bucket(store->bucket)) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "\"%s\" is no name of a bucket%s",
			    store->bucket, bucket ? "" : " (s3_bucket is not given)");
		return false;
	}
	store->base_path = bucket ? g_strconcat("/", bucket, NULL) : g_strdup("");
	store->base_url = g_strconcat(is_plain ? "http://" : "https://", store->host, NULL);
	return true;
}

/* ---- Opening ------------------------------------------------------------------------------- */

static S3Store *
store_new(const KvcOptions *options)
{
	S3Store *store = g_new0(S3Store, 1);
	const char *prefix = kvc_options_get_string(options, "key_prefix");

	store->region = g_strdup(kvc_options_get_string(options, "s3_region"));
	store->prefix = g_strdup(prefix ? prefix : "");
	store->credentials_file = g_strdup(kvc_options_get_string(options, "credentials_file"));
	store->profile = g_strdup(kvc_options_get_string(options, "credentials_profile"));
	store->capacity_bytes =
		(uint64_t)(kvc_options_get_double(options, "max_capacity_gb") * GIB);
	pthread_mutex_init(&store->lock, NULL);
	store->damaged = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
	atomic_store(&store->answered_ns, S3_NEVER_NS);
	return store;
}

static void
warn_of_readers(const S3Store *store)
{
	struct stat st;

	if (stat(store->credentials_file, &st) == 0 && (st.st_mode & 077))
		g_warning("s3: others may read or write the credentials file \"%s\": chmod 600 it",
			  store->credentials_file);
}

static bool
check(S3Store *store, const KvcOptions *options, GError **error)
{
	const char *ca_file = kvc_options_get_string(options, "ca_file");
	size_t prefix_len = strlen(store->prefix);

	if (!set_endpoint(store, options, error))
		return false;
	if (prefix_len > 0 &&
	    (prefix_len > 256 || !g_str_is_ascii(store->prefix) || store->prefix[0] == '/' ||
	     strstr(store->prefix, "//") || strpbrk(store->prefix, "\n\r\t%")))
		return fail(error,
			    "key_prefix has more than 256 bytes, or what a name cannot have");
	if (ca_file && !g_path_is_absolute(ca_file))
		return fail(error, "ca_file is not an absolute path");
	if (store->credentials_file && !g_path_is_absolute(store->credentials_file))
		return fail(error, "credentials_file is not an absolute path");
	if (store->credentials_file)
		warn_of_readers(store);
	return s3_credentials_read(store, &store->credentials, error);
}

static bool
start(S3Store *store, const KvcOptions *options, GError **error)
{
	double connect_s = kvc_options_get_double(options, "connection_timeout");
	double idle_s = kvc_options_get_double(options, "request_timeout");
	const S3HttpConfig config = {
		.base_url = store->base_url,
		.ca_file = kvc_options_get_string(options, "ca_file"),
		.max_bulk = (unsigned)kvc_options_get_int(options, "s3_num_io_threads"),
		.max_small = MAX_SMALL,
		.connect_timeout_ns = (int64_t)(connect_s * 1e9),
		.idle_ns = (int64_t)(idle_s * 1e9),
		.prepare = s3_prepare,
		.user = store,
	};

	store->http = s3_http_new(&config, error);
	return store->http;
}

static const KvcConnectorOps s3_ops = {
	.struct_size = sizeof(KvcConnectorOps),
	.max_batch = S3_MAX_BATCH,
	.connect = s3_connect,
	.disconnect = s3_disconnect,
	.interrupt = s3_interrupt,
	.get = s3_get,
	.set = s3_set,
	.exists = s3_exists,
	.remove = s3_remove,
	.set_attributes = s3_set_attributes,
	.rename = s3_rename,
	.list = s3_list,
	.size = s3_size,
	.describe = s3_describe,
	.free = store_free,
};

static KvcL2Adapter *
s3_open(const KvcOptions *options, GError **error)
{
	S3Store *store = store_new(options);
	double connect_s = kvc_options_get_double(options, "connection_timeout");
	double idle_s = kvc_options_get_double(options, "request_timeout");
	g_autofree char *location = NULL;

	if (!check(store, options, error) || !start(store, options, error)) {
		store_free(store);
		return NULL;
	}
	location = g_strdup_printf("%s%s/%s", store->base_url, store->base_path, store->prefix);
	const KvcConnectorConfig config = {
		.adapter_ops = &s3_adapter_ops,
		.ops = &s3_ops,
		.store = store,
		.location = location,
		.io_mode = g_str_has_prefix(store->base_url, "https") ? "https" : "http",
		.n_workers = (unsigned)kvc_options_get_int(options, "s3_num_io_threads"),
		.max_bytes_in_flight = kvc_options_get_size(options, "max_bytes_in_flight"),
		.connect_timeout_ns = (int64_t)(connect_s * 1e9),
		.request_timeout_ns = (int64_t)(idle_s * 1e9),
		.persist = kvc_options_get_bool(options, "persist_enabled"),
	};
	return kvc_connector_new(&config, error);
}

static const KvcL2AdapterOps s3_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "s3",
	.summary = "S3-compatible object store, with the names of LMCache's s3",
	.options = s3_options,
	.shared_by_default = true,
	.open = s3_open,
	KVC_CONNECTOR_SLOTS,
	.rename_key = kvc_connector_rename_key,
	.set_attributes = kvc_connector_set_attributes,
	.list = kvc_connector_list,
	.get_changes = kvc_connector_get_changes,
	.usage = kvc_connector_usage,
};

KVC_REGISTER(kvc_register_l2_adapter, s3_adapter_ops)
