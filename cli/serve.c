/* `sluice serve`: answers requests over HTTP until it is told to stop. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "model.h"
#include "out.h"
#include "service.h"

typedef struct serve_options {
    sl_common_options common;
    const char *host, *model_name, *key_file, *certificate, *key;
    sl_opt_list listen, keys, hosts, origins;
    sl_opt_count port, places, queue, drain;
    int log; /* text, json, none */
} serve_options;

enum { DEFAULT_PORT = 8080, MOST_ADDRESSES = SL_OPT_MAX_LIST };

#define AT(member) offsetof(serve_options, member)
static const sl_opt options_table[] = {
    {.name = "host",
     .type = SL_OPT_TEXT,
     .offset = AT(host),
     .value_name = "ADDRESS",
     .help = "the address to listen on (default: 127.0.0.1, this machine alone)"},
    {.name = "port",
     .type = SL_OPT_COUNT,
     .offset = AT(port),
     .value_name = "N",
     .max = 65535,
     .help = "the port (default: 8080); 0 takes any free one"},
    {.name = "listen",
     .type = SL_OPT_LIST,
     .offset = AT(listen),
     .value_name = "ADDRESS",
     .help = "\"address:port\", \"[address]:port\" or \"unix:/path\" instead; may be given several "
             "times"},
    {.name = "api-key",
     .type = SL_OPT_LIST,
     .offset = AT(keys),
     .value_name = "KEY",
     .help = "a key that requests must have; may be given several times. Other users of the "
             "machine can see it here: better in SLUICE_API_KEY or a file"},
    {.name = "api-key-file",
     .type = SL_OPT_TEXT,
     .offset = AT(key_file),
     .value_name = "FILE",
     .help = "keys, one a line"},
    {.name = "allow-host",
     .type = SL_OPT_LIST,
     .offset = AT(hosts),
     .value_name = "NAME",
     .help = "a name that clients may call this server by, besides localhost and the addresses it "
             "listens on; * for any; may be given several times"},
    {.name = "allow-origin",
     .type = SL_OPT_LIST,
     .offset = AT(origins),
     .value_name = "ORIGIN",
     .help = "let pages of this origin (\"https://example.org\", or *) call; may be given several "
             "times"},
    {.name = "tls-cert",
     .type = SL_OPT_TEXT,
     .offset = AT(certificate),
     .value_name = "FILE",
     .help = "serve TLS with this certificate (PEM)"},
    {.name = "tls-key",
     .type = SL_OPT_TEXT,
     .offset = AT(key),
     .value_name = "FILE",
     .help = "and its key (PEM)"},
    {.name = "parallel",
     .type = SL_OPT_COUNT,
     .offset = AT(places),
     .value_name = "N",
     .min = 1,
     .max = 1024,
     .help = "make up to N answers at a time (default: 4), each with a context of its own; an "
             "answer does not depend on it"},
    {.name = "queue",
     .type = SL_OPT_COUNT,
     .offset = AT(queue),
     .value_name = "N",
     .max = 1000000,
     .help = "let up to N requests wait (default: 64); more are refused with 429"},
    {.name = "model-name",
     .type = SL_OPT_TEXT,
     .offset = AT(model_name),
     .value_name = "NAME",
     .help = "the model's name for clients (default: its own, or its file's)"},
    {.name = "shutdown-timeout",
     .type = SL_OPT_COUNT,
     .offset = AT(drain),
     .value_name = "SECONDS",
     .max = 86400,
     .help = "when stopping, let answers go on for so long (default: 30)"},
    {.name = "log",
     .type = SL_OPT_CHOICE,
     .offset = AT(log),
     .value_name = "text|json|none",
     .help = "a line on standard error for each request"},
};
#undef AT

/* ---- signals ---- */

static sl_http *served; /* for the handler; sl_http_stop may be called there */

static void on_signal(int number)
{
    (void)number;
    sl_http_stop(served);
}

static void catch_signals(sl_http *http)
{
    struct sigaction action = {.sa_handler = on_signal};
    served = http;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* The server is going to be freed: a further signal ends the program as it always does. */
static void leave_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    served = NULL;
}

/* ---- serving ---- */

static void log_line(void *context, const char *line, size_t n)
{
    (void)context;
    sl_err_printf("%.*s\n", (int)n, line);
}

static void set_list(const sl_opt_list *list, const char *const **items, size_t *n)
{
    *items = list->items;
    *n = list->n;
}

static sl_status make_settings(const serve_options *options, const sl_engine *engine,
                               const char *const *addresses, sl_service_settings *out,
                               sl_error *err)
{
    static const sl_http_log_format formats[] = {SL_HTTP_LOG_TEXT, SL_HTTP_LOG_JSON,
                                                 SL_HTTP_LOG_NONE};
    *out = sl_service_settings_default(engine);
    out->model_id = options->model_name;
    SL_TRY(sl_common_context(&options->common, engine, out->worker.context, &out->worker.context,
                             err));
    if (options->places.set)
        out->worker.n_places = (unsigned)options->places.value;
    if (options->queue.set)
        out->worker.queue = (size_t)options->queue.value;
    sl_http_settings *http = &out->http;
    set_list(&options->listen, &http->addresses, &http->n_addresses);
    if (options->listen.n == 0) {
        http->addresses = addresses;
        http->n_addresses = 1;
    }
    set_list(&options->keys, &http->keys, &http->n_keys);
    set_list(&options->hosts, &http->hosts, &http->n_hosts);
    set_list(&options->origins, &http->origins, &http->n_origins);
    http->key_file = options->key_file;
    http->tls_certificate = options->certificate;
    http->tls_key = options->key;
    if (options->drain.set)
        http->limits.drain_ms = (uint32_t)options->drain.value * 1000;
    http->log_format = formats[options->log];
    http->log_line = log_line;
    return SL_OK;
}

static void announce(const serve_options *options, const sl_service *service,
                     const sl_service_settings *settings, const char *host)
{
    if (options->listen.n > 0) {
        for (size_t i = 0; i < options->listen.n; i++)
            sl_err_printf("%s is served on %s\n", sl_service_model(service),
                          options->listen.items[i]);
    } else {
        const bool is_v6 = strchr(host, ':') != NULL;
        sl_err_printf("%s is served on %s://%s%s%s:%u\n", sl_service_model(service),
                      options->certificate ? "https" : "http", is_v6 ? "[" : "", host,
                      is_v6 ? "]" : "", sl_http_port(sl_service_http(service), 0));
    }
    sl_err_printf("up to %u answers at a time of %u tokens each, %zu requests may wait; Ctrl-C "
                  "stops\n",
                  settings->worker.n_places, settings->worker.context, settings->worker.queue);
}

static int serve(const serve_options *options, sl_engine *engine)
{
    sl_error err;
    sl_service *service = NULL;
    sl_service_settings settings;
    const char *host = options->host ? options->host : "127.0.0.1";
    const unsigned port = options->port.set ? (unsigned)options->port.value : DEFAULT_PORT;
    char address[300];
    const char *const addresses[] = {address};
    snprintf(address, sizeof address, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    sl_status status = make_settings(options, engine, addresses, &settings, &err);
    if (status == SL_OK)
        status = sl_service_create(engine, &settings, &service, &err);
    if (status == SL_OK) {
        catch_signals(sl_service_http(service));
        announce(options, service, &settings, host);
        status = sl_service_run(service, &err);
        leave_signals();
    }
    sl_service_free(service);
    return status == SL_OK ? SL_EXIT_DONE : sl_fail_with(&err);
}

static int run_serve(int argc, char *const *argv)
{
    sl_args args;
    serve_options options = {0};
    int exit_status = sl_opts_parse(&sl_command_serve, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    if (options.listen.n > 0 && (options.host || options.port.set))
        exit_status = sl_usage_error("serve", "--listen takes the place of --host and --port");
    else if (!options.certificate != !options.key)
        exit_status = sl_usage_error("serve", "--tls-cert and --tls-key go together");
    if (exit_status < 0) {
        sl_engine *engine = NULL;
        const sl_engine_params params = sl_common_engine_params(&options.common);
        exit_status = sl_model_open(args.items[0], &params, &engine);
        if (exit_status < 0)
            exit_status = serve(&options, engine);
        sl_engine_close(engine);
    }
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_serve = {
    .name = "serve",
    .usage = "MODEL",
    .summary = "Answers requests over HTTP: OpenAI's API, and routes of its own.",
    .details =
        "Listens on this machine alone unless told otherwise. Answers are those of sluice run, "
        "whoever else is served at the same time. Ctrl-C (or SIGTERM) lets the answers in "
        "progress end, a second one stops at once.",
    .min_args = 1,
    .max_args = 1,
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .common = SL_TAKES_CONTEXT | SL_TAKES_COMPUTE | SL_TAKES_KV,
    .run = run_serve,
};
