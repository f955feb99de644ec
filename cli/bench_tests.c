/* Which tests are run, and with which engines: from options to lists. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "bench.h"
#include "opts.h"

/* ---- lists ---- */

sl_status sl_bench_parse_list(const char *option, const char *text, uint32_t min, uint32_t max,
                              sl_bench_list *out, sl_error *err)
{
    out->n = 0;
    if (strcmp(text, "none") == 0)
        return SL_OK;
    for (const char *at = text;; at++) {
        char item[32];
        uint64_t value;
        const size_t n = strcspn(at, ",");
        snprintf(item, sizeof item, "%.*s", (int)sl_min_size(n, sizeof item - 1), at);
        if (!sl_parse_count(item, min, max, &value))
            return sl_fail(err, SL_ERR_ARGUMENT,
                           "%s: '%s' is not a whole number from %u to %u, nor a list of them",
                           option, item, min, max);
        if (out->n == SL_BENCH_MAX_LIST)
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: at most %d numbers", option,
                           SL_BENCH_MAX_LIST);
        for (size_t i = 0; i < out->n; i++) {
            if (out->items[i] == value)
                return sl_fail(err, SL_ERR_ARGUMENT, "%s: %s is given twice", option, item);
        }
        out->items[out->n++] = (uint32_t)value;
        at += n;
        if (*at == '\0')
            return SL_OK;
    }
}

/* ---- tests ---- */

void sl_bench_test_name(const sl_bench_test *test, char name[SL_BENCH_NAME_BYTES])
{
    char depth[16] = "", sequences[16] = "";
    if (test->depth > 0)
        snprintf(depth, sizeof depth, " @%u", test->depth);
    if (test->n_sequences > 1)
        snprintf(sequences, sizeof sequences, " x%u", test->n_sequences);
    switch (test->kind) {
    case SL_BENCH_LOAD:
        snprintf(name, SL_BENCH_NAME_BYTES, "load");
        break;
    case SL_BENCH_FIRST:
        snprintf(name, SL_BENCH_NAME_BYTES, "first token %u", test->n_tokens);
        break;
    case SL_BENCH_PROMPT:
        snprintf(name, SL_BENCH_NAME_BYTES, "pp%u%s", test->n_tokens, depth);
        break;
    case SL_BENCH_DECODE:
        snprintf(name, SL_BENCH_NAME_BYTES, "tg%u%s%s", test->n_tokens, sequences, depth);
        break;
    }
}

static void sort(sl_bench_list *list)
{
    for (size_t i = 1; i < list->n; i++) {
        for (size_t k = i; k > 0 && list->items[k] < list->items[k - 1]; k--) {
            const uint32_t item = list->items[k];
            list->items[k] = list->items[k - 1];
            list->items[k - 1] = item;
        }
    }
}

typedef struct test_list {
    sl_bench_test *tests;
    size_t n;
    uint64_t context;
} test_list;

static void add(test_list *list, sl_bench_kind kind, uint32_t n_tokens, uint32_t depth,
                uint32_t n_sequences)
{
    list->tests[list->n++] = (sl_bench_test){kind, n_tokens, depth, n_sequences};
    const uint64_t needed = (uint64_t)depth + n_tokens;
    if (needed > list->context)
        list->context = needed;
}

sl_status sl_bench_tests(const sl_bench_limits *limits, sl_bench_test **out, size_t *n,
                         uint32_t *context, sl_error *err)
{
    sl_bench_list depths = limits->depths;
    if (depths.n == 0)
        depths = (sl_bench_list){.items = {0}, .n = 1};
    sort(&depths);
    const size_t most =
        depths.n * (limits->prompts.n + limits->steps.n) + limits->steps.n * limits->batches.n + 2;
    test_list list = {.tests = sl_alloc_array(SL_MEM_GENERAL, most, sizeof *list.tests)};
    if (!list.tests)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the list of tests");
    add(&list, SL_BENCH_LOAD, 0, 0, 1);
    if (limits->first > 0)
        add(&list, SL_BENCH_FIRST, limits->first, 0, 1);
    for (size_t d = 0; d < depths.n; d++) {
        const uint32_t depth = depths.items[d];
        for (size_t i = 0; i < limits->prompts.n; i++)
            add(&list, SL_BENCH_PROMPT, limits->prompts.items[i], depth, 1);
        for (size_t i = 0; i < limits->steps.n; i++)
            add(&list, SL_BENCH_DECODE, limits->steps.items[i], depth, 1);
        /* Sequences that begin together share nothing: batches are measured from the start only. */
        for (size_t i = 0; d == 0 && i < limits->steps.n; i++) {
            for (size_t b = 0; b < limits->batches.n; b++) {
                if (limits->batches.items[b] > 1 || depth > 0)
                    add(&list, SL_BENCH_DECODE, limits->steps.items[i], 0,
                        limits->batches.items[b]);
            }
        }
    }
    *out = list.tests;
    *n = list.n;
    *context = (uint32_t)sl_min_size((size_t)list.context, UINT32_MAX);
    return SL_OK;
}

size_t sl_bench_sequences(const sl_bench_test *tests, size_t n)
{
    size_t most = 1;
    for (size_t i = 0; i < n; i++)
        most = sl_max_size(most, tests[i].n_sequences);
    return most;
}

/* Only the first takes part in all tests. */
uint32_t sl_bench_context_of(const sl_bench_test *tests, size_t n, size_t k)
{
    uint32_t context = 1;
    for (size_t i = 0; i < n; i++) {
        const uint32_t needed = tests[i].depth + tests[i].n_tokens;
        if (k < tests[i].n_sequences && needed > context)
            context = needed;
    }
    return context;
}

/* ---- arms ---- */

static bool set_threads(sl_engine_params *params, const char *value)
{
    uint64_t n;
    if (!sl_parse_count(value, 1, UINT16_MAX, &n))
        return false;
    params->n_threads = (unsigned)n;
    return true;
}

static bool set_kv(sl_engine_params *params, const char *value)
{
    params->kv_f32 = strcmp(value, "f32") == 0;
    return params->kv_f32 || strcmp(value, "f16") == 0;
}

static bool set_gdn(sl_engine_params *params, const char *value)
{
    params->gdn_serial = strcmp(value, "serial") == 0;
    return params->gdn_serial || strcmp(value, "chunk") == 0;
}

static bool set_prefill_chunk(sl_engine_params *params, const char *value)
{
    uint64_t n;
    if (!sl_parse_count(value, 1, 65536, &n))
        return false;
    params->max_rows = (uint32_t)n;
    return true;
}

static bool set_isa(sl_engine_params *params, const char *value)
{
    params->isa = value;
    return *value != '\0'; /* opening an engine knows the names */
}

/* What --ab can vary. value lives as long as the arm. */
static const struct axis {
    const char *name;
    bool (*set)(sl_engine_params *params, const char *value);
    const char *values; /* for the message */
} axes[] = {
    {"threads", set_threads, "numbers of threads"},
    {"isa", set_isa, "instruction-set levels"},
    {"kv", set_kv, "f16 and f32"},
    {"gdn", set_gdn, "chunk and serial"},
    {"prefill-chunk", set_prefill_chunk, "numbers of tokens, 1 to 65536"},
};

static sl_status find_axis(sl_str name, const struct axis **out, sl_error *err)
{
    for (size_t i = 0; i < SL_COUNTOF(axes); i++) {
        if (sl_str_is(name, axes[i].name)) {
            *out = &axes[i];
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_ARGUMENT,
                   "--ab: '%.*s' cannot be varied; threads, isa, kv, gdn and prefill-chunk can",
                   (int)sl_min_size(name.n_bytes, 32), name.data);
}

sl_status sl_bench_arms(const char *text, const sl_engine_params *params,
                        sl_bench_arm arms[SL_BENCH_MAX_ARMS], size_t *n, sl_error *err)
{
    memset(arms, 0, SL_BENCH_MAX_ARMS * sizeof *arms);
    for (size_t a = 0; a < SL_BENCH_MAX_ARMS; a++)
        arms[a].first_token = -1;
    *n = 1;
    arms[0].params = *params;
    if (!text)
        return SL_OK;
    const struct axis *axis = NULL;
    const size_t n_name = strcspn(text, "=");
    SL_TRY(find_axis((sl_str){text, n_name}, &axis, err));
    *n = 0;
    for (const char *at = text + n_name; *at;) {
        const char *value = at + 1;
        const size_t n_value = strcspn(value, ",");
        if (*n == SL_BENCH_MAX_ARMS)
            return sl_fail(err, SL_ERR_ARGUMENT, "--ab: at most %d arms", SL_BENCH_MAX_ARMS);
        sl_bench_arm *arm = &arms[(*n)++];
        snprintf(arm->name, sizeof arm->name, "%s=%.*s", axis->name, (int)sl_min_size(n_value, 32),
                 value);
        arm->params = *params;
        if (!axis->set(&arm->params, arm->name + n_name + 1))
            return sl_fail(err, SL_ERR_ARGUMENT, "--ab: %s takes %s, not '%s'", axis->name,
                           axis->values, arm->name + n_name + 1);
        for (size_t i = 0; i + 1 < *n; i++) {
            if (strcmp(arms[i].name, arm->name) == 0)
                return sl_fail(err, SL_ERR_ARGUMENT, "--ab: %s is given twice", arm->name);
        }
        at = value + n_value;
    }
    if (*n < 2)
        return sl_fail(err, SL_ERR_ARGUMENT, "--ab: two values at least, as in %s=A,B", axis->name);
    return SL_OK;
}
