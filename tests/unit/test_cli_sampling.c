/* The options of `sluice run` that choose tokens and end answers, on the demonstration model. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "opts.h"
#include "process.h"

#define TINY "models/tiny-q8_0.gguf"

static const char question[] = "What is the capital of France?";
static const char reply[] = "The capital of France is Paris.\n";

static void expect(sl_process process, int exit_status, const char *part_of_out,
                   const char *part_of_err)
{
    sl_process_expect(&process, exit_status, part_of_out, part_of_err);
    sl_process_free(&process);
}

static void expect_out(sl_process process, const char *out)
{
    sl_process_expect(&process, 0, NULL, NULL);
    assert_string_equal(process.out, out);
    sl_process_free(&process);
}

static json_t *parse(sl_process process)
{
    json_error_t error;
    json_t *value = json_loadb(process.out, process.n_out, 0, &error);
    if (!value)
        fail_msg("%s in: %s%s", error.text, process.out, process.err);
    sl_process_free(&process);
    return value;
}

static const char *member(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

#define GREEDY "run", TINY, question, "--greedy", "--think=off"

static void test_stop_strings(void **state)
{
    (void)state;
    expect_out(sl_sluice(NULL, GREEDY), reply);
    expect_out(sl_sluice(NULL, GREEDY, "--stop", "France"), "The capital of \n");
    expect_out(sl_sluice(NULL, GREEDY, "--stop", "of Fr", "--stop", "l of"), "The capita\n");
    expect_out(sl_sluice(NULL, GREEDY, "--stop", "is Paris!"), reply); /* held back, then shown */
    expect_out(sl_sluice(NULL, GREEDY, "--stop", "The"), "");
    const sl_process_setup setup = {.env = "SLUICE_STOP=capital"};
    expect_out(sl_sluice(&setup, GREEDY), "The \n");
    expect_out(sl_sluice(&setup, GREEDY, "--stop", "France"), "The capital of \n");

    json_t *answer = parse(sl_sluice(NULL, GREEDY, "--json", "--stop", " is"));
    assert_string_equal(member(answer, "text"), "The capital of France");
    assert_string_equal(member(answer, "finish_reason"), "stop");
    json_decref(answer);

    expect(sl_sluice(NULL, GREEDY, "--stop", ""), 2, NULL, "--stop: stop string 1 is empty");
}

/* Thinking is no part of the answer, and neither are the line ends between them. */
static void test_stop_strings_after_thinking(void **state)
{
    (void)state;
    static const char *const modes[] = {"--json", "--show-thinking"};
    for (size_t i = 0; i < 2; i++) {
        sl_process p = sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=on", modes[i],
                                 "--stop", "user", "--stop", "\n", "--stop", "Paris");
        sl_process_expect(&p, 0, "The user asks for the capital of France. It is Paris.", NULL);
        sl_process_expect(&p, 0, "The capital of France is ", NULL);
        assert_null(strstr(p.out, "is Paris.\n\nThe capital of France is Paris"));
        sl_process_free(&p);
    }
}

static void test_think_budget(void **state)
{
    (void)state;
    json_t *free_run =
        parse(sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=on", "--json"));
    static const char *const graces[] = {"0", "2"};
    for (size_t i = 0; i < 2; i++) {
        json_t *answer =
            parse(sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=on", "--json",
                            "--think-budget", "3", "--think-grace", graces[i]));
        const char *thinking = member(answer, "thinking");
        assert_true(strlen(thinking) < strlen(member(free_run, "thinking")));
        assert_int_equal(strncmp(thinking, member(free_run, "thinking"), strlen(thinking)), 0);
        assert_true(strlen(member(answer, "text")) > 0);
        assert_null(strstr(member(answer, "text"), "think"));
        json_decref(answer);
    }
    /* More than it needs, or no thinking at all: nothing is changed. */
    json_t *answer = parse(sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=on",
                                     "--json", "--think-budget", "1000"));
    assert_string_equal(member(answer, "thinking"), member(free_run, "thinking"));
    assert_string_equal(member(answer, "text"), member(free_run, "text"));
    json_decref(answer);
    expect_out(sl_sluice(NULL, GREEDY, "--think-budget", "0"), reply);
    answer = parse(sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=on", "--json",
                             "--think-budget", "0"));
    assert_string_equal(member(answer, "thinking"), "");
    json_decref(answer);
    json_decref(free_run);
    expect(sl_sluice(NULL, GREEDY, "--think-grace", "5"), 2, NULL, "belongs to --think-budget");
    expect(sl_sluice(NULL, "run", TINY, "x", "--raw", "--think-budget", "5"), 2, NULL,
           "belong to the chat template");
}

static void test_logit_bias(void **state)
{
    (void)state;
    json_t *tokens = parse(sl_sluice(NULL, "tokenize", TINY, " Paris", "--json"));
    const json_t *ids = json_object_get(tokens, "ids");
    assert_int_equal(json_array_size(ids), 1);
    const int id = (int)json_integer_value(json_array_get(ids, 0));
    json_decref(tokens);
    char ban[40], want[40];
    snprintf(ban, sizeof ban, "%d=-1e9", id);
    snprintf(want, sizeof want, "%d=1e9", id);
    sl_process p = sl_sluice(NULL, GREEDY, "--logit-bias", ban, "-n", "12");
    assert_null(strstr(p.out, " Paris"));
    sl_process_free(&p);
    p = sl_sluice(NULL, GREEDY, "--logit-bias", want, "-n", "3");
    sl_process_expect(&p, 0, " Paris Paris Paris\n", NULL);
    sl_process_free(&p);
    static const char *const bad[] = {
        "5", "=1", "5=", "-1=2", "5=x", "5=nan", "5=1e40", "5=1 ", "99999999999999=1", ""};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++)
        expect(sl_sluice(NULL, GREEDY, "--logit-bias", bad[i]), 2, NULL,
               "is not a token id, = and a number");
    expect(sl_sluice(NULL, GREEDY, "--logit-bias", "2147483647=1"), 1, NULL,
           "logit_bias names token 2147483647");
}

/* Each of these settings reaches the sampler: the model would go on repeating. */
static void test_penalties(void **state)
{
    (void)state;
    static const char request[] = "Repeat after me: fox fox fox";
    static const char *const settings[][2] = {
        {"--frequency-penalty", "100"},
        {"--repetition-penalty", "100"},
        {"--dry-multiplier", "100"},
    };
    static const char repeated[] = "fox fox fox\n";
    expect_out(sl_sluice(NULL, "run", TINY, request, "--greedy"), repeated);
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        sl_process p = sl_sluice(NULL, "run", TINY, request, "--greedy", "-n", "12", settings[i][0],
                                 settings[i][1], "--dry-allowed-length", "1");
        sl_process_expect(&p, 0, NULL, NULL);
        assert_string_not_equal(p.out, repeated);
        sl_process_free(&p);
    }
    /* What softens them reaches it too. */
    expect_out(sl_sluice(NULL, "run", TINY, request, "--greedy", "--dry-multiplier", "100",
                         "--dry-allowed-length", "1", "--dry-breaker", "o"),
               repeated);
    expect_out(sl_sluice(NULL, "run", TINY, request, "--greedy", "--dry-multiplier", "100",
                         "--dry-allowed-length", "500"),
               repeated);
    expect_out(sl_sluice(NULL, "run", TINY, request, "--greedy", "--dry-multiplier", "100",
                         "--dry-allowed-length", "1", "--dry-window", "1"),
               repeated);

    sl_process p =
        sl_sluice(NULL, "run", TINY, "x", "-v", "-n", "2", "--typical", "0.9", "--presence-penalty",
                  "0.5", "--dry-multiplier", "0.8", "--dry-base", "2", "--penalty-window", "50");
    static const char *const told[] = {"typical 0.9", "presence penalty 0.5", "loop breaking 0.8"};
    for (size_t i = 0; i < SL_COUNTOF(told); i++)
        sl_process_expect(&p, 0, NULL, told[i]);
    sl_process_free(&p);
    json_t *answer = parse(sl_sluice(NULL, "run", TINY, "x", "--json", "-n", "1", "--typical",
                                     "0.9", "--penalty-window", "50"));
    const json_t *sampling = json_object_get(answer, "sampling");
    assert_true(json_real_value(json_object_get(sampling, "typical_p")) == 0.9);
    assert_int_equal(json_integer_value(json_object_get(sampling, "penalty_window")), 50);
    json_decref(answer);
}

static void test_wrong_values(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"--typical", "1.1"},           {"--typical", "nan"},
        {"--frequency-penalty", "inf"}, {"--frequency-penalty", "101"},
        {"--presence-penalty", "-101"}, {"--repetition-penalty", "-1"},
        {"--dry-base", "0.5"},          {"--dry-multiplier", "-0.1"},
        {"--dry-window", "65537"},      {"--dry-window", "0"},
        {"--dry-allowed-length", "0"},  {"--penalty-window", "-1"},
        {"--think-budget", "1.5"},      {"--think-budget", "x"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        char part[40];
        snprintf(part, sizeof part, "%s: '%s' is not a ", bad[i][0], bad[i][1]);
        expect(sl_sluice(NULL, GREEDY, bad[i][0], bad[i][1]), 2, NULL, part);
    }
}

/* A list takes so many items and no more. */
static void test_limit_of_a_list(void **state)
{
    (void)state;
    static const sl_opt opt = {.name = "stop", .type = SL_OPT_LIST, .value_name = "TEXT"};
    static const sl_command command = {.name = "run", .usage = "", .opts = &opt, .n_opts = 1};
    static char *arguments[SL_OPT_MAX_LIST + 1];
    char items[SL_OPT_MAX_LIST + 1][24];
    for (int i = 0; i <= SL_OPT_MAX_LIST; i++) {
        snprintf(items[i], sizeof items[i], "--stop=%d", i);
        arguments[i] = items[i];
    }
    sl_opt_list list = {0};
    sl_args args;
    assert_int_equal(sl_opts_parse(&command, SL_OPT_MAX_LIST, arguments, &list, &args), -1);
    sl_args_free(&args);
    assert_int_equal(list.n, SL_OPT_MAX_LIST);
    for (int i = 0; i < SL_OPT_MAX_LIST; i++)
        assert_string_equal(list.items[i], items[i] + 7);
    list = (sl_opt_list){0};
    assert_int_equal(sl_opts_parse(&command, SL_OPT_MAX_LIST + 1, arguments, &list, &args),
                     SL_EXIT_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_strings),    cmocka_unit_test(test_stop_strings_after_thinking),
        cmocka_unit_test(test_think_budget),    cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_penalties),       cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_limit_of_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
