/* Who may ask: keys, hosts, origins. */
#include "http_client.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sl_test_server server;
static sl_http_settings settings;

static int set_up(void **state)
{
    (void)state;
    settings = sl_test_settings();
    return 0;
}

static void expect(const char *method_and_path, const char *headers, int status, const char *part)
{
    char request[1024];
    snprintf(request, sizeof request, "%s HTTP/1.1\r\n%s\r\n", method_and_path, headers);
    sl_test_expect(&server, request, status, part);
}

/* The value of a header of the answer; "" when there is none. */
static const char *header(const char *method_and_path, const char *headers, const char *name)
{
    static char text[256];
    char request[1024];
    snprintf(request, sizeof request, "%s HTTP/1.1\r\n%s\r\n", method_and_path, headers);
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, request);
    sl_test_answer answer = sl_test_read(fd, false);
    if (!sl_test_header(&answer, name, text, sizeof text))
        text[0] = '\0';
    sl_test_answer_free(&answer);
    sl_test_close(fd);
    return text;
}

#define H "Host: localhost\r\n"

static void test_keys(void **state)
{
    (void)state;
    const char *const keys[] = {"first-key", "second-key"};
    settings.keys = keys;
    settings.n_keys = 2;
    settings.log_format = SL_HTTP_LOG_JSON;
    sl_test_start(&server, &settings);
    expect("GET /health", H, 200, "ok");
    expect("GET /items/a", H "Authorization: Bearer first-key\r\n", 200, "a");
    expect("GET /items/a", H "authorization: bearer  second-key\r\n", 200, "a");
    expect("GET /items/a", H "X-Api-Key: second-key\r\n", 200, "a");
    expect("OPTIONS /items/a", H, 204, NULL);
    const char *const wrong[] = {
        "",
        "Authorization: Bearer first-key2\r\n",
        "Authorization: Bearer first-ke\r\n",
        "Authorization: Bearer First-key\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Basic first-key\r\n",
        "Authorization: first-key\r\n",
        "X-Api-Key: \r\n",
        "X-Api-Key: first-key,second-key\r\n",
        "Cookie: key=first-key\r\n",
    };
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++) {
        char headers[256];
        snprintf(headers, sizeof headers, H "%s", wrong[i]);
        expect("GET /items/a", headers, 401, "\"code\": \"invalid_api_key\"");
        /* Without a key nothing is told of what there is. */
        expect("GET /nowhere", headers, 401, NULL);
        expect("PUT /items/a", headers, 401, NULL);
    }
    assert_string_equal(header("GET /items/a", H, "WWW-Authenticate"), "Bearer");
    expect("GET /nowhere", H "X-Api-Key: first-key\r\n", 404, NULL);
    /* Before a byte of the body. */
    expect("POST /echo", H "Content-Length: 1000000\r\n", 401, NULL);
    sl_test_stop(&server);
    assert_non_null(strstr(server.all_lines, "\"key\": 1}"));
    assert_null(strstr(server.all_lines, "second-key"));
}

static void test_key_file(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/sl_test_keys_%d", (int)getpid());
    const char *const good = "# keys\n\nfile-key-1  \r\nfile-key-2";
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(good, file);
    fclose(file);
    const char *const keys[] = {"list-key"};
    settings.keys = keys;
    settings.n_keys = 1;
    settings.key_file = path;
    sl_test_start(&server, &settings);
    expect("GET /items/a", H "X-Api-Key: list-key\r\n", 200, NULL);
    expect("GET /items/a", H "X-Api-Key: file-key-1\r\n", 200, NULL);
    expect("GET /items/a", H "X-Api-Key: file-key-2\r\n", 200, NULL);
    expect("GET /items/a", H "X-Api-Key: # keys\r\n", 401, NULL);
    sl_test_stop(&server);
    char long_key[1100];
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = '\0';
    const struct {
        const char *text;
        sl_status status;
    } bad[] = {
        {"", SL_ERR_ARGUMENT},      {"# nothing\n", SL_ERR_ARGUMENT},
        {"a b\n", SL_ERR_ARGUMENT}, {"caf\xC3\xA9\n", SL_ERR_ARGUMENT},
        {long_key, SL_ERR_LIMIT},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        sl_http *http = NULL;
        sl_error err;
        file = fopen(path, "w");
        fputs(bad[i].text, file);
        fclose(file);
        assert_refused(sl_http_create(&settings, &http, &err), bad[i].status, path);
    }
    unlink(path);
    sl_http *http = NULL;
    sl_error err;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_IO, path);
    settings.key_file = NULL;
    const char *const empty[] = {""};
    settings.keys = empty;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, "keys");
}

static void test_hosts(void **state)
{
    (void)state;
    sl_test_start(&server, &settings);
    const char *const good[] = {"localhost",   "LOCALHOST:8080", "localhost.", "127.0.0.1",
                                "127.0.0.1:1", "127.8.9.1",      "[::1]:8080", "[0:0:0:0:0:0:0:1]"};
    const char *const bad[] = {"example.org",
                               "localhost.example.org",
                               "127.0.0.1.example.org",
                               "192.168.0.1",
                               "[::2]",
                               "xlocalhost",
                               "127.0.0.1..",
                               "2130706433"};
    char headers[128];
    for (size_t i = 0; i < SL_COUNTOF(good); i++) {
        snprintf(headers, sizeof headers, "Host: %s\r\n", good[i]);
        expect("GET /health", headers, 200, NULL);
    }
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        snprintf(headers, sizeof headers, "Host: %s\r\n", bad[i]);
        expect("GET /health", headers, 403, "host_not_allowed");
    }
    /* A URL in the request line counts instead of the header. */
    expect("GET http://example.org/health", H, 403, "host_not_allowed");
    sl_test_stop(&server);

    const char *const hosts[] = {"chat.example.org"};
    settings.hosts = hosts;
    settings.n_hosts = 1;
    sl_test_start(&server, &settings);
    expect("GET /health", "Host: Chat.Example.org:443\r\n", 200, NULL);
    expect("GET /health", H, 403, NULL);
    expect("GET /health", "Host: 127.0.0.1\r\n", 403, NULL);
    sl_test_stop(&server);

    const char *const any[] = {"*"};
    settings.hosts = any;
    sl_test_start(&server, &settings);
    expect("GET /health", "Host: whatever.example\r\n", 200, NULL);
    sl_test_stop(&server);

    /* On all interfaces: every address, and no name but localhost. */
    const char *const wildcard[] = {"0.0.0.0:0"};
    settings.n_hosts = 0;
    settings.addresses = wildcard;
    sl_test_start(&server, &settings);
    expect("GET /health", "Host: 192.168.0.1:8080\r\n", 200, NULL);
    expect("GET /health", "Host: [fe80::1]\r\n", 200, NULL);
    expect("GET /health", H, 200, NULL);
    expect("GET /health", "Host: example.org\r\n", 403, NULL);
    sl_test_stop(&server);
}

static void test_origins(void **state)
{
    (void)state;
    sl_test_start(&server, &settings);
    expect("GET /health", H "Origin: https://example.org\r\n", 403, "origin_not_allowed");
    expect("GET /health", H "Origin: null\r\n", 403, NULL);
    expect("GET /health", H "Origin: http://localhost:1234\r\n", 403, NULL);
    expect("GET /health", "Host: localhost:81\r\nOrigin: http://localhost:81\r\n", 200, NULL);
    expect("GET /health", H "Origin: https://localhost\r\n", 200, NULL);
    assert_string_equal(
        header("GET /health", H "Origin: http://localhost\r\n", "Access-Control-Allow-Origin"), "");
    expect("OPTIONS /echo",
           H "Origin: https://example.org\r\nAccess-Control-Request-Method: POST\r\n", 403, NULL);
    sl_test_stop(&server);

    const char *const origins[] = {"https://example.org"}, *const keys[] = {"a-key"};
    settings.origins = origins;
    settings.n_origins = 1;
    settings.keys = keys;
    settings.n_keys = 1;
    sl_test_start(&server, &settings);
#define PREFLIGHT \
    H "Origin: https://example.org\r\nAccess-Control-Request-Method: POST\r\n" \
      "Access-Control-Request-Headers: content-type, x-stainless-os\r\n"
    expect("OPTIONS /echo", PREFLIGHT, 204, NULL);
    assert_string_equal(header("OPTIONS /echo", PREFLIGHT, "Access-Control-Allow-Origin"),
                        "https://example.org");
    assert_string_equal(header("OPTIONS /echo", PREFLIGHT, "Access-Control-Allow-Methods"),
                        "POST, PUT, OPTIONS");
    assert_string_equal(header("OPTIONS /echo", PREFLIGHT, "Access-Control-Allow-Headers"),
                        "content-type, x-stainless-os");
    assert_string_equal(header("OPTIONS /echo", PREFLIGHT, "Access-Control-Allow-Credentials"), "");
    assert_string_equal(
        header("GET /health", H "Origin: https://example.org\r\n", "Access-Control-Allow-Origin"),
        "https://example.org");
    assert_string_equal(header("GET /health", H "Origin: https://example.org\r\n", "Vary"),
                        "Origin");
    /* The page is told why. */
    assert_string_equal(
        header("GET /items/a", H "Origin: https://example.org\r\n", "Access-Control-Allow-Origin"),
        "https://example.org");
    expect("GET /health", H "Origin: https://example.org.evil.example\r\n", 403, NULL);
    expect("GET /health", H "Origin: http://example.org\r\n", 403, NULL);
    sl_test_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_keys, set_up),
        cmocka_unit_test_setup(test_key_file, set_up),
        cmocka_unit_test_setup(test_hosts, set_up),
        cmocka_unit_test_setup(test_origins, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
