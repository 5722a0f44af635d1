/* SPDX-License-Identifier: Apache-2.0 */

/*
 * TLS, by OpenSSL itself: what hiredis has of it (since 1.0) reads and writes for hiredis only, and
 * this adapter has its own loops. The socket is nonblocking, and whoever calls waits for it.
 *
 * Certificates and keys are read at each connect, as the password is: they are renewed while we
 * run.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "resp.h"

struct RespTls {
	SSL *ssl;
};

/* ---- The socket: OpenSSL's own BIO would end the process with SIGPIPE ------------------------ */

static int
socket_write(BIO *bio, const char *data, int bytes)
{
	int fd = GPOINTER_TO_INT(BIO_get_data(bio));
	ssize_t n = send(fd, data, (size_t)bytes, MSG_NOSIGNAL);

	BIO_clear_retry_flags(bio);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		BIO_set_retry_write(bio);
	return (int)n;
}

static int
socket_read(BIO *bio, char *data, int bytes)
{
	int fd = GPOINTER_TO_INT(BIO_get_data(bio));
	ssize_t n = recv(fd, data, (size_t)bytes, 0);

	BIO_clear_retry_flags(bio);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		BIO_set_retry_read(bio);
	return (int)n;
}

static long
socket_control(BIO *bio, int command, long number, void *pointer)
{
	return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *socket_method;

static void
make_socket_method(void)
{
	socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvcache socket");
	BIO_meth_set_write(socket_method, socket_write);
	BIO_meth_set_read(socket_method, socket_read);
	BIO_meth_set_ctrl(socket_method, socket_control);
}

static BIO *
socket_new(int fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_socket_method);
	BIO *bio = BIO_new(socket_method);
	BIO_set_data(bio, GINT_TO_POINTER(fd));
	BIO_set_init(bio, 1);
	return bio;
}

/* ---- Errors -------------------------------------------------------------------------------- */

/* One side does not accept the certificate of the other. */
static bool
is_about_trust(unsigned long error)
{
	switch (ERR_GET_REASON(error)) {
	case SSL_R_CERTIFICATE_VERIFY_FAILED:
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
		return true;
	default:
		return false;
	}
}

/* The -errno of what OpenSSL has to say, noted; of SSL if there is one. */
static int
take_error(RespStore *store, const SSL *ssl)
{
	unsigned long error = ERR_peek_error();
	const char *reason = ERR_reason_error_string(error);
	long verified = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
	bool is_trust = is_about_trust(error);
	g_autofree char *text = NULL;

	if (ERR_GET_REASON(error) == SSL_R_CERTIFICATE_VERIFY_FAILED && verified != X509_V_OK)
		reason = X509_verify_cert_error_string(verified);
	text = g_strconcat("TLS: ", reason ? reason : "protocol error", NULL);
	ERR_clear_error();
	if (is_trust)
		resp_note_untrusted(store, text);
	else
		resp_note_unreachable(store, text);
	return is_trust ? -EKEYREJECTED : -EPROTO;
}

/* After an operation that returned RC: -EAGAIN: when *EVENTS of the socket are there; else why. */
static int
find_error(RespTls *tls, RespStore *store, int rc, short *events)
{
	int errnum = errno;

	switch (SSL_get_error(tls->ssl, rc)) {
	case SSL_ERROR_WANT_READ:
		*events = POLLIN;
		return -EAGAIN;
	case SSL_ERROR_WANT_WRITE:
		*events = POLLOUT;
		return -EAGAIN;
	case SSL_ERROR_ZERO_RETURN:
		return -ECONNRESET;
	case SSL_ERROR_SYSCALL:
		return errnum ? -errnum : -ECONNRESET;
	default:
		if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
			ERR_clear_error();
			return -ECONNRESET;
		}
		return take_error(store, tls->ssl);
	}
}

/* ---- Certificates -------------------------------------------------------------------------- */

static bool
fail(GError **error, const char *what, const char *path)
{
	unsigned long number = ERR_peek_last_error();
	const char *reason = ERR_reason_error_string(number);

	g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "%s%s%s%s: %s", what, path ? " \"" : "",
		    path ? path : "", path ? "\"" : "", reason ? reason : "cannot be read");
	ERR_clear_error();
	return false;
}

/* Nobody is there to be asked. */
static int
no_passphrase(char *text, int size, int is_for_writing, void *user)
{
	return 0;
}

static bool
load_files(SSL_CTX *context, const RespTlsOptions *options, GError **error)
{
	const char *ca = options->ca_file, *cert = options->cert_file, *key = options->key_file;

	if (ca ? SSL_CTX_load_verify_locations(context, ca, NULL) != 1
	       : SSL_CTX_set_default_verify_paths(context) != 1)
		return fail(error, "tls_ca_file", ca);
	if (!cert)
		return true;
	if (SSL_CTX_use_certificate_chain_file(context, cert) != 1)
		return fail(error, "tls_cert_file", cert);
	if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
	    SSL_CTX_check_private_key(context) != 1)
		return fail(error, "tls_key_file", key);
	return true;
}

static SSL_CTX *
context_new(const RespTlsOptions *options, GError **error)
{
	ERR_clear_error();
	SSL_CTX *context = SSL_CTX_new(TLS_client_method());

	if (!context) {
		fail(error, "TLS", NULL);
		return NULL;
	}
	SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
	SSL_CTX_set_mode(context,
			 SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_read_ahead(context, 1);
	SSL_CTX_set_default_passwd_cb(context, no_passphrase);
	SSL_CTX_set_verify(context, options->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
	if (load_files(context, options, error))
		return context;
	SSL_CTX_free(context);
	return NULL;
}

bool
resp_tls_check(const RespTlsOptions *options, GError **error)
{
	SSL_CTX *context = context_new(options, error);
	struct stat st;

	if (!context)
		return false;
	SSL_CTX_free(context);
	if (options->key_file && stat(options->key_file, &st) == 0 && (st.st_mode & 077))
		g_warning("resp: others may read or write the key \"%s\": chmod 600 it",
			  options->key_file);
	if (!options->verify)
		g_warning("resp: tls_verify=false: whoever is between can read and change what is "
			  "stored, and sees the password");
	return true;
}

/* ---- Connections --------------------------------------------------------------------------- */

/* The server is to be NAME. */
static bool
set_name(SSL *ssl, const char *name)
{
	if (g_hostname_is_ip_address(name))
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
	SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

RespTls *
resp_tls_new(RespStore *store, const char *host, int fd)
{
	const RespTlsOptions *options = &store->tls;
	const char *name = options->server_name ? options->server_name : host;
	g_autoptr(GError) error = NULL;
	SSL_CTX *context = context_new(options, &error);

	if (!context) {
		resp_note_untrusted(store, error->message);
		return NULL;
	}
	SSL *ssl = SSL_new(context);
	SSL_CTX_free(context);
	if (!ssl || !set_name(ssl, name)) {
		take_error(store, NULL);
		SSL_free(ssl);
		return NULL;
	}
	BIO *bio = socket_new(fd);
	SSL_set_bio(ssl, bio, bio);
	RespTls *tls = g_new(RespTls, 1);
	tls->ssl = ssl;
	return tls;
}

void
resp_tls_free(RespTls *tls)
{
	if (!tls)
		return;
	SSL_free(tls->ssl);
	g_free(tls);
}

bool
resp_tls_has_input(const RespTls *tls)
{
	return SSL_has_pending(tls->ssl);
}

int
resp_tls_handshake(RespTls *tls, RespStore *store, short *events)
{
	ERR_clear_error();
	errno = 0;
	int rc = SSL_connect(tls->ssl);

	return rc == 1 ? 0 : find_error(tls, store, rc, events);
}

/*
 * Why the other side ended the connection, if it has told: with TLS 1.3 it refuses our certificate
 * after our part of the handshake. ERROR if it has not.
 */
static int
find_reason(RespTls *tls, RespStore *store, int error)
{
	char data;
	size_t got;
	short events;

	ERR_clear_error();
	errno = 0;
	int rc = SSL_read_ex(tls->ssl, &data, 1, &got);
	if (rc != 1 && find_error(tls, store, rc, &events) == -EKEYREJECTED)
		return -EKEYREJECTED;
	return error;
}

ssize_t
resp_tls_send(RespTls *tls, RespStore *store, const void *data, size_t bytes, short *events)
{
	size_t sent;

	ERR_clear_error();
	errno = 0;
	int rc = SSL_write_ex(tls->ssl, data, bytes, &sent);
	int error = rc == 1 ? 0 : find_error(tls, store, rc, events);

	if (error == -EPIPE || error == -ECONNRESET)
		error = find_reason(tls, store, error);
	return error < 0 ? error : (ssize_t)sent;
}

ssize_t
resp_tls_receive(RespTls *tls, RespStore *store, void *data, size_t bytes, short *events)
{
	size_t got;

	ERR_clear_error();
	errno = 0;
	int rc = SSL_read_ex(tls->ssl, data, bytes, &got);

	return rc == 1 ? (ssize_t)got : find_error(tls, store, rc, events);
}
