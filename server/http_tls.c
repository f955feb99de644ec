/* Owns the use of OpenSSL for connections. Refuses versions before TLS 1.2, renegotiation, and a
 * key that does not belong to its certificate. */
#include "http_internal.h"

#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>

static sl_status tls_fail(const char *what, sl_error *err)
{
    char reason[256] = "unknown reason";
    const unsigned long code = ERR_peek_last_error();
    if (code != 0)
        ERR_error_string_n(code, reason, sizeof reason);
    ERR_clear_error();
    return sl_fail(err, SL_ERR_IO, "TLS: %s: %s", what, reason);
}

/* Of the protocols that a client offers, HTTP/1.1 is the one spoken here. */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                           const unsigned char *in, unsigned n_in, void *context)
{
    (void)ssl, (void)context;
    static const unsigned char spoken[] = "\x08http/1.1";
    unsigned char *selected;
    if (SSL_select_next_proto(&selected, n_out, spoken, sizeof spoken - 1, in, n_in) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = selected;
    return SSL_TLSEXT_ERR_OK;
}

sl_status sl_http_tls_create(const char *certificate, const char *key, SSL_CTX **out, sl_error *err)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    if (!tls)
        return tls_fail("no context", err);
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    SSL_CTX_set_options(tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(tls, select_protocol, NULL);
    sl_status status = SL_OK;
    if (SSL_CTX_use_certificate_chain_file(tls, certificate) != 1)
        status = tls_fail(certificate, err);
    else if (SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1)
        status = tls_fail(key, err);
    else if (SSL_CTX_check_private_key(tls) != 1)
        status = tls_fail("key and certificate do not belong together", err);
    if (status != SL_OK)
        SSL_CTX_free(tls);
    else
        *out = tls;
    return status;
}

struct bufferevent *sl_http_tls_bufferevent(sl_http *http, int fd)
{
    SSL *ssl = SSL_new(http->tls);
    if (!ssl)
        return NULL;
    /* Where this fails it frees ssl, and leaves fd open. */
    return bufferevent_openssl_socket_new(http->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                          BEV_OPT_CLOSE_ON_FREE);
}

/* Says that nothing more comes, so that the client can tell the end from a cut. */
void sl_http_tls_goodbye(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl && SSL_is_init_finished(ssl))
        (void)SSL_shutdown(ssl);
    ERR_clear_error();
}
