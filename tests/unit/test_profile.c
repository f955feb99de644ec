/* `sluice profile`: records of ops, the sums made of them, and the three forms they are shown in.
 * Times are never compared with numbers, only with each other. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "ceilings.h"
#include "model_build.h"
#include "models.h"
#include "process.h"
#include "profile_report.h"

#define DENSE   "tests/data/models/rand-r1-q8_0.gguf"
#define MIXTURE "tests/data/models/rand-moe-q8_0.gguf"

static void expect(sl_process process, int exit_status, const char *part_of_out,
                   const char *part_of_err)
{
    sl_process_expect(&process, exit_status, part_of_out, part_of_err);
    sl_process_free(&process);
}

/* ---- records ---- */

static void eval_pieces(sl_engine *engine, sl_state *state, const size_t *pieces, size_t n,
                        float *logits)
{
    static const int32_t tokens[64] = {1, 2, 3};
    sl_error err;
    for (size_t i = 0; i < n; i++) {
        const sl_eval_item item = {
            .state = state, .tokens = tokens, .n_tokens = pieces[i], .logits = logits};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    }
}

static void test_records(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path("rand-r1-q8_0.gguf"), 2, false);
    sl_state *state;
    sl_profile_op *ops;
    size_t n_ops;
    float *logits = sl_alloc(SL_MEM_GENERAL, sl_engine_vocab(engine) * sizeof *logits);
    const size_t pieces[] = {5, 1, 7};
    assert_refused(sl_engine_profile_ops(engine, &ops, &n_ops, &err), SL_ERR_ARGUMENT,
                   "no profile was started");
    assert_ok(sl_state_create(engine, 64, &state, &err));
    eval_pieces(engine, state, pieces, 1, logits); /* not recorded */
    assert_ok(sl_engine_profile_start(engine, &err));
    eval_pieces(engine, state, pieces, 3, logits);
    eval_pieces(engine, state, pieces, 1, NULL); /* without logits */
    sl_engine_profile_stop(engine);
    eval_pieces(engine, state, pieces, 2, logits); /* not recorded */
    assert_ok(sl_engine_profile_ops(engine, &ops, &n_ops, &err));
    sl_model_info model;
    sl_engine_model_info(engine, &model);
    assert_true(n_ops > 5u * model.n_layers);
    double head_ops = 0;
    size_t n_gdn = 0, n_attention = 0;
    for (size_t i = 0; i < n_ops; i++) {
        const sl_profile_op *op = &ops[i];
        assert_int_equal(op->calls, 4);
        assert_true(op->longest_ns <= op->busy_ns && op->busy_ns <= 2 * op->longest_ns);
        assert_true(op->longest_ns <= op->wall_ns);
        assert_true(op->activation_bytes >= 0 && op->memory_bytes >= 0);
        assert_true(op->layer >= -1 && op->layer < (int)model.n_layers);
        n_gdn += strcmp(op->op, "gdn") == 0;
        n_attention += strcmp(op->op, "attention") == 0;
        if (strcmp(op->op, "gdn") == 0)
            assert_string_equal(op->part, "gated delta");
        if (strcmp(op->op, "attention") == 0)
            assert_string_equal(op->part, "attention");
        if (strcmp(op->op, "head") == 0)
            head_ops = op->int8_ops;
        if (strcmp(op->name, "ffn_out") == 0)
            assert_string_equal(op->part, "feed-forward");
    }
    assert_int_equal(n_gdn, model.n_gdn_layers);
    assert_int_equal(n_attention, model.n_attention_layers);
    assert_string_equal(ops[0].part, "embedding");
    assert_string_equal(ops[n_ops - 1].part, "head");
    /* Three of the four runs asked for one row of logits each. */
    assert_true(head_ops == 3 * 2.0 * model.hidden * model.vocab);
    sl_free(ops);

    /* Starting again forgets; engines without weights have nothing to record. */
    assert_ok(sl_engine_profile_start(engine, &err));
    assert_ok(sl_engine_profile_ops(engine, &ops, &n_ops, &err));
    assert_int_equal(ops[0].calls, 0);
    assert_true(ops[0].wall_ns == 0 && ops[0].activation_bytes == 0);
    sl_free(ops);
    sl_free(logits);
    sl_state_free(state);
    sl_engine_close(engine);
}

static void test_without_memory(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path("rand-r1-q8_0.gguf"), 1, false);
    sl_state *state;
    sl_profile_op *ops;
    size_t n_ops;
    const size_t pieces[] = {3, 3};
    assert_ok(sl_state_create(engine, 64, &state, &err));
    eval_pieces(engine, state, pieces, 2, NULL);
    sl_status status = SL_ERR_MEMORY;
    uint64_t n_failures = 0;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_state_reset(state);
        sl_mem_fail_at(n, false);
        status = sl_engine_profile_start(engine, &err);
        if (status == SL_OK) {
            eval_pieces(engine, state, pieces, 2, NULL); /* is good all the same */
            status = sl_engine_profile_ops(engine, &ops, &n_ops, &err);
        }
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        n_failures += status != SL_OK;
    }
    assert_true(n_failures >= 3);
    sl_free(ops);
    sl_state_free(state);
    sl_engine_close(engine);

    engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.level = SL_OPEN_HEADERS;
    assert_ok(sl_engine_open(sl_model_path("rand-r1-q8_0.gguf"), &params, &engine, &err));
    assert_refused(sl_engine_profile_start(engine, &err), SL_ERR_ARGUMENT, "without its weights");
    sl_engine_close(engine);
}

/* ---- sums and ceilings ---- */

static const sl_profile_op made_up[] = {
    /* 1 GB in 100 ms where 20 GB/s allow 50 ms. */
    {.part = "attention",
     .op = "project",
     .name = "q",
     .type = "Q8_0",
     .layer = 0,
     .calls = 1,
     .wall_ns = 60000000,
     .busy_ns = 90000000,
     .longest_ns = 50000000,
     .weight_bytes = 6e8,
     .memory_bytes = 6e8,
     .int8_ops = 1e9},
    {.part = "attention",
     .op = "project",
     .name = "q",
     .type = "Q8_0",
     .layer = 1,
     .calls = 1,
     .wall_ns = 40000000,
     .busy_ns = 70000000,
     .longest_ns = 40000000,
     .weight_bytes = 4e8,
     .memory_bytes = 4e8,
     .int8_ops = 1e9},
    /* 40 Gop in 50 ms where 1 TOPS allows 40 ms. */
    {.part = "feed-forward",
     .op = "project",
     .name = "up",
     .type = "Q8_0",
     .layer = 0,
     .calls = 1,
     .wall_ns = 50000000,
     .busy_ns = 100000000,
     .longest_ns = 50000000,
     .weight_bytes = 1e6,
     .memory_bytes = 1e6,
     .int8_ops = 4e10},
    /* Another type is another row; arithmetic of floats. */
    {.part = "feed-forward",
     .op = "project",
     .name = "up",
     .type = "F32",
     .layer = 1,
     .calls = 1,
     .wall_ns = 20000000,
     .float_ops = 1e9},
    {.part = "feed-forward",
     .op = "add",
     .name = "",
     .type = "",
     .layer = 1,
     .calls = 1,
     .wall_ns = 5000000,
     .activation_bytes = 1e6},
};

static const sl_ceilings made_up_ceilings = {.read_gbs = 20,
                                             .read_gbs_1 = 12,
                                             .int8_tops = 1,
                                             .f32_tflops = 0.1,
                                             .amx_tops = 4,
                                             .n_threads = 2,
                                             .int8_loop = "a",
                                             .f32_loop = "b"};

static sl_profile_phase build(const sl_profile_limits *limits)
{
    sl_error err;
    sl_profile_phase phase = {.name = "prefill", .n_tokens = 4, .n_threads = 2};
    phase.wall_ns = 180000000;
    assert_ok(sl_profile_phase_build(made_up, SL_COUNTOF(made_up), limits, &phase, &err));
    return phase;
}

static void test_sums(void **state)
{
    (void)state;
    sl_profile_limits limits = {.ceilings = &made_up_ceilings, .isa = "avx2"};
    sl_profile_phase phase = build(&limits);
    assert_int_equal(phase.n_rows, 4);
    const sl_profile_row *q = &phase.rows[0], *up = &phase.rows[1];
    assert_string_equal(q->label, "project q");
    assert_int_equal(q->n_ops, 2);
    assert_int_equal(q->wall_ns, 100000000);
    assert_int_equal(q->limit, SL_LIMIT_MEMORY);
    assert_true(q->least_ns == 5e7);
    assert_true(sl_profile_reached(q) == 0.5);
    assert_true(sl_profile_imbalance(q, 2) > 0.11 && sl_profile_imbalance(q, 2) < 0.112);
    assert_true(sl_profile_waiting(q, 2) > 0.199 && sl_profile_waiting(q, 2) < 0.201);
    assert_int_equal(up->limit, SL_LIMIT_INT8);
    assert_true(sl_profile_reached(up) == 0.8);
    assert_int_equal(phase.rows[2].limit, SL_LIMIT_FLOAT);
    assert_int_equal(phase.rows[3].limit, SL_LIMIT_NONE);
    /* 50 ms above the ceiling, more than any other row. */
    assert_ptr_equal(sl_profile_fix_first(&phase), q);
    assert_int_equal(phase.n_parts, 2);
    assert_int_equal(phase.parts[1].wall_ns, 75000000);
    assert_true(phase.parts[1].least_ns == 4e7 + 1e7);
    assert_int_equal(phase.parts[1].limit, SL_LIMIT_INT8);
    assert_int_equal(phase.total.wall_ns, 175000000);
    assert_true(phase.total.least_ns == 5e7 + 4e7 + 1e7);
    sl_profile_phase_free(&phase);

    limits.isa = "amx";
    phase = build(&limits);
    assert_true(phase.rows[1].least_ns == 1e7);
    sl_profile_phase_free(&phase);
    limits.ceilings = NULL; /* then the longest */
    phase = build(&limits);
    assert_int_equal(phase.rows[1].limit, SL_LIMIT_NONE);
    assert_ptr_equal(sl_profile_fix_first(&phase), &phase.rows[0]);
    sl_profile_phase_free(&phase);
}

/* The rate that counts for the level; the better bandwidth; a buffer that was too small. */
static void test_ceilings(void **state)
{
    (void)state;
    sl_error err;
    sl_buf text;
    sl_ceilings c = made_up_ceilings;
    assert_true(sl_ceilings_read_gbs(&c) == 20);
    c.read_gbs_1 = 25;
    assert_true(sl_ceilings_read_gbs(&c) == 25);
    assert_true(sl_ceilings_int8_tops(&c, "amx") == 4);
    assert_true(sl_ceilings_int8_tops(&c, "avx512vnni") == 1);
    static const struct {
        const char *isa;
        size_t read_bytes;
        const char *text;
    } cases[] = {
        {"amx", 1 << 30,
         "20.0 GB/s read (one thread 25.0), 4.000 int8 TOPS (tiles), 0.100 TFLOP/s (b)"},
        {"avx2", 1 << 30,
         "20.0 GB/s read (one thread 25.0), 1.000 int8 TOPS (a), 0.100 TFLOP/s (b)"},
        {"", 16 << 20,
         "20.0 GB/s read (one thread 25.0), 1.000 int8 TOPS (a), 0.100 TFLOP/s (b), 4.000 int8 "
         "TOPS "
         "on tiles; for want of memory only 16 MiB were read, caches take part"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        c.read_bytes = cases[i].read_bytes;
        sl_buf_init(&text, SL_MEM_GENERAL, 1 << 20);
        assert_ok(sl_ceilings_append(&c, cases[i].isa, &text, &err));
        assert_string_equal(text.data, cases[i].text);
        sl_buf_free(&text);
    }
}

/* A page of made-up figures and of a model whose name would like to be markup. */
static void test_page_of_hostile_names(void **state)
{
    (void)state;
    sl_error err;
    const sl_profile_limits limits = {.ceilings = &made_up_ceilings, .isa = "avx2"};
    sl_profile_report report = {.ceilings = &made_up_ceilings, .n_phases = 1};
    report.model = (sl_model_info){.path = "<script>\"&'</script>\033[1m\xFF",
                                   .main_type = "Q8_0",
                                   .isa = "scalar",
                                   .device = "cpu",
                                   .n_threads = 2};
    report.phases[0] = build(&limits);
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    sl_buf page;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_buf_init(&page, SL_MEM_GENERAL, 1 << 20);
        sl_mem_fail_at(n, false);
        status = sl_profile_append_html(&report, &page, &err);
        sl_mem_fail_at(0, false);
        if (status == SL_OK)
            break;
        assert_int_equal(status, SL_ERR_MEMORY);
        sl_buf_free(&page);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    assert_null(strstr(page.data, "<script"));
    assert_non_null(strstr(page.data, "&lt;script&gt;&quot;&amp;"));
    assert_non_null(strstr(page.data, "&lt;/script&gt;\uFFFD[1m\uFFFD</h1>"));
    assert_null(strstr(page.data, "nan"));
    assert_null(strstr(page.data, "inf"));
    sl_buf_free(&page);
    /* Nothing was measured at all: no division by it. */
    sl_profile_phase_free(&report.phases[0]);
    report.phases[0] = (sl_profile_phase){.name = "decode", .n_threads = 1};
    report.phases[0].total = (sl_profile_row){.part = "all ops", .type = ""};
    sl_buf_init(&page, SL_MEM_GENERAL, 1 << 20);
    assert_ok(sl_profile_append_html(&report, &page, &err));
    assert_null(strstr(page.data, "nan"));
    sl_buf_clear(&page);
    assert_ok(sl_profile_append_text(&report, &page, &err));
    assert_null(strstr(page.data, "nan"));
    sl_buf_free(&page);
}

/* ---- the command ---- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

static void check_phase(const json_t *phase, const char *name, double n_tokens, double depth)
{
    assert_string_equal(json_string_value(json_object_get(phase, "phase")), name);
    assert_true(number(phase, "tokens") == n_tokens && number(phase, "depth") == depth);
    const json_t *ops = json_object_get(phase, "ops"), *parts = json_object_get(phase, "parts");
    double sum_ns = 0, sum_shares = 0, part_ns = 0;
    bool has_gdn = false, has_attention = false, has_head = false;
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *op = json_array_get(ops, i);
        const char *label = json_string_value(json_object_get(op, "op"));
        sum_ns += number(op, "ns");
        sum_shares += number(op, "share");
        assert_true(number(op, "imbalance") >= 0 && number(op, "imbalance") <= 1);
        assert_true(number(op, "calls") >= number(op, "ops"));
        has_gdn = has_gdn || strcmp(label, "gdn") == 0;
        has_attention = has_attention || strcmp(label, "attention") == 0;
        has_head = has_head || strcmp(label, "head") == 0;
    }
    for (size_t i = 0; i < json_array_size(parts); i++)
        part_ns += number(json_array_get(parts, i), "ns");
    assert_true(has_gdn && has_attention && has_head);
    assert_true(sum_ns == number(phase, "ops_ns") && part_ns == sum_ns);
    assert_true(sum_ns <= number(phase, "wall_ns"));
    assert_true(sum_shares > 0.999 && sum_shares < 1.001);
    assert_true(json_is_object(json_object_get(phase, "fix_first")));
}

static json_t *parse(sl_process *process)
{
    json_error_t error;
    json_t *value = json_loadb(process->out, process->n_out, 0, &error);
    if (!value)
        fail_msg("%s in: %s", error.text, process->out);
    sl_process_free(process);
    return value;
}

static void test_json(void **state)
{
    (void)state;
    sl_process process = sl_sluice(NULL, "profile", DENSE, "--prefill", "9", "--decode", "3",
                                   "--depth", "5", "--json", "--threads", "2");
    sl_process_expect(&process, 0, "{", NULL);
    json_t *report = parse(&process);
    assert_true(number(json_object_get(report, "ceilings"), "read_gb_per_s") > 0);
    const json_t *phases = json_object_get(report, "phases");
    assert_int_equal(json_array_size(phases), 2);
    check_phase(json_array_get(phases, 0), "prefill", 9, 5);
    check_phase(json_array_get(phases, 1), "decode", 3, 5);
    const json_t *total = json_object_get(json_array_get(phases, 1), "total");
    assert_true(number(total, "calls") == 3 * number(total, "ops"));
    json_decref(report);

    process = sl_sluice(NULL, "profile", MIXTURE, "-p", "0", "-n", "2", "--ceilings=off", "--json",
                        "--isa", "scalar", "--kv", "f32");
    sl_process_expect(&process, 0, "route", NULL);
    report = parse(&process);
    assert_true(json_is_null(json_object_get(report, "ceilings")));
    assert_string_equal(json_string_value(json_object_get(report, "program")), "sluice profile");
    assert_string_equal(json_string_value(json_object_get(report, "isa")), "scalar");
    assert_string_equal(json_string_value(json_object_get(report, "kv")), "f32");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(report, "model"), "path")), MIXTURE);
    assert_true(json_is_string(json_object_get(json_object_get(report, "machine"), "cpu")));
    assert_true(json_string_length(json_object_get(report, "time")) == 20);
    assert_true(number(json_array_get(json_object_get(report, "phases"), 0),
                       "tokens_per_s_without_recording") > 0);
    assert_int_equal(json_array_size(json_object_get(report, "phases")), 1);
    json_decref(report);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    const size_t n = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    assert_true(n > 0);
    return text;
}

static void test_text_and_page(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", sl_build_path("profile-test.html"));
    expect(sl_sluice(NULL, "profile", DENSE, "-p", "4", "-n", "2", "--ceilings=off", "--html", path,
                     "-t", "2"),
           0, "what to fix first: ", NULL);
    char *page = read_file(path);
    unlink(path);
    const char *picture = strstr(page, "<svg");
    assert_non_null(picture);
    assert_null(strstr(picture + 1, "<svg"));
    assert_non_null(strstr(page, "prefers-color-scheme: dark"));
    static const char *const told[] = {"f16 KV", "without recording",
                                       "Uneven: ", "Waiting: ", "2 threads"};
    for (size_t i = 0; i < SL_COUNTOF(told); i++) {
        if (!strstr(page, told[i]))
            fail_msg("the page lacks %s", told[i]);
    }
    static const char *const outside[] = {"http", "src=", "href", "url(", "@import", "<script"};
    for (size_t i = 0; i < SL_COUNTOF(outside); i++) {
        if (strstr(page, outside[i]))
            fail_msg("the page has %s in it", outside[i]);
    }
    assert_null(strstr(page, "nan"));
    free(page);
    expect(sl_sluice(NULL, "profile", DENSE, "-p", "4", "-n", "0", "--ceilings=off", "--html",
                     "/no/such/folder/page.html"),
           1, NULL, "/no/such/folder/page.html");
    /* The text is there when the page fails at its end. */
    expect(sl_sluice(NULL, "profile", DENSE, "-p", "4", "-n", "0", "--ceilings=off", "--html",
                     "/dev/full"),
           1, "what to fix first: ", "/dev/full");
    sl_process_setup full = {.out_path = "/dev/full"};
    expect(sl_sluice(&full, "profile", DENSE, "-p", "4", "-n", "0", "--ceilings=off"), 1, NULL,
           "standard output");
}

/* The model itself, by any of its names, is nothing to write a page to. */
static void test_the_model_as_the_page(void **state)
{
    (void)state;
    const char *folder = sl_temp_make(), *model = sl_path(folder, "m.gguf");
    const char *link = sl_path(folder, "link.html"), *inside = sl_path(folder, "page.html");
    sl_write_text(model, "the only copy");
    sl_write_text(inside, "a file of a model in many files");
    assert_int_equal(symlink(model, link), 0);
    const char *const names[] = {model, link};
    for (size_t i = 0; i < SL_COUNTOF(names); i++)
        expect(sl_sluice(NULL, "profile", model, "--html", names[i]), 2, NULL,
               "is read as the model");
    expect(sl_sluice(NULL, "profile", folder, "--html", inside), 2, NULL, "is read as the model");
    expect(sl_sluice(NULL, "profile", model, "--html", ""), 2, NULL, "--html: the name");
    expect(sl_sluice(NULL, "profile", model, "--html", "-"), 2, NULL, "not standard output");
    expect(sl_sluice(NULL, "logits", model, "--tokens", "1", "--out", link), 2, NULL,
           "is read as the model");
    expect(sl_sluice(NULL, "logits", model, "--tokens", "1", "--out", ""), 2, NULL, "--out: the");
    char *text = read_file(model);
    assert_string_equal(text, "the only copy");
    free(text);
    sl_temp_remove(folder);
}

static void test_too_little_memory(void **state)
{
    (void)state;
    sl_process p =
        sl_sluice(NULL, "profile", "--shape", "35b-a3b", "--type", "f32", "--depth", "200000");
    sl_process_expect(&p, 1, NULL, "there is not enough memory\n");
    sl_process_expect(&p, 1, NULL, "2 states of 200512 tokens");
    sl_process_expect(&p, 1, NULL, "there is ");
    sl_process_free(&p);
}

static void test_refusals(void **state)
{
    (void)state;
    expect(sl_sluice(NULL, "profile"), 2, NULL, "either a MODEL or --shape");
    expect(sl_sluice(NULL, "profile", DENSE, "--shape", "0.8b"), 2, NULL, "either a MODEL or");
    expect(sl_sluice(NULL, "profile", DENSE, "--type", "q8_0"), 2, NULL, "--type goes with");
    expect(sl_sluice(NULL, "profile", "--shape", "0.7b"), 2, NULL, "0.7b");
    expect(sl_sluice(NULL, "profile", "--shape", "0.8b", "--type", "q9"), 2, NULL, "q9");
    expect(sl_sluice(NULL, "profile", DENSE, "-p", "0", "-n", "0"), 2, NULL, "nothing to measure");
    expect(sl_sluice(NULL, "profile", DENSE, "-p", "5000000"), 2, NULL,
           "lengths and depths come to 5000000 tokens, the model's context is");
    expect(sl_sluice(NULL, "profile", DENSE, "-d", "4294967295"), 2, NULL,
           "come to 4294967807 tokens, the model's context is");
    expect(sl_sluice(NULL, "profile", DENSE, "-p", "-1"), 2, NULL, "-p: '-1' is not");
    expect(sl_sluice(NULL, "profile", DENSE, "--threads", "0"), 2, NULL, "--threads");
    expect(sl_sluice(NULL, "profile", DENSE, "--threads", "100000"), 2, NULL, "--threads");
    expect(sl_sluice(NULL, "profile", DENSE, "--device", "cuda:99"), 2, NULL, "CUDA");
    expect(sl_sluice(NULL, "profile", DENSE, "--isa", "sse9"), 2, NULL, "'sse9' is no");
    expect(sl_sluice(NULL, "profile", "/no/such/model.gguf"), 3, NULL, "/no/such/model.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_ceilings),
        cmocka_unit_test(test_page_of_hostile_names),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_text_and_page),
        cmocka_unit_test(test_the_model_as_the_page),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
