/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Instead of resp-tls.c where OpenSSL was not there to build it: TLS is refused at the start. Not
 * called resp-*.c, as those together are the module.
 */

#include <errno.h>

#include "resp.h"

bool
resp_tls_check(const RespTlsOptions *options, GError **error)
{
	g_set_error_literal(error, KVC_OPTIONS_ERROR, ENOTSUP,
			    "tls_enable: this build has no TLS (it was built without OpenSSL)");
	return false;
}

RespTls *
resp_tls_new(RespStore *store, const char *host, int fd)
{
	return NULL;
}

void
resp_tls_free(RespTls *tls)
{
}

bool
resp_tls_has_input(const RespTls *tls)
{
	return false;
}

int
resp_tls_handshake(RespTls *tls, RespStore *store, short *events)
{
	return -ENOTSUP;
}

ssize_t
resp_tls_send(RespTls *tls, RespStore *store, const void *data, size_t bytes, short *events)
{
	return -ENOTSUP;
}

ssize_t
resp_tls_receive(RespTls *tls, RespStore *store, void *data, size_t bytes, short *events)
{
	return -ENOTSUP;
}
