/* SPDX-License-Identifier: Apache-2.0 */

/* The L2 adapter "resp": values in Redis or Valkey, by the connector framework. See README.md. */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <kvcache/registry.h>

#include "resp-cluster.h"

#define GIB 1073741824.0

static const KvcOptionSpec resp_options[] = {
	{.name = "host", .type = KVC_OPTION_STRING, .help = "name or address of the server"},
	{.name = "port",
	 .type = KVC_OPTION_INT,
	 .default_value = "6379",
	 .min = 1,
	 .max = 65535,
	 .help = "TCP port of the server"},
	{.name = "unix_socket",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of the server's socket, instead of host and port"},
	{.name = "cluster_mode",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "false",
	 .help = "the server is a node of a cluster"},
	{.name = "startup_nodes",
	 .type = KVC_OPTION_STRING,
	 .help = "nodes of a cluster, host:port with ';' between, instead of host and port"},
	{.name = "username",
	 .type = KVC_OPTION_STRING,
	 .help = "user of AUTH; needs password_file"},
	{.name = "password_file",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of a file whose first line is the password"},
	{.name = "tls_enable", .type = KVC_OPTION_BOOL, .default_value = "false", .help = "TLS"},
	{.name = "tls_ca_file",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of the certificates that are trusted, instead of the system's"},
	{.name = "tls_cert_file",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of our own certificate, and those it needs; needs tls_key_file"},
	{.name = "tls_key_file",
	 .type = KVC_OPTION_STRING,
	 .help = "absolute path of its private key"},
	{.name = "tls_server_name",
	 .type = KVC_OPTION_STRING,
	 .help = "name that the server's certificate has to have, instead of host"},
	{.name = "tls_verify",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "only a server whose certificate is good"},
	{.name = "database_id",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .max = INT32_MAX,
	 .help = "number of the database"},
	{.name = "num_workers",
	 .type = KVC_OPTION_INT,
	 .default_value = "8",
	 .min = 1,
	 .max = 256,
	 .help = "connections that load and store"},
	{.name = "connection_timeout",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "5",
	 .min = 0.01,
	 .max = 3600,
	 .help = "seconds until a connection has to be there"},
	{.name = "request_timeout",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "5",
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
	 .help = "capacity in GiB that df shows; 0: the server's maxmemory"},
	{.name = NULL},
};

static const KvcL2AdapterOps resp_adapter_ops, resp_cluster_adapter_ops;

static void
doubt_free(void *data)
{
	RespDoubt *doubt = data;

	g_free(doubt->run_id);
	g_free(doubt);
}

void
resp_store_free(void *user)
{
	RespStore *store = user;

	g_ptr_array_unref(store->nodes);
	g_free(store->slots);
	g_ptr_array_unref(store->doubtful);
	g_ptr_array_unref(store->windows);
	pthread_mutex_destroy(&store->lock);
	g_free(store->server_error);
	g_free(store->host);
	g_free(store->unix_socket);
	g_free(store->username);
	g_free(store->password_file);
	g_free(store->tls.ca_file);
	g_free(store->tls.cert_file);
	g_free(store->tls.key_file);
	g_free(store->tls.server_name);
	g_free(store);
}

static RespStore *
store_new(const KvcOptions *options)
{
	RespStore *store = g_new0(RespStore, 1);

	store->host = g_strdup(kvc_options_get_string(options, "host"));
	store->port = (int)kvc_options_get_int(options, "port");
	store->unix_socket = g_strdup(kvc_options_get_string(options, "unix_socket"));
	store->username = g_strdup(kvc_options_get_string(options, "username"));
	store->password_file = g_strdup(kvc_options_get_string(options, "password_file"));
	store->tls = (RespTlsOptions){
		.enable = kvc_options_get_bool(options, "tls_enable"),
		.verify = kvc_options_get_bool(options, "tls_verify"),
		.ca_file = g_strdup(kvc_options_get_string(options, "tls_ca_file")),
		.cert_file = g_strdup(kvc_options_get_string(options, "tls_cert_file")),
		.key_file = g_strdup(kvc_options_get_string(options, "tls_key_file")),
		.server_name = g_strdup(kvc_options_get_string(options, "tls_server_name")),
	};
	store->database = (int)kvc_options_get_int(options, "database_id");
	store->capacity_bytes =
		(uint64_t)(kvc_options_get_double(options, "max_capacity_gb") * GIB);
	store->idle_ns = (int64_t)(kvc_options_get_double(options, "request_timeout") * 1e9);
	store->connect_ns = (int64_t)(kvc_options_get_double(options, "connection_timeout") * 1e9);
	store->is_cluster = kvc_options_get_bool(options, "cluster_mode");
	store->nodes = g_ptr_array_new_with_free_func(resp_node_free);
	store->slots = store->is_cluster ? g_new0(RespNode *, RESP_SLOTS) : NULL;
	pthread_mutex_init(&store->lock, NULL);
	store->doubtful = g_ptr_array_new_with_free_func(doubt_free);
	store->windows = resp_windows_new();
	return store;
}

static bool
fail(GError **error, const char *text)
{
	g_set_error_literal(error, KVC_OPTIONS_ERROR, EINVAL, text);
	return false;
}

/* Read at each connect; here only whether it is there, and who else can read it. */
static bool
check_password_file(const RespStore *store, GError **error)
{
	g_autofree char *text = NULL;
	struct stat st;

	if (!store->password_file)
		return !store->username || fail(error, "username needs a password_file");
	if (!g_path_is_absolute(store->password_file))
		return fail(error, "password_file is not an absolute path");
	if (!g_file_get_contents(store->password_file, &text, NULL, error))
		return false;
	explicit_bzero(text, strlen(text));
	if (stat(store->password_file, &st) == 0 && (st.st_mode & 077))
		g_warning("resp: others may read or write the password file \"%s\": chmod 600 it",
			  store->password_file);
	return true;
}

static bool
check_tls(const RespStore *store, GError **error)
{
	const RespTlsOptions *tls = &store->tls;
	const char *const paths[] = {tls->ca_file, tls->cert_file, tls->key_file};

	if (!tls->enable) {
		/* Somebody believes that it is on. */
		if (tls->ca_file || tls->cert_file || tls->key_file || tls->server_name)
			return fail(error, "tls_ca_file, tls_cert_file, tls_key_file and "
					   "tls_server_name need tls_enable=true");
		return true;
	}
	if (store->unix_socket)
		return fail(error, "tls_enable needs a host: a unix_socket has no TLS");
	if (!tls->cert_file != !tls->key_file)
		return fail(error, "tls_cert_file and tls_key_file go together");
	for (size_t i = 0; i < G_N_ELEMENTS(paths); i++)
		if (paths[i] && !g_path_is_absolute(paths[i]))
			return fail(error, "tls_ca_file, tls_cert_file and tls_key_file are "
					   "absolute paths");
	return resp_tls_check(tls, error);
}

/* The nodes that are asked who there is. */
static bool
add_startup_nodes(RespStore *store, const char *startup_nodes, GError **error)
{
	g_auto(GStrv) nodes = g_strsplit_set(startup_nodes ? startup_nodes : "", "; ,", -1);
	bool is_good = true;

	if (store->unix_socket || store->database)
		return fail(error, "a cluster has no unix_socket, and no database_id but 0");
	if (!store->host == !startup_nodes)
		return fail(error, "a cluster is named by host (and port), or by startup_nodes");
	pthread_mutex_lock(&store->lock);
	if (store->host)
		resp_node_get_locked(store, store->host, store->port);
	for (char **node = nodes; *node; node++)
		is_good &= !**node || resp_node_parse_locked(store, *node, "127.0.0.1");
	pthread_mutex_unlock(&store->lock);
	if (!is_good || store->nodes->len == 0)
		return fail(error, "startup_nodes is not a list of host:port");
	return true;
}

static bool
check(RespStore *store, const char *startup_nodes, GError **error)
{
	if (store->is_cluster)
		return add_startup_nodes(store, startup_nodes, error) && check_tls(store, error) &&
		       check_password_file(store, error);
	if (startup_nodes)
		return fail(error, "startup_nodes needs cluster_mode=true");
	if (!store->host == !store->unix_socket)
		return fail(error, "the server is named by host (and port), or by unix_socket");
	if (store->unix_socket && !g_path_is_absolute(store->unix_socket))
		return fail(error, "unix_socket is not an absolute path");
	return check_tls(store, error) && check_password_file(store, error);
}

static const KvcConnectorOps resp_ops = {
	.struct_size = sizeof(KvcConnectorOps),
	.max_batch = RESP_MAX_BATCH,
	.connect = resp_connect,
	.disconnect = resp_disconnect,
	.interrupt = resp_interrupt,
	.get = resp_get,
	.set = resp_set,
	.exists = resp_exists,
	.remove = resp_remove,
	.set_attributes = resp_set_attributes,
	.rename = resp_rename,
	.list = resp_list,
	.size = resp_size,
	.describe = resp_describe,
	.free = resp_store_free,
};

static KvcL2Adapter *
resp_open(const KvcOptions *options, GError **error)
{
	RespStore *store = store_new(options);
	const char *startup_nodes = kvc_options_get_string(options, "startup_nodes");
	g_autofree char *location = NULL;

	if (!check(store, startup_nodes, error)) {
		resp_store_free(store);
		return NULL;
	}
	if (store->is_cluster)
		location = startup_nodes ? g_strdup(startup_nodes)
					 : g_strdup_printf("%s:%d", store->host, store->port);
	else
		location = store->unix_socket
				   ? g_strdup_printf("%s/%d", store->unix_socket, store->database)
				   : g_strdup_printf("%s:%d/%d", store->host, store->port,
						     store->database);
	const KvcConnectorConfig config = {
		.adapter_ops = store->is_cluster ? &resp_cluster_adapter_ops : &resp_adapter_ops,
		.ops = store->is_cluster ? &resp_cluster_ops : &resp_ops,
		.store = store,
		.location = location,
		.io_mode = store->unix_socket  ? "unix"
			   : store->is_cluster ? (store->tls.enable ? "cluster-tls" : "cluster")
			   : store->tls.enable ? "tls"
					       : "tcp",
		.n_workers = (unsigned)kvc_options_get_int(options, "num_workers"),
		.max_bytes_in_flight = kvc_options_get_size(options, "max_bytes_in_flight"),
		.connect_timeout_ns = store->connect_ns,
		.request_timeout_ns = store->idle_ns,
		.persist = kvc_options_get_bool(options, "persist_enabled"),
	};
	return kvc_connector_new(&config, error);
}

static const KvcL2AdapterOps resp_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "resp",
	.summary = "Redis or Valkey, with the names of LMCache's resp",
	.options = resp_options,
	.shared_by_default = true,
	.open = resp_open,
	KVC_CONNECTOR_SLOTS,
	.rename_key = kvc_connector_rename_key,
	.set_attributes = kvc_connector_set_attributes,
	.list = kvc_connector_list,
	.get_changes = kvc_connector_get_changes,
	.usage = kvc_connector_usage,
};

/* Of an adapter that was opened for a cluster: there is no rename over nodes. */
static const KvcL2AdapterOps resp_cluster_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "resp",
	.summary = "a cluster of Redis or Valkey",
	.options = resp_options,
	.shared_by_default = true,
	.open = resp_open,
	KVC_CONNECTOR_SLOTS,
	.set_attributes = kvc_connector_set_attributes,
	.list = kvc_connector_list,
	.get_changes = kvc_connector_get_changes,
	.usage = kvc_connector_usage,
};

KVC_REGISTER(kvc_register_l2_adapter, resp_adapter_ops)
