/* The same server behind TLS, with a certificate made here. */
#include "http_client.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static sl_test_server server;
static char certificate[64], key[64], other_key[64];
static SSL_CTX *client;

static EVP_PKEY *write_key(const char *path)
{
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    FILE *file = fopen(path, "w");
    assert_non_null(pair);
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, pair, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
    return pair;
}

static int make_certificate(void **state)
{
    (void)state;
    snprintf(certificate, sizeof certificate, "/tmp/sl_test_cert_%d.pem", (int)getpid());
    snprintf(key, sizeof key, "/tmp/sl_test_key_%d.pem", (int)getpid());
    snprintf(other_key, sizeof other_key, "/tmp/sl_test_other_%d.pem", (int)getpid());
    EVP_PKEY_free(write_key(other_key));
    EVP_PKEY *pair = write_key(key);
    X509 *cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, pair);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1,
                               0);
    X509_set_issuer_name(cert, name);
    assert_true(X509_sign(cert, pair, EVP_sha256()) > 0);
    FILE *file = fopen(certificate, "w");
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(pair);
    client = SSL_CTX_new(TLS_client_method());
    assert_int_equal(SSL_CTX_load_verify_locations(client, certificate, NULL), 1);
    SSL_CTX_set_verify(client, SSL_VERIFY_PEER, NULL);
    signal(SIGPIPE, SIG_IGN); /* of the clients in this process */
    return 0;
}

static int remove_certificate(void **state)
{
    (void)state;
    SSL_CTX_free(client);
    unlink(certificate);
    unlink(key);
    unlink(other_key);
    return 0;
}

static sl_http_settings tls_settings(void)
{
    sl_http_settings settings = sl_test_settings();
    settings.tls_certificate = certificate;
    settings.tls_key = key;
    return settings;
}

static int set_up(void **state)
{
    (void)state;
    const sl_http_settings settings = tls_settings();
    sl_test_remember_resources();
    sl_test_start(&server, &settings);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sl_test_stop(&server);
    sl_test_assert_resources();
    return 0;
}

#define H         "Host: localhost\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

static SSL *open_tls(void)
{
    SSL *ssl = SSL_new(client);
    assert_int_equal(SSL_set_fd(ssl, sl_test_connect(&server)), 1);
    assert_int_equal(SSL_connect(ssl), 1);
    return ssl;
}

static void close_tls(SSL *ssl)
{
    const int fd = SSL_get_fd(ssl);
    SSL_free(ssl);
    sl_test_close(fd);
}

static void send_tls(SSL *ssl, const char *text)
{
    assert_int_equal(SSL_write(ssl, text, (int)strlen(text)), (int)strlen(text));
}

/* Reads until the text has come; false at the end of the connection. */
static bool read_tls(SSL *ssl, const char *text)
{
    static char bytes[1 << 16];
    size_t n = 0;
    bytes[0] = '\0';
    while (!strstr(bytes, text)) {
        if (n + 1 == sizeof bytes) { /* keep the end */
            memmove(bytes, bytes + n - 1024, 1024);
            n = 1024;
        }
        const int got = SSL_read(ssl, bytes + n, (int)(sizeof bytes - 1 - n));
        if (got <= 0)
            return false;
        n += (size_t)got;
        bytes[n] = '\0';
    }
    return true;
}

static void test_requests(void **state)
{
    (void)state;
    SSL *ssl = open_tls();
    for (int i = 0; i < 20; i++) {
        send_tls(ssl, GET("/items/some"));
        assert_true(read_tls(ssl, "\r\n\r\nsome"));
    }
    send_tls(ssl, GET("/items/1") GET("/items/2"));
    assert_true(read_tls(ssl, "\r\n\r\n2"));
    send_tls(ssl, GET("/events"));
    assert_true(read_tls(ssl, "0\r\n\r\n"));
    send_tls(ssl, "GET /big HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    assert_true(read_tls(ssl, "xxxx"));
    char bytes[4096];
    int n;
    while ((n = SSL_read(ssl, bytes, sizeof bytes)) > 0)
        assert_int_equal(bytes[n - 1], 'x');
    /* A proper end, not a cut. */
    assert_int_equal(SSL_get_error(ssl, n), SSL_ERROR_ZERO_RETURN);
    close_tls(ssl);
}

static void test_streams_and_leaving(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        SSL *ssl = open_tls();
        send_tls(ssl, i % 2 ? GET("/stream") : GET("/hold"));
        sl_test_wait(&server.n_held, i + 1);
        if (i % 2) {
            sl_test_send_event(&server, "{\"a\": 1}");
            assert_true(read_tls(ssl, "data: {\"a\": 1}\n\n"));
        }
        if (i % 4 < 2) /* with and without saying goodbye */
            SSL_shutdown(ssl);
        close_tls(ssl);
        sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], i + 1);
    }
}

/* close_notify alone: no more comes, but an answer is awaited. */
static void test_half_close(void **state)
{
    (void)state;
    SSL *ssl = open_tls();
    send_tls(ssl, GET("/hold"));
    sl_test_wait(&server.n_held, 1);
    assert_int_equal(SSL_shutdown(ssl), 0);
    assert_true(read_tls(ssl, "100 Continue\r\n\r\n"));
    sl_test_answer_held(&server);
    assert_true(read_tls(ssl, "\r\n\r\nheld"));
    close_tls(ssl);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), 0);
}

static void test_no_tls(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        const int fd = sl_test_connect(&server);
        sl_test_send(fd, i % 2 ? GET("/health") : "\x16\x03\x01\x02\x00\x01\x00\x01");
        if (i % 2) /* an alert, then the end */
            while (!sl_test_at_end(fd))
                ;
        sl_test_close(fd);
    }
    SSL *ssl = open_tls();
    send_tls(ssl, GET("/health"));
    assert_true(read_tls(ssl, "\r\n\r\nok"));
    close_tls(ssl);
}

static void test_slow_handshake(void **state)
{
    (void)state;
    sl_http_settings settings = tls_settings();
    settings.limits.head_ms = 60;
    sl_test_stop(&server);
    sl_test_start(&server, &settings);
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, "\x16\x03\x01");
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
}

static void test_versions(void **state)
{
    (void)state;
    SSL_CTX *old = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(old, TLS1_1_VERSION);
    SSL *ssl = SSL_new(old);
    SSL_set_fd(ssl, sl_test_connect(&server));
    assert_true(SSL_connect(ssl) <= 0);
    close_tls(ssl);
    SSL_CTX_free(old);
    /* The protocol that is spoken is agreed on. */
    ssl = SSL_new(client);
    static const unsigned char offers[] = "\x02h2\x08http/1.1";
    SSL_set_alpn_protos(ssl, offers, sizeof offers - 1);
    SSL_set_fd(ssl, sl_test_connect(&server));
    assert_int_equal(SSL_connect(ssl), 1);
    const unsigned char *agreed;
    unsigned n;
    SSL_get0_alpn_selected(ssl, &agreed, &n);
    assert_int_equal(n, 8);
    assert_memory_equal(agreed, "http/1.1", 8);
    close_tls(ssl);
}

static void test_stopping(void **state)
{
    (void)state;
    sl_http_settings settings = tls_settings();
    settings.limits.drain_ms = 50;
    sl_test_stop(&server);
    sl_test_start(&server, &settings);
    SSL *ssl = open_tls();
    send_tls(ssl, GET("/stream"));
    sl_test_wait(&server.n_held, 1);
    sl_http_stop(server.http);
    assert_true(read_tls(ssl, "\"code\": \"stopping\""));
    sl_test_join(&server);
    close_tls(ssl);
    sl_test_free(&server);
    sl_test_start(&server, &settings);
}

static void test_wrong_files(void **state)
{
    (void)state;
    sl_error err;
    sl_http *http = NULL;
    sl_http_settings settings = tls_settings();
    settings.tls_key = other_key;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_IO, "TLS");
    settings.tls_key = "/nonexistent/key.pem";
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_IO, "/nonexistent/key.pem");
    settings.tls_key = key;
    settings.tls_certificate = key;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_IO, key);
    settings.tls_certificate = NULL;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, "both");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_requests), TEST(test_streams_and_leaving), TEST(test_half_close),
        TEST(test_no_tls),   TEST(test_slow_handshake),      TEST(test_versions),
        TEST(test_stopping), TEST(test_wrong_files),
    };
    return cmocka_run_group_tests(tests, make_certificate, remove_certificate);
}
