/* `sluice bench`: its statistics, its lists of tests, what it reads of the machine, and the command
 * on a tiny model of random weights. No test looks at how long anything took. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/cpus.h"
#include "bench.h"
#include "model_build.h"
#include "process.h"
#include "shell.h"

/* ---- statistics ---- */

static void test_spread(void **state)
{
    (void)state;
    const double odd[] = {5, 1, 4, 2, 3}, even[] = {4, 1, 2, 3}, one[] = {7};
    sl_spread s = sl_spread_of(odd, 5);
    assert_true(s.n == 5 && s.median == 3 && s.min == 1 && s.max == 5 && s.q1 == 2 && s.q3 == 4);
    s = sl_spread_of(even, 4);
    assert_true(s.median == 2.5 && s.q1 == 1.75 && s.q3 == 3.25);
    s = sl_spread_of(one, 1);
    assert_true(s.median == 7 && s.min == 7 && s.q3 == 7);
    assert_int_equal(sl_spread_of(NULL, 0).n, 0);
}

static void test_rank_test(void **state)
{
    (void)state;
    double low[SL_MAX_RUNS], high[SL_MAX_RUNS];
    for (int i = 0; i < SL_MAX_RUNS; i++) {
        low[i] = i;
        high[i] = i + SL_MAX_RUNS;
    }
    /* All orders of five and five items: 252; two of them are fully apart. */
    assert_true(fabs(sl_rank_test(low, 5, high, 5) - 2.0 / 252) < 1e-12);
    assert_true(fabs(sl_rank_test(high, 5, low, 5) - 2.0 / 252) < 1e-12);
    assert_true(fabs(sl_rank_test_limit(5, 5) - 2.0 / 252) < 1e-12);
    assert_true(fabs(sl_rank_test_limit(3, 3) - 0.1) < 1e-12);
    assert_true(sl_rank_test(low, 5, low, 5) == 1.0);
    assert_true(sl_rank_test(low, 0, low, 5) == 1.0);
    /* One swap away from apart: u = 1 of 2 orders more. */
    const double a[] = {1, 2, 3, 4, 6}, b[] = {5, 7, 8, 9, 10};
    assert_true(fabs(sl_rank_test(a, 5, b, 5) - 4.0 / 252) < 1e-12);
    /* The normal law for large sets meets the exact one. */
    assert_true(sl_rank_test(low, 21, high, 21) < 1e-6);
    assert_true(sl_rank_test(low, 200, low, 200) > 0.99);
}

static void test_verdicts(void **state)
{
    (void)state;
    const double slow[] = {10, 11, 10, 12, 11}, fast[] = {20, 22, 21, 20, 23};
    sl_verdict v = sl_bench_judge(slow, 5, fast, 5, true);
    assert_string_equal(v.word, "faster");
    assert_true(fabs(v.ratio - 21.0 / 11) < 1e-12 && v.low < v.ratio && v.high > v.ratio);
    v = sl_bench_judge(slow, 5, fast, 5, false); /* milliseconds */
    assert_string_equal(v.word, "slower");
    assert_true(fabs(v.ratio - 11.0 / 21) < 1e-12 && v.low < v.ratio && v.high > v.ratio);
    assert_string_equal(sl_bench_judge(slow, 5, slow, 5, true).word, "within noise");
    assert_string_equal(sl_bench_judge(slow, 3, fast, 3, true).word, "too few runs to tell");
}

/* ---- lists ---- */

static void test_lists(void **state)
{
    (void)state;
    sl_error err;
    sl_bench_list list;
    assert_ok(sl_bench_parse_list("--pp", "128,1,64", 1, 128, &list, &err));
    assert_int_equal(list.n, 3);
    assert_int_equal(list.items[0], 128);
    assert_int_equal(list.items[2], 64);
    assert_ok(sl_bench_parse_list("--pp", "none", 1, 128, &list, &err));
    assert_int_equal(list.n, 0);
    static const char *const bad[] = {
        "",     "0",  "129",  "1,", ",1",
        "1,,2", "-1", "1 ,2", "x",  "99999999999999999999999999999999999"};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++)
        assert_refused(sl_bench_parse_list("--pp", bad[i], 1, 128, &list, &err), SL_ERR_ARGUMENT,
                       "--pp: '");
    assert_refused(sl_bench_parse_list("--pp", "5,6,5", 1, 9, &list, &err), SL_ERR_ARGUMENT,
                   "5 is given twice");
    assert_refused(sl_bench_parse_list("--pp", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", 1, 99,
                                       &list, &err),
                   SL_ERR_ARGUMENT, "at most 16");
}

static void test_list_of_tests(void **state)
{
    (void)state;
    static const char *const expected[] = {"load",    "first token 16", "pp8",
                                           "tg4",     "tg4 x3",         "pp8 @10",
                                           "tg4 @10", "pp8 @100",       "tg4 @100"};
    sl_error err;
    sl_bench_test *tests;
    size_t n;
    uint32_t context;
    const sl_bench_limits limits = {.prompts = {{8}, 1},
                                    .steps = {{4}, 1},
                                    .depths = {{100, 0, 10}, 3},
                                    .batches = {{1, 3}, 2},
                                    .first = 16};
    assert_ok(sl_bench_tests(&limits, &tests, &n, &context, &err));
    assert_int_equal(n, SL_COUNTOF(expected));
    assert_int_equal(context, 108);
    for (size_t i = 0; i < n; i++) {
        char name[SL_BENCH_NAME_BYTES];
        sl_bench_test_name(&tests[i], name);
        assert_string_equal(name, expected[i]);
    }
    sl_free(tests);
}

static void test_arms(void **state)
{
    (void)state;
    sl_error err;
    sl_bench_arm arms[SL_BENCH_MAX_ARMS];
    size_t n;
    const sl_engine_params params = {.n_threads = 3, .max_rows = 7};
    assert_ok(sl_bench_arms(NULL, &params, arms, &n, &err));
    assert_int_equal(n, 1);
    assert_string_equal(arms[0].name, "");
    assert_int_equal(arms[0].params.n_threads, 3);
    assert_ok(sl_bench_arms("threads=1,2", &params, arms, &n, &err));
    assert_int_equal(n, 2);
    assert_string_equal(arms[1].name, "threads=2");
    assert_int_equal(arms[1].params.n_threads, 2);
    assert_int_equal(arms[1].params.max_rows, 7);
    assert_ok(sl_bench_arms("isa=scalar,avx2,avx512", &params, arms, &n, &err));
    assert_int_equal(n, 3);
    assert_string_equal(arms[2].params.isa, "avx512");
    assert_ok(sl_bench_arms("kv=f16,f32", &params, arms, &n, &err));
    assert_true(!arms[0].params.kv_f32 && arms[1].params.kv_f32);
    assert_ok(sl_bench_arms("gdn=chunk,serial", &params, arms, &n, &err));
    assert_true(!arms[0].params.gdn_serial && arms[1].params.gdn_serial);
    assert_ok(sl_bench_arms("prefill-chunk=32,64", &params, arms, &n, &err));
    assert_int_equal(arms[1].params.max_rows, 64);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"speed=1,2", "'speed' cannot be varied"},
        {"threads", "two values"},
        {"threads=2", "two values"},
        {"threads=1,0", "not '0'"},
        {"threads=1,x", "not 'x'"},
        {"kv=f16,f8", "not 'f8'"},
        {"gdn=chunk,tape", "gdn takes chunk and serial, not 'tape'"},
        {"threads=2,2", "given twice"},
        {"isa=avx2,", "not ''"},
        {"=1,2", "'' cannot"},
        {"threads=1,2,3,4,5,6,7,8,9", "at most 8"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++)
        assert_refused(sl_bench_arms(bad[i].text, &params, arms, &n, &err), SL_ERR_ARGUMENT,
                       bad[i].part);
}

/* ---- the machine ---- */

static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0777);
        *slash = '/';
    }
    sl_write_text(full, text);
}

static void test_the_machine(void **state)
{
    (void)state;
    const char *root = sl_temp_make();
    sl_machine machine, later;
    sl_machine_notes notes;
    sl_machine_look(root, &machine);
    assert_string_equal(machine.cpu, "");
    assert_true(machine.load < 0 && !machine.on_battery);
    sl_machine_doubts(&machine, &machine, 1, 1, &notes);
    assert_int_equal(notes.n, 0);

    put(root, "/proc/cpuinfo", "processor\t: 0\nmodel name\t:  Some CPU @ 3 GHz\nflags\t: x\n");
    put(root, "/proc/loadavg", "4000.25 3.00 2.00 1/2 3\n");
    put(root, "/proc/stat", "cpu  10 0 10 60 10 0 5 5 0 0\ncpu0 1\n");
    put(root, "/proc/self/cgroup", "3:cpu,cpuacct:/old\n0::/box/inner\n");
    put(root, "/sys/fs/cgroup/box/cpu.stat", "usage_usec 5\nnr_throttled 4\n");
    put(root, "/sys/fs/cgroup/box/inner/cpu.stat", "usage_usec 5\nnr_throttled 2\n");
    put(root, "/sys/fs/cgroup/cpu/old/cpu.stat", "nr_periods 9\nnr_throttled 1\n");
    put(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    put(root, "/sys/class/power_supply/AC/type", "Mains\n");
    put(root, "/sys/class/power_supply/BAT0/type", "Battery\n");
    put(root, "/sys/class/power_supply/BAT0/status", "Discharging\n");
    sl_machine_look(root, &machine);
    assert_string_equal(machine.cpu, "Some CPU @ 3 GHz");
    assert_true(machine.load == 4000.25 && machine.on_battery);
    assert_int_equal(machine.ticks, 100);
    assert_int_equal(machine.stolen_ticks, 5);
    assert_int_equal(machine.busy_ticks, 25);
    assert_int_equal(machine.n_throttled, 7);

    put(root, "/proc/stat", "cpu  60 0 30 60 10 0 5 35 0 0\n");
    put(root, "/sys/fs/cgroup/box/cpu.stat", "nr_throttled 6\n");
    put(root, "/sys/class/power_supply/BAT0/status", "Charging\n");
    sl_machine_look(root, &later);
    assert_false(later.on_battery);
    later.own_ticks = machine.own_ticks + 10;
    sl_machine_doubts(&machine, &later, 4, 2, &notes);
    static const char *const parts[] = {
        "load average was 4000.2", "4 threads on 2", "took 30.0 %", "other programs took 60 %",
        "ran out 2 times",         "battery",        "powersave"};
    assert_int_equal(notes.n, SL_COUNTOF(parts));
    for (size_t i = 0; i < SL_COUNTOF(parts); i++) {
        if (!strstr(notes.texts[i], parts[i]))
            fail_msg("'%s' lacks '%s'", notes.texts[i], parts[i]);
    }
    /* A driver that steers by itself; then all of the work was this program's. */
    put(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
    sl_machine_look(root, &machine);
    sl_machine_doubts(&machine, &machine, 1, 2, &notes);
    for (size_t i = 0; i < notes.n; i++)
        assert_null(strstr(notes.texts[i], "powersave"));
    machine.ticks = machine.busy_ticks = machine.stolen_ticks = 0;
    later.stolen_ticks = 0;
    machine.own_ticks = 0;
    later.own_ticks = later.busy_ticks;
    sl_machine_doubts(&machine, &later, 1, 2, &notes);
    for (size_t i = 0; i < notes.n; i++)
        assert_null(strstr(notes.texts[i], "other programs"));
    sl_temp_remove(root);
}

static void test_energy(void **state)
{
    (void)state;
    const char *root = sl_temp_make();
    sl_energy energy;
    sl_energy_open(root, &energy);
    assert_int_equal(energy.n, 0);
    assert_true(sl_energy_joules(&energy) == 0);
    put(root, "/sys/class/powercap/intel-rapl:0/energy_uj", "9000000\n");
    put(root, "/sys/class/powercap/intel-rapl:0/max_energy_range_uj", "10000000\n");
    put(root, "/sys/class/powercap/intel-rapl:1/energy_uj", "500\n"); /* without a range */
    put(root, "/sys/class/powercap/intel-rapl:2/energy_uj", "0\n");
    put(root, "/sys/class/powercap/intel-rapl:2/max_energy_range_uj", "10000000\n");
    sl_energy_open(root, &energy);
    assert_int_equal(energy.n, 2);
    put(root, "/sys/class/powercap/intel-rapl:0/energy_uj", "1000000\n"); /* went around */
    put(root, "/sys/class/powercap/intel-rapl:2/energy_uj", "500000\n");
    assert_true(fabs(sl_energy_joules(&energy) - 2.5) < 1e-9);
    assert_true(fabs(sl_energy_joules(&energy) - 2.5) < 1e-9);
    sl_temp_remove(root);
}

/* ---- the command ---- */

static void expect(sl_process process, int exit_status, const char *part_of_out,
                   const char *part_of_err)
{
    sl_process_expect(&process, exit_status, part_of_out, part_of_err);
    sl_process_free(&process);
}

static json_t *parse(sl_process process)
{
    json_error_t error;
    json_t *value = json_loadb(process.out, process.n_out, 0, &error);
    if (!value)
        fail_msg("%s in: %s", error.text, process.out);
    sl_process_free(&process);
    return value;
}

#define QUICK "--ceilings=off", "--first", "0", "-r", "2", "-t", "1"

static void test_help(void **state)
{
    (void)state;
    sl_process page = sl_sluice(NULL, "help", "bench");
    sl_process_expect(&page, 0, "usage: sluice bench", NULL);
    const char *name;
    for (size_t i = 0; (name = sl_synthetic_shape_name(i)); i++)
        assert_non_null(strstr(page.out, name));
    for (size_t i = 0; (name = sl_synthetic_type_name(i)); i++)
        assert_non_null(strstr(page.out, name));
    sl_process_free(&page);
    expect(sl_sluice(NULL, "help"), 0, "  bench ", NULL);
}

static void test_table(void **state)
{
    (void)state;
    sl_process p = sl_sluice(NULL, "bench", "--shape", "tiny", "--pp", "8", "--tg", "2", "--depth",
                             "0,40", "--batch", "2", QUICK);
    static const char *const parts[] = {"tiny shape, random weights",
                                        "mostly Q8_0",
                                        "\nload ",
                                        "\npp8 ",
                                        "\ntg2 ",
                                        "\ntg2 x2 ",
                                        "\npp8 @40 ",
                                        "\ntg2 @40 ",
                                        "tok/s",
                                        " ms "};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++)
        sl_process_expect(&p, 0, parts[i], NULL);
    assert_null(strstr(p.out, "first token"));
    sl_process_free(&p);
    expect(sl_sluice(NULL, "bench", "models/tiny-q8_0.gguf", "--pp", "8", "--tg", "none", QUICK), 0,
           "models/tiny-q8_0.gguf", NULL);
    /* Types are named as in files too. */
    expect(sl_sluice(NULL, "bench", "--shape", "tiny", "--type", "Q4_K_M", "--pp", "8", "--tg",
                     "none", QUICK),
           0, "mostly Q4_K", NULL);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void test_rules_of_the_gated_delta_layers(void **state)
{
    (void)state;
    sl_process p = sl_sluice(NULL, "bench", "--shape", "tiny", "--ab", "gdn=chunk,serial", "--pp",
                             "40", "--depth", "0,33", QUICK);
    sl_process_expect(&p, 0, "gdn=chunk", NULL);
    sl_process_expect(&p, 0, "gdn=serial", NULL);
    sl_process_free(&p);
}

static void test_json(void **state)
{
    (void)state;
    json_t *all = parse(sl_sluice(NULL, "bench", "--shape", "tiny-moe", "--type", "q4_k_m", "--pp",
                                  "8", "--tg", "2", "-r", "1", "--first", "8", "--loads", "2",
                                  "--ab", "threads=1,2", "--json"));
    assert_string_equal(json_string_value(json_object_get(all, "program")), "sluice bench");
    assert_true(number(all, "peak_memory_mib") > 0);
    const json_t *arms = json_object_get(all, "arms"), *rows = json_object_get(all, "rows");
    assert_int_equal(json_array_size(arms), 2);
    const json_t *ceilings = json_object_get(all, "ceilings");
    assert_int_equal(json_array_size(ceilings), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *of_threads = json_array_get(ceilings, i);
        const json_t *round = json_array_get(json_object_get(of_threads, "rounds"), 0);
        assert_true(number(of_threads, "threads") == (double)i + 1);
        assert_true(number(round, "read_gb_per_s") > 0 && number(round, "int8_tops") > 0);
        assert_true(json_string_length(json_object_get(round, "int8_loop")) > 0);
    }
    /* Threads change no bit. */
    assert_true(number(json_array_get(arms, 0), "first_token") ==
                number(json_array_get(arms, 1), "first_token"));
    assert_true(number(json_array_get(arms, 1), "threads") == 2);
    assert_int_equal(json_array_size(rows), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *row = json_array_get(rows, i), *values = json_object_get(row, "values");
        const bool opens = i < 4;
        assert_int_equal(json_array_size(values), opens ? 2 : 1);
        assert_int_equal(json_array_size(json_object_get(row, "runs_ns")), opens ? 2 : 1);
        assert_true(json_is_true(json_object_get(row, "higher_is_better")) != opens);
        assert_true(number(row, "min") <= number(row, "median"));
        assert_true(number(row, "median") <= number(row, "max"));
        assert_true(json_is_null(json_object_get(row, "share_of_limit")) == opens);
        if (!opens)
            assert_true(number(row, "share_of_limit") > 0 && number(row, "int8_macs") > 0);
    }
    json_decref(all);
}

static void test_csv(void **state)
{
    (void)state;
    sl_process p = sl_sluice(NULL, "bench", "--shape", "tiny", "--pp", "8", "--tg", "2", "--csv",
                             QUICK, "-t", "256");
    sl_process_expect(&p, 0, "test,arm,tokens,",
                      sl_cpus_usable() < 256 ? "doubtful  256 threads on " : NULL);
    size_t n_lines = 0;
    for (const char *line = p.out; *line; n_lines++) {
        size_t n_commas = 0;
        for (; *line != '\n'; line++)
            n_commas += *line == ',';
        assert_int_equal(n_commas, 14);
        line++;
    }
    assert_int_equal(n_lines, 4);
    sl_process_free(&p);
}

static void test_save(void **state)
{
    (void)state;
    const char *folder = sl_temp_make();
    const char *path = sl_path(folder, "tiny.gguf");
    expect(sl_sluice(NULL, "bench", "--shape", "tiny", "--type", "q6_k", "--save", path), 0, NULL,
           NULL);
    expect(sl_sluice(NULL, "info", path), 0, "Q6_K", NULL);
    expect(sl_sluice(NULL, "run", path, "--raw", "-n", "2", "ab"), 0, NULL, NULL);
    expect(sl_sluice(NULL, "bench", "--shape", "tiny", "--save", sl_path(folder, "no/where.gguf")),
           1, NULL, "no/where.gguf");
    expect(sl_sluice(NULL, "bench", "--shape", "tiny", "--save", ""), 2, NULL,
           "--save: the name of the file is empty");
    sl_temp_remove(folder);
}

/* As soon as the line of progress is there: far from the end of a file of 100 GB. */
static void test_save_that_is_interrupted(void **state)
{
    (void)state;
    const char *folder = sl_temp_make();
    const sl_process_setup setup = {.terminal = true, .interrupt = true};
    sl_process p = sl_sluice(&setup, "bench", "--shape", "27b", "--type", "f32", "--save",
                             sl_path(folder, "large.gguf"));
    sl_process_expect(&p, 130, " MiB", NULL);
    sl_process_free(&p);
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
    assert_int_equal(mkdir(folder, 0777), 0);
    sl_temp_remove(folder);
}

/* ---- comparing ---- */

#define ROW_IN(unit, test, values) \
    "{\"test\":\"" test "\",\"arm\":\"\",\"unit\":\"" unit "\",\"higher_is_better\":true," \
    "\"values\":[" values "]}"
#define ROW(test, values)     ROW_IN("tok/s", test, values)
#define FILE_OF(members, ...) "{\"program\":\"sluice bench\"," members "\"rows\":[" __VA_ARGS__ "]}"

static void test_compare(void **state)
{
    (void)state;
    const char *folder = sl_temp_make();
    const char *a = sl_path(folder, "a.json"), *b = sl_path(folder, "b.json");
    sl_write_text(a, FILE_OF("\"machine\":{\"doubts\":[\"it was \\u001b[31mhot\"],\"cpu\":\"X\"},"
                             "\"model\":{\"name\":\"m\",\"type\":\"Q8_0\",\"parameters\":5},"
                             "\"arms\":[{\"threads\":2,\"isa\":\"avx2\",\"kv\":\"f16\"}],",
                             ROW("pp8", "10,11,12,11,10") "," ROW("tg2", "5,6,7,6,5") "," ROW(
                                 "few", "1,2") "," ROW("lonely", "1")));
    sl_write_text(b, FILE_OF("\"machine\":{\"doubts\":[\"noisy\"],\"cpu\":\"Y\"},"
                             "\"model\":{\"name\":\"m\",\"type\":\"Q4_K\",\"parameters\":6},"
                             "\"arms\":[{\"threads\":4,\"isa\":\"avx2\",\"kv\":\"f16\"}],",
                             ROW("tg2", "6,5,7,5,6") "," ROW("pp8", "20,22,21,20,23") "," ROW(
                                 "few", "3,4") "," ROW("new\\u0007", "1")));
    sl_process p = sl_sluice(NULL, "bench", "--compare", a, b);
    static const char *const parts[] = {"doubtful  A: it was \uFFFD[31mhot",
                                        "doubtful  B: noisy",
                                        "differs   processor: 'X' in A, 'Y' in B\n",
                                        "differs   type: 'Q8_0' in A, 'Q4_K' in B\n",
                                        "differs   parameters of the model: 5 in A, 6 in B\n",
                                        "differs   threads: 2 in A, 4 in B\n",
                                        "1.909x",
                                        "faster",
                                        "within noise",
                                        "too few runs",
                                        "only in"};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++)
        sl_process_expect(&p, 0, parts[i], NULL);
    assert_null(strstr(p.out, "isa"));
    assert_null(strstr(p.out, "kv"));
    assert_null(strstr(p.out, "differs   model"));
    assert_null(strchr(p.out, '\033'));
    assert_null(strchr(p.out, '\a'));
    assert_non_null(strstr(strstr(p.out, "lonely"), "a.json"));
    assert_non_null(strstr(strstr(p.out, "\nnew"), "b.json"));
    sl_process_free(&p);

    static const struct {
        const char *text, *part;
    } bad[] = {
        {FILE_OF("", ROW("pp8", "20,0")), "b.json: value 1 of the row 'pp8' is no positive"},
        {FILE_OF("", ROW("pp8", "")), "b.json: the row 'pp8' has 0 values"},
        {FILE_OF("", ROW_IN("ms", "pp8", "1,2")),
         "the row 'pp8' is in 'tok/s' in one file, in 'ms'"},
        {FILE_OF("", ROW("pp8", "1") "," ROW("pp8", "2")), "b.json has two rows 'pp8'"},
        {"{\"program\":\"sluice profile\",\"rows\":[]}", "not the output of sluice bench"},
        {"{\"program\":\"sluice bench\"}", "not the output of sluice bench"},
        {"{\"rows\":[]}", "not the output of sluice bench"},
        {"{}", "not the output of sluice bench"},
        {"[]", "b.json"},
        {"[", "b.json"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        sl_write_text(b, bad[i].text);
        expect(sl_sluice(NULL, "bench", "--compare", a, b), 1, NULL, bad[i].part);
    }
    expect(sl_sluice(NULL, "bench", "--compare", a, sl_path(folder, "none.json")), 1, NULL,
           "none.json");
    expect(sl_sluice(NULL, "bench", "--compare", a), 2, NULL, "two files");
    sl_temp_remove(folder);
}

/* What bench writes can be compared with itself, whatever the model is called. */
static void test_a_path_of_escapes(void **state)
{
    (void)state;
    const char *folder = sl_temp_make();
    const char *model = sl_path(folder, "\033[31mred\n\xFF.gguf"), *a = sl_path(folder, "a.json");
    expect(sl_sluice(NULL, "bench", "--shape", "tiny", "--save", model), 0, NULL, NULL);
    sl_process p = sl_sluice(NULL, "bench", model, "--pp", "8", "--tg", "none", QUICK);
    sl_process_expect(&p, 0, "/\uFFFD[31mred\uFFFD\uFFFD.gguf: tiny shape", NULL);
    sl_process_free(&p);
    p = sl_sluice(NULL, "profile", model, "-p", "4", "-n", "0", "--ceilings=off");
    sl_process_expect(&p, 0, "/\uFFFD[31mred\uFFFD\uFFFD.gguf: Q8_0", NULL);
    sl_process_free(&p);
    p = sl_sluice(NULL, "doctor", model, "--measure=off");
    sl_process_expect(&p, 0, "/\uFFFD[31mred\uFFFD\uFFFD.gguf: ", NULL);
    sl_process_free(&p);
    p = sl_sluice(NULL, "bench", model, "--pp", "8", "--tg", "none", "--json", QUICK);
    sl_process_expect(&p, 0, "{", NULL);
    sl_write_text(a, p.out);
    sl_process_free(&p);
    expect(sl_sluice(NULL, "bench", "--compare", a, a), 0, "1.000x", NULL);
    expect(sl_sluice(NULL, "bench", model, "--\033[0m"), 2, NULL, "no option --\uFFFD[0m");
    sl_temp_remove(folder);
}

static void test_bad_input(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[9], *part;
    } bad[] = {
        {{"bench"}, "either a MODEL or --shape"},
        {{"bench", "m.gguf", "--shape", "tiny"}, "either a MODEL or --shape"},
        {{"bench", "--shape", "1b"}, "--shape: there is no shape '1b': 0.8b"},
        {{"bench", "--shape", "tiny", "--type", "q9"}, "--type: there is no type 'q9': q8_0, q4_0"},
        {{"bench", "--shape", "tiny", "--layers", "5"}, "--layers: 5 layers"},
        {{"bench", "--shape", "tiny", "--pp", "0"}, "--pp: '0'"},
        {{"bench", "--shape", "tiny", "--pp", "5000"}, "context is 4096"},
        {{"bench", "--shape", "tiny", "--depth", "4090"}, "context is 4096"},
        {{"bench", "--shape", "tiny", "--batch", "2000"}, "--batch: '2000'"},
        {{"bench", "--shape", "tiny", "-r", "0"}, "-r"},
        {{"bench", "--shape", "tiny", "-r", "5000"}, "-r"},
        {{"bench", "--shape", "tiny", "--ab", "threads=1"}, "two values"},
        {{"bench", "--shape", "tiny", "--ab", "isa=scalar,mmx"}, "mmx"},
        {{"bench", "--shape", "tiny", "--json", "--csv"}, "exclude"},
        {{"bench", ""}, "the name of the model is empty"},
        {{"bench", "m.gguf", "--seed", "1"}, "--seed goes with --shape"},
        {{"bench", "m.gguf", "--layers", "1"}, "--layers goes with --shape"},
        {{"bench", "--shape", "tiny", "--save", "x", "--json"}, "--json does not go with it"},
        {{"bench", "--shape", "tiny", "--save", "x", "-t", "2"}, "--threads does not go with it"},
        {{"bench", "--compare", "a", "b", "--json"}, "--json does not go with it"},
        {{"bench", "--compare", "a", "b", "-r", "2"}, "--repeat does not go with it"},
        {{"bench", "--shape", "tiny", "-t", "2", "--ab", "threads=1,2"}, "--threads: --ab gives"},
        {{"bench", "--shape", "tiny", "--ab", "kv=f16,f32", "--ab=threads=1,2"}, "given twice"},
        {{"bench", "--shape", "tiny", "--ceilings", "off"}, "--ceilings=off"},
        {{"bench", "m.gguf", "--type", "q8_0"}, "goes with --shape"},
        {{"bench", "m.gguf", "--save", "x"}, "goes with --shape"},
        {{"bench", "--shape", "tiny", "--device", "cuda:99"}, "CUDA"},
        {{"bench", "--shape", "tiny", "--isa", "mmx"}, "--isa: "},
        {{"bench", "--shape", "tiny", "--threads", "0"}, "--threads"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++)
        expect(sl_process_run(bad[i].arguments, NULL), 2, NULL, bad[i].part);
    /* A seed of the environment is meant for whom it concerns. */
    const sl_process_setup seed = {.env = "SLUICE_SEED=7"};
    expect(sl_sluice(&seed, "bench", "no-such-model.gguf"), 3, NULL, "no-such-model.gguf");
    expect(sl_sluice(NULL, "bench", "no-such-model.gguf"), 3, NULL, "no-such-model.gguf");
}

/* The number on the line of a plan; 0 when there is no such line. */
static double part_of(const char *plan, const char *part)
{
    const char *line = strstr(plan, part);
    double mib = 0;
    if (line)
        assert_int_equal(sscanf(line + strlen(part), "%lf MiB", &mib), 1);
    return mib;
}

/* More than any machine has: refused before anything is made, with the plan. */
static void test_too_little_memory(void **state)
{
    (void)state;
    sl_process p = sl_sluice(NULL, "bench", "--shape", "35b-a3b", "--type", "f32", "--ab",
                             "threads=1,2,3,4,5,6,7,8", "--depth", "200000", "--batch", "1000");
    sl_process_expect(&p, 1, NULL, "not enough memory");
    sl_process_expect(&p, 1, NULL, "8 engines at a time");
    const double sum = part_of(p.err, "  weights") + part_of(p.err, "24 states of 202048 tokens") +
                       part_of(p.err, "7992 states of 128 tokens") + part_of(p.err, "  logits") +
                       part_of(p.err, "  scratch");
    assert_true(part_of(p.err, "7992 states of 128 tokens") > 0);
    assert_true(part_of(p.err, "  logits") > 7500 && part_of(p.err, "  there is") > 0);
    assert_true(fabs(sum - part_of(p.err, "  needed")) < 1);
    sl_process_free(&p);
}

/* The system says that there is enough, and there is not: the plan all the same. */
static void test_memory_that_is_refused(void **state)
{
    (void)state;
    if (sl_test_shortened())
        skip_because("address space cannot be limited under the sanitizers");
    char *out;
    const int exit_status = sl_shell(&out,
                                     "ulimit -v 700000 && %s bench --shape 0.8b --type bf16 "
                                     "--pp 8 --tg none --first 0 --ceilings=off -t 1",
                                     sl_build_path("sluice"));
    assert_int_equal(exit_status, 1);
    assert_non_null(strstr(out, "there is not enough memory"));
    assert_non_null(strstr(out, "1 state of 8 tokens"));
    assert_null(strstr(out, "median"));
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_rank_test),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_list_of_tests),
        cmocka_unit_test(test_arms),
        cmocka_unit_test(test_the_machine),
        cmocka_unit_test(test_energy),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_rules_of_the_gated_delta_layers),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_save),
        cmocka_unit_test(test_save_that_is_interrupted),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_a_path_of_escapes),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_memory_that_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
