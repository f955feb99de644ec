/* The program as its users meet it: help, mistakes, streams, exit statuses, answers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "answers.h"
#include "gguf_build.h"
#include "models.h"
#include "opts.h"
#include "process.h"
#include "prompt.h"
#include "text_data.h"

#define TINY "models/tiny-q8_0.gguf"
#define RAND "tests/data/models/rand-r1-q8_0.gguf"
#define FULL "/dev/full"

static const char *const commands[] = {"run",   "info",    "tokenize", "logits", "parity",
                                       "bench", "profile", "doctor",   "help",   "version"};

static void expect(sl_process process, int exit_status, const char *part_of_out,
                   const char *part_of_err)
{
    sl_process_expect(&process, exit_status, part_of_out, part_of_err);
    sl_process_free(&process);
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

static const char *member(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* ---- help and mistakes ---- */

static void test_help(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(commands); i++) {
        char usage[64];
        snprintf(usage, sizeof usage, "usage: sluice %s", commands[i]);
        sl_process page = sl_sluice(NULL, "help", commands[i]);
        sl_process_expect(&page, 0, usage, NULL);
        assert_string_equal(page.err, "");
        sl_process same = sl_sluice(NULL, commands[i], "--help");
        assert_string_equal(same.out, page.out);
        sl_process_free(&same);
        for (const char *line = page.out; *line; line += *line == '\n') {
            const size_t n = strcspn(line, "\n");
            if (n > 80)
                fail_msg("help of %s: a line of %zu columns: %.*s", commands[i], n, (int)n, line);
            line += n;
        }
        sl_process_free(&page);
        expect(sl_sluice(NULL, "help"), 0, commands[i], NULL);
    }
    expect(sl_sluice(NULL, "--help"), 0, "commands:", NULL);
    expect(sl_sluice(NULL, "--version"), 0, "sluice 0.", NULL);
    expect(sl_sluice(NULL, "version"), 0, sl_version(), NULL);
}

static void test_wrong_usage(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[6], *part;
    } cases[] = {
        {{"rum"}, "did you mean 'run'?"},
        {{"xyzzy"}, "there is no command 'xyzzy'\n"},
        {{"help", "tokenise"}, "did you mean 'tokenize'?"},
        {{"run", TINY, "--gredy", "x"}, "did you mean --greedy?"},
        {{"run", TINY, "--max-toknes=5", "x"}, "did you mean --max-tokens?"},
        {{"run", TINY, "--quxx", "x"}, "there is no option --quxx\n"},
        {{"run", TINY, "-Z", "x"}, "there is no option -Z\n"},
        {{"run"}, "sluice run MODEL [PROMPT]"},
        {{"run", TINY, "a", "b"}, "'b' is one argument too many"},
        {{"run", TINY, "x", "--max-tokens"}, "--max-tokens needs a value: --max-tokens N"},
        {{"run", TINY, "x", "-n", "0"}, "-n: '0' is not a whole number from 1"},
        {{"run", TINY, "x", "-n", "5x"}, "'5x' is not a whole number"},
        {{"run", TINY, "x", "-n", "99999999999999999999"}, "is not a whole number"},
        {{"run", TINY, "x", "--temp", "-1"}, "--temp: '-1' is not a number from 0 to 100"},
        {{"run", TINY, "x", "--temp", "nan"}, "'nan' is not a number"},
        {{"run", TINY, "x", "--top-p", "1.5"}, "is not a number from 0 to 1"},
        {{"run", TINY, "x", "--think", "maybe"}, "'maybe' is not one of on|off"},
        {{"run", TINY, "x", "--json=perhaps"}, "--json: 'perhaps' is neither on nor off"},
        {{"run", TINY, "x", "-n5x"}, "-n: '5x' is not a whole number"},
        {{"run", TINY, "x", "-n=5"}, "-n: '=5' is not a whole number"},
        {{"run", TINY, "x", "-temp", "1"}, "there is no option -temp; did you mean --temp?"},
        {{"run", TINY, "x", "-json"}, "did you mean --json?"},
        {{"run", TINY, "x", "-vv"}, "there is no option -vv\n"},
        {{"tokenize", TINY, "x", "--file", "y"}, "as an argument or as a file"},
        {{"tokenize", TINY, "x", "--threads", "1"}, "there is no option --threads\n"},
        {{"run", TINY, "x", "--raw", "--system=s"}, "--raw leaves out"},
        {{"tokenize", TINY, "a", "b"}, "put the text in quotes"},
        {{"logits", TINY, "--tokens", "1"}, "--out FILE is missing"},
        {{"logits", TINY, "--out", "x"}, "either --tokens or --text"},
        {{"logits", TINY, "--out=-", "--tokens=1"}, "--out: give a file, not standard output"},
        {{"parity", TINY}, "--golden FILE is missing"},
        {{"version", "x"}, "'x' is one argument too many"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_process p = sl_process_run(cases[i].arguments, NULL);
        sl_process_expect(&p, 2, NULL, cases[i].part);
        assert_string_equal(p.out, "");
        assert_non_null(strstr(p.err, "Try 'sluice "));
        sl_process_free(&p);
    }
    expect(sl_sluice(NULL, NULL), 2, NULL, "a command is missing");
}

static void test_names_that_are_near(void **state)
{
    (void)state;
    static const char *const names[] = {"max-tokens", "min-p", "temp", "top-k", "top-p"};
    assert_string_equal(sl_nearest_name("tmep", names, 5), "temp");
    assert_string_equal(sl_nearest_name("max", names, 5), "max-tokens");
    assert_string_equal(sl_nearest_name("minp", names, 5), "min-p");
    assert_null(sl_nearest_name("", names, 5));
    assert_null(sl_nearest_name("verbose", names, 5));
    char longest[1000];
    memset(longest, 'm', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(sl_nearest_name(longest, names, 5));
}

static void test_environment(void **state)
{
    (void)state;
    const sl_process_setup bad = {.env = "SLUICE_TEMP=warm"};
    expect(sl_sluice(&bad, "run", TINY, "x"), 2, NULL, "SLUICE_TEMP: 'warm' is not a number");
    const sl_process_setup json = {.env = "SLUICE_JSON=1"};
    expect(sl_sluice(&json, "tokenize", RAND, "a"), 0, "{\"n\": 1", NULL);
    expect(sl_sluice(&json, "tokenize", RAND, "a", "--json=off"), 0, "64\n", NULL);
    const sl_process_setup off = {.env = "SLUICE_JSON=no"};
    expect(sl_sluice(&off, "tokenize", RAND, "a"), 0, "64\n", NULL);
    const sl_process_setup empty = {.env = "SLUICE_JSON="};
    expect(sl_sluice(&empty, "tokenize", RAND, "a"), 0, "64\n", NULL);
    const sl_process_setup length = {.env = "SLUICE_MAX_TOKENS=3"};
    sl_process p = sl_sluice(&length, "run", TINY, "Count from 3 to 8.", "--greedy", "--json");
    json_t *answer = parse(&p);
    assert_string_equal(member(answer, "finish_reason"), "length");
    assert_int_equal(json_integer_value(json_object_get(answer, "completion_tokens")), 3);
    json_decref(answer);
}

/* ---- models ---- */

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void test_refused_models(void **state)
{
    (void)state;
    char cut[4096];
    size_t n;
    snprintf(cut, sizeof cut, "%s", sl_build_path("test_cli_cut.gguf"));
    char *whole = sl_test_read_file(RAND, &n);
    write_file(cut, whole, n / 2);
    static const char *const which[] = {"run", "info", "tokenize", "logits", "parity"};
    const struct {
        const char *path, *part;
    } cases[] = {
        {"no/such/model.gguf", "no/such/model.gguf: cannot be opened: No such file"},
        {"tests/data/questions.jsonl", "is not a model"},
        {"tests/data/logits", "tests/data/logits"},
        {cut, "test_cli_cut.gguf"},
    };
    for (size_t c = 0; c < SL_COUNTOF(which); c++) {
        for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
            sl_process p = strcmp(which[c], "logits") == 0
                               ? sl_sluice(NULL, which[c], cases[i].path, "--text=x", "--out=x")
                           : strcmp(which[c], "parity") == 0
                               ? sl_sluice(NULL, which[c], cases[i].path, "--golden=x")
                               : sl_sluice(NULL, which[c], cases[i].path);
            sl_process_expect(&p, 3, NULL, cases[i].part);
            assert_string_equal(p.out, "");
            sl_process_free(&p);
        }
    }
    free(whole);
    remove(cut);
    expect(sl_sluice(NULL, "run", "", "x"), 2, NULL, "the name of the model is empty");
    /* Options that opening refuses are no fault of the model. */
    expect(sl_sluice(NULL, "run", RAND, "x", "--isa", "mmx"), 2, NULL, "no instruction-set level");
    expect(sl_sluice(NULL, "run", RAND, "x", "--device", "tape"), 2, NULL, "'tape' is no device");
#if defined(__x86_64__)
    expect(sl_sluice(NULL, "run", RAND, "x", "--isa", "neon"), 2, NULL, "cannot run the neon");
#endif
}

static void test_info(void **state)
{
    (void)state;
    expect(sl_sluice(NULL, "info", TINY), 0, "tokenizer.ggml.pre", NULL);
    expect(sl_sluice(NULL, "info", TINY, "--tensors"), 0, "blk.0.attn_norm.weight", NULL);
    expect(sl_sluice(NULL, "info", RAND, "--ctx", "99999999"), 1, NULL, "the model's context is");
    sl_process p = sl_sluice(NULL, "info", TINY, "--json", "--tensors", "--ctx", "100");
    json_t *info = parse(&p);
    assert_string_equal(member(info, "architecture"), "qwen35");
    const json_t *config = json_object_get(info, "config");
    assert_int_equal(json_integer_value(json_object_get(config, "layers")), 8);
    assert_int_equal(json_integer_value(json_object_get(info, "context")), 100);
    assert_int_equal(json_array_size(json_object_get(info, "tensors")), 52 + 71);
    const json_t *memory = json_object_get(info, "memory");
    /* Rows are mapped, panels are not; a matrix may be both, when it is also a table of rows. */
    assert_true(json_integer_value(json_object_get(memory, "weights_mapped")) > 0);
    assert_true(json_integer_value(json_object_get(memory, "weights_mapped")) +
                    json_integer_value(json_object_get(memory, "weights_packed")) >
                11000000);
    json_decref(info);
    p = sl_sluice(NULL, "info", "tests/data/models/rand-moe", "--json");
    info = parse(&p);
    assert_string_equal(member(info, "container"), "safetensors");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(info, "config"), "experts")), 8);
    /* What the folder's files say, by path. */
    const json_t *metadata = json_object_get(info, "metadata");
    assert_string_equal(member(metadata, "config.num_experts"), "8");
    assert_string_equal(member(metadata, "config.hidden_act"), "\"silu\"");
    json_decref(info);
}

/* Names in a hostile file cannot steer the terminal, nor break the JSON. */
static void test_hostile_names(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_names.gguf"));
    sl_gguf_build b;
    sl_gguf_fields fields;
    sl_gguf_build_read(&b, RAND);
    sl_gguf_fields_init(&fields, b.data, b.n_bytes);
    const size_t name =
        sl_gguf_fields_get(&fields, SL_FIELD_KEY_LENGTH, "general.type", 0)->offset + 8;
    sl_gguf_build_set(&b, name, 1, 0x1B);
    sl_gguf_build_set(&b, name + 1, 1, 0xFF);
    sl_gguf_fields_free(&fields);
    write_file(path, b.data, b.n_bytes);
    sl_gguf_build_free(&b);
    sl_process p = sl_sluice(NULL, "info", path);
    sl_process_expect(&p, 0, "\xEF\xBF\xBD\xEF\xBF\xBDneral.type", NULL);
    assert_null(strchr(p.out, 0x1B));
    sl_process_free(&p);
    p = sl_sluice(NULL, "info", path, "--json");
    json_decref(parse(&p));
    remove(path);
}

/* ---- tokenize ---- */

static void test_tokenize_round_trip(void **state)
{
    (void)state;
    static const char text[] = "Hello <|im_end|>\n w\xC3\xB6rld \xF0\x9F\x90\xB1 12  \n\n";
    const sl_process_setup input = {.input = text};
    sl_process ids = sl_sluice(&input, "tokenize", TINY);
    sl_process_expect(&ids, 0, "2652", NULL);
    const sl_process_setup back = {.input = ids.out};
    sl_process decoded = sl_sluice(&back, "tokenize", TINY, "--decode");
    assert_int_equal(decoded.exit_status, 0);
    assert_string_equal(decoded.out, text);
    sl_process_free(&decoded);
    sl_process_free(&ids);

    sl_process p = sl_sluice(NULL, "tokenize", TINY, text, "--special", "off", "--json");
    json_t *result = parse(&p);
    const json_t *list = json_object_get(result, "ids");
    assert_int_equal(json_integer_value(json_object_get(result, "n")), json_array_size(list));
    assert_int_equal(json_array_size(json_object_get(result, "pieces")), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_true(json_integer_value(json_array_get(list, i)) < 2650);
    json_decref(result);
    expect(sl_sluice(NULL, "tokenize", TINY, "--pieces", "Hello"), 0, "1324  \"Hello\"\n", NULL);
    expect(sl_sluice(NULL, "tokenize", TINY, "--decode", "1324,220", "220"), 0, "Hello  ", NULL);
    expect(sl_sluice(NULL, "tokenize", TINY, "--decode", "--json", "127"), 0, "{\"text\": \"",
           NULL);
    expect(sl_sluice(NULL, "tokenize", TINY, "--decode", "2688"), 1, NULL,
           "'2688' is not a token id from 0 to 2687");
    expect(sl_sluice(NULL, "tokenize", TINY, "--decode", "-1"), 2, NULL, "there is no option -1");
    expect(sl_sluice(NULL, "tokenize", TINY, "-f", "no-such-file"), 1, NULL, "no-such-file: No");
}

/* ---- answers ---- */

static const char question[] = "What is the capital of France?";
static const char reply[] = "The capital of France is Paris.\n";

static void test_where_the_prompt_comes_from(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_prompt.txt"));
    write_file(path, question, strlen(question));
    const sl_process_setup input = {.input = question};
    sl_process answers[] = {
        sl_sluice(NULL, "run", TINY, question, "--greedy"),
        sl_sluice(&input, "run", TINY, "--greedy"),
        sl_sluice(&input, "run", TINY, "-", "--temp=0"),
        sl_sluice(&input, "run", "--greedy", TINY, "-f", "-"),
        sl_sluice(NULL, "run", "--greedy", "--file", path, "--", TINY),
    };
    for (size_t i = 0; i < SL_COUNTOF(answers); i++) {
        sl_process_expect(&answers[i], 0, reply, NULL);
        assert_string_equal(answers[i].out, reply);
        assert_string_equal(answers[i].err, "");
        sl_process_free(&answers[i]);
    }
    expect(sl_sluice(NULL, "run", TINY, "-f", "no-such-file"), 1, NULL, "no-such-file: No such");
    remove(path);
}

/* Random weights answer otherwise at every change of the prompt. */
static json_t *continued(const sl_process_setup *setup, const char *argument, const char *file)
{
    sl_process p =
        file ? sl_sluice(setup, "run", RAND, "--raw", "--greedy", "-n8", "--json", "-f", file,
                         argument)
             : sl_sluice(setup, "run", RAND, "--raw", "--greedy", "-n8", "--json", argument);
    sl_process_expect(&p, 0, NULL, NULL);
    json_t *answer = parse(&p);
    json_t *text = json_incref(json_object_get(answer, "text"));
    assert_true(json_string_length(text) > 0);
    json_decref(answer);
    return text;
}

/* An argument and a text from elsewhere make one prompt, with a blank line between them. */
static void test_prompt_in_two_parts(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_part.txt"));
    write_file(path, "b\n", 2);
    const sl_process_setup input = {.input = "b\n"}, other = {.input = "c"},
                           both = {.input = "a\n\nb\n"};
    json_t *wanted = continued(NULL, "a\n\nb\n", NULL), *alone = continued(NULL, "a", NULL);
    json_t *same[] = {
        continued(&input, "a", NULL), continued(NULL, "a", path), continued(&input, "a", "-"),
        continued(&other, "a", path), /* a file is meant instead of standard input */
        continued(&both, "-", NULL),
    };
    for (size_t i = 0; i < SL_COUNTOF(same); i++) {
        assert_string_equal(json_string_value(same[i]), json_string_value(wanted));
        json_decref(same[i]);
    }
    assert_string_not_equal(json_string_value(alone), json_string_value(wanted));
    json_t *empty = continued(NULL, "a", "/dev/null");
    assert_string_equal(json_string_value(empty), json_string_value(alone));
    json_decref(empty);
    json_decref(wanted);
    json_decref(alone);
    expect(sl_sluice(NULL, "run", TINY, "a", "-f", "no-such-file"), 1, NULL, "no-such-file: No");
    expect(sl_sluice(NULL, "run", TINY, "a", "-f", "/"), 1, NULL, "/: Is a directory");
    remove(path);
}

static void test_raw_text(void **state)
{
    (void)state;
    static const char prompt[] = "<|im_start|>user\nWhat is 9 - 5?<|im_end|>\n"
                                 "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    expect(sl_sluice(NULL, "run", TINY, prompt, "--raw", "--greedy"), 0, "9 - 5 = 4.\n", NULL);
    expect(sl_sluice(NULL, "run", TINY, "", "--raw"), 1, NULL, "the prompt is empty");
    expect(sl_sluice(NULL, "run", TINY), 1, NULL, "the prompt is empty");
}

static void test_thinking(void **state)
{
    (void)state;
    static const char thinking[] = "The user asks for the capital of France. It is Paris.\n";
    sl_process p = sl_sluice(NULL, "run", TINY, question, "--greedy", "--think", "on");
    sl_process_expect(&p, 0, reply, thinking);
    assert_string_equal(p.out, reply);
    assert_null(strchr(p.err, '\033'));
    sl_process_free(&p);
    p = sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=on", "--show-thinking");
    char both[256];
    snprintf(both, sizeof both, "<think>\n%s</think>\n\n%s", thinking, reply);
    assert_string_equal(p.out, both);
    assert_string_equal(p.err, "");
    sl_process_free(&p);
    expect(sl_sluice(NULL, "run", TINY, question, "--greedy", "--think=off"), 0, reply, NULL);
}

static void test_verbose_and_plan(void **state)
{
    (void)state;
    sl_process p = sl_sluice(NULL, "run", TINY, question, "-v", "--seed", "7", "--threads", "1");
    sl_process_expect(&p, 0, NULL, "seed 7");
    static const char *const parts[] = {"qwen35", "prompt ", "answer ", "tokens/s", "memory "};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++)
        assert_non_null(strstr(p.err, parts[i]));
    sl_process_free(&p);
    expect(sl_sluice(NULL, "run", TINY, "--plan"), 0, "attention", NULL);
    expect(sl_sluice(NULL, "run", TINY, "--plan", question), 0, "gdn", NULL);
    expect(sl_sluice(NULL, "run", TINY, "--plan", "--json"), 2, NULL, "has no JSON form");
    expect(sl_sluice(NULL, "run", TINY, "--plan", "--format=json"), 2, NULL, "has no JSON form");
}

/* The same seed draws the same answer, whatever the threads; the seed that was drawn is told. */
static void test_seeds(void **state)
{
    (void)state;
    sl_process a = sl_sluice(NULL, "run", TINY, "Tell me a story.", "--json", "-n", "12", "--temp",
                             "1.5", "--top-p", "1", "--top-k", "0", "--min-p", "0.001");
    json_t *first = parse(&a);
    char seed[32];
    snprintf(
        seed, sizeof seed, "%lld",
        (long long)json_integer_value(json_object_get(json_object_get(first, "sampling"), "seed")));
    sl_process b =
        sl_sluice(NULL, "run", TINY, "Tell me a story.", "--json", "-n", "12", "--temp", "1.5",
                  "--top-p", "1", "--top-k", "0", "--min-p", "0.001", "--seed", seed, "-t", "3");
    json_t *second = parse(&b);
    assert_string_equal(member(first, "text"), member(second, "text"));
    json_decref(first);
    json_decref(second);
}

/* A penalty keeps the answer from repeating itself; greedy answers have none unless asked. */
static void test_presence_penalty(void **state)
{
    (void)state;
    static const char request[] = "Repeat after me: fox fox fox";
    expect(sl_sluice(NULL, "run", TINY, request, "--greedy"), 0, "fox fox fox\n", NULL);
    sl_process p = sl_sluice(NULL, "run", TINY, request, "--json", "--greedy", "--presence-penalty",
                             "100", "-n", "12");
    json_t *answer = parse(&p);
    /* "fox" and " fox" are two tokens: each may come once. */
    assert_null(strstr(member(answer, "text"), "fox fox fox"));
    const json_t *sampling = json_object_get(answer, "sampling");
    assert_true(json_real_value(json_object_get(sampling, "presence_penalty")) == 100);
    json_decref(answer);
    expect(sl_sluice(NULL, "run", TINY, "x", "--presence-penalty", "101"), 2, NULL,
           "is not a number from -100 to 100");
}

static void test_limits_of_length(void **state)
{
    (void)state;
    expect(sl_sluice(NULL, "run", TINY, "--raw", "-c", "3", "one two three four five"), 1, NULL,
           "tokens, the context holds 3");
    expect(sl_sluice(NULL, "run", TINY, "x", "-c", "99999999"), 1, NULL,
           "the model's context is 32768 tokens");
    sl_process p = sl_sluice(NULL, "run", TINY, "--greedy", "--json", "-c", "24", question);
    json_t *answer = parse(&p);
    assert_string_equal(member(answer, "finish_reason"), "length");
    /* The last token drawn needs no room of its own. */
    assert_int_equal(json_integer_value(json_object_get(answer, "prompt_tokens")) +
                         json_integer_value(json_object_get(answer, "completion_tokens")),
                     25);
    json_decref(answer);
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    const sl_process_setup input = {.input = "What is \xFF the \xE2\x82 capital?\xC3"};
    sl_process p = sl_sluice(&input, "run", TINY, "--greedy", "-n", "4", "--json");
    sl_process_expect(&p, 0, NULL, "not valid UTF-8: 3 places read as U+FFFD");
    json_decref(parse(&p));
    expect(sl_sluice(&input, "tokenize", TINY), 0, NULL, "3 places");
    expect(sl_sluice(NULL, "run", TINY, "--greedy", "-n", "2", "--system", "a\xFF", "b"), 0, NULL,
           "the system message is not valid UTF-8: 1 place read as U+FFFD");
    const sl_process_setup zero = {.input = "a\0b", .n_input = 3};
    sl_process ids = sl_sluice(&zero, "tokenize", RAND);
    sl_process_expect(&ids, 0, "64 188 65\n", NULL);
    sl_process_free(&ids);
    expect(sl_sluice(&zero, "run", RAND, "-n", "2", "--greedy"), 0, NULL, NULL);
}

/* The longest text that is read, and one byte more. */
static void test_limit_of_a_prompt(void **state)
{
    (void)state;
    enum { LIMIT = 64 << 20 };
    sl_error err;
    sl_buf text;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_long.txt"));
    write_file(path, "x", 1);
    assert_int_equal(truncate(path, LIMIT), 0);
    assert_ok(sl_prompt_read(NULL, path, &text, &err));
    assert_int_equal(text.n_bytes, LIMIT);
    sl_buf_free(&text);
    assert_int_equal(truncate(path, LIMIT + 1), 0);
    assert_refused(sl_prompt_read(NULL, path, &text, &err), SL_ERR_LIMIT, "larger than 64 MiB");
    remove(path);
}

static void test_tools(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_tools.json"));
    static const char *const bad[][2] = {
        {"{\"a\": 1}", "the tools are not a JSON array"},
        {"[1,", "line 1"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        write_file(path, bad[i][0], strlen(bad[i][0]));
        expect(sl_sluice(NULL, "run", TINY, "x", "--tools", path), 1, NULL, bad[i][1]);
    }
    expect(sl_sluice(NULL, "run", TINY, "x", "--tools", "no-such-file"), 1, NULL, "no-such-file");
    remove(path);
}

/* The calls told are those of the recorded text, and no text is left. */
static void check_calls(const json_t *answer, const char *recorded, const json_t *tools)
{
    const sl_outparse_options options = {.tools = tools};
    const size_t n = strlen(recorded) - strlen("<|im_end|>");
    json_t *wanted = sl_test_answer_whole(recorded, n, &options);
    const json_t *calls = json_object_get(answer, "tool_calls");
    const json_t *wanted_calls = json_object_get(wanted, "tool_calls");
    assert_int_equal(json_array_size(calls), 1);
    assert_int_equal(json_array_size(wanted_calls), 1);
    const json_t *call = json_array_get(calls, 0), *wanted_call = json_array_get(wanted_calls, 0);
    assert_string_equal(member(call, "name"), member(wanted_call, "name"));
    assert_string_equal(member(call, "arguments"), member(wanted_call, "arguments"));
    assert_string_equal(member(answer, "text"), "");
    json_decref(wanted);
}

/* The demonstration model answers every recorded question exactly. */
static void ask(const json_t *line, const char *tools_path)
{
    const json_t *message = json_array_get(json_object_get(line, "messages"), 0);
    const json_t *tools = json_object_get(line, "tools");
    const json_t *think = json_object_get(json_object_get(line, "kwargs"), "enable_thinking");
    const char *arguments[12] = {"run", TINY, "--greedy", "--json"};
    size_t n = 4;
    if (json_is_array(tools)) {
        char *text = json_dumps(tools, 0);
        assert_non_null(text);
        write_file(tools_path, text, strlen(text));
        free(text);
        arguments[n++] = "--tools";
        arguments[n++] = tools_path;
    }
    if (think) {
        arguments[n++] = "--think";
        arguments[n++] = json_is_true(think) ? "on" : "off";
    }
    arguments[n++] = member(message, "content");
    sl_process p = sl_process_run(arguments, NULL);
    sl_process_expect(&p, 0, NULL, NULL);
    json_t *answer = parse(&p);
    assert_string_equal(member(answer, "finish_reason"), "stop");
    if (json_is_array(tools)) {
        check_calls(answer, member(line, "answer"), tools);
        json_decref(answer);
        return;
    }
    assert_int_equal(json_array_size(json_object_get(answer, "tool_calls")), 0);
    char text[1024];
    const char *thinking = member(answer, "thinking");
    snprintf(text, sizeof text, "%s%s%s<|im_end|>", thinking, *thinking ? "\n</think>\n\n" : "",
             member(answer, "text"));
    assert_string_equal(text, member(line, "answer"));
    json_decref(answer);
}

static void test_recorded_questions(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_tools.json"));
    sl_test_lines lines = {0};
    size_t n = 0;
    sl_test_lines_open(&lines, "tests/data/questions.jsonl");
    for (json_t *line; (line = sl_test_lines_next(&lines)); n++) {
        /* The first and the last are of different kinds: a fact and a tool call. */
        if (!sl_test_shortened() || n == 0 || n == 22)
            ask(line, path);
        json_decref(line);
    }
    assert_int_equal(n, 23);
    sl_test_lines_close(&lines);
    remove(path);
}

/* ---- streams ---- */

static void test_full_disk(void **state)
{
    (void)state;
    if (access(FULL, W_OK) != 0)
        skip_because("this machine has no " FULL);
    const sl_process_setup full = {.out_path = FULL};
    static const char part[] = "standard output: No space left on device";
    expect(sl_sluice(&full, "info", RAND), 1, NULL, part);
    expect(sl_sluice(&full, "info", RAND, "--json"), 1, NULL, part);
    expect(sl_sluice(&full, "tokenize", RAND, "a"), 1, NULL, part);
    expect(sl_sluice(&full, "run", TINY, question, "--greedy"), 1, NULL, part);
    expect(sl_sluice(&full, "run", TINY, question, "--greedy", "--json"), 1, NULL, part);
    expect(sl_sluice(&full, "run", RAND, "--plan"), 1, NULL, part);
    expect(sl_sluice(&full, "help"), 1, NULL, part);
    expect(sl_sluice(&full, "version"), 1, NULL, part);
    expect(sl_sluice(NULL, "logits", RAND, "--tokens", "1,2", "--out", FULL), 1, NULL,
           FULL ": No space left on device");
    expect(sl_sluice(NULL, "logits", RAND, "--tokens", "1,2", "--out", "no/such/folder/x"), 1, NULL,
           "no/such/folder/x: No such file or directory");
}

static void test_closed_pipe(void **state)
{
    (void)state;
    const sl_process_setup unread = {.out_unread = true};
    static const char message[] = "sluice: standard output: Broken pipe\n";
    sl_process p = sl_sluice(&unread, "run", TINY, question, "--greedy");
    assert_int_equal(p.exit_status, 1);
    assert_string_equal(p.err, message);
    sl_process_free(&p);
    p = sl_sluice(&unread, "info", RAND);
    assert_int_equal(p.exit_status, 1);
    assert_string_equal(p.err, message);
    sl_process_free(&p);
}

/* The next file to be opened would take its place. */
static void test_closed_output(void **state)
{
    (void)state;
    const sl_process_setup closed = {.out_closed = true};
    static const char part[] = "standard output: Bad file descriptor";
    expect(sl_sluice(&closed, "version"), 1, NULL, part);
    expect(sl_sluice(&closed, "info", RAND), 1, NULL, part);
    expect(sl_sluice(&closed, "run", RAND, "a", "-n", "1"), 1, NULL, part);
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_cli_closed.safetensors"));
    expect(sl_sluice(&closed, "logits", RAND, "--tokens", "1", "--out", path), 0, NULL, NULL);
    remove(path);
}

/* A limit on the size of files is an error of write, not the signal that it sends. */
static void test_file_size_limit(void **state)
{
    (void)state;
    char path[4096], folder[2048];
    snprintf(folder, sizeof folder, "%s", sl_build_path("test_cli_limit"));
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1024; /* the logits have 512 * 4 bytes */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    sl_process p = sl_sluice(NULL, "logits", RAND, "--tokens", "1", "--out", path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect(p, 1, NULL, "x.safetensors: File too large");
    assert_int_equal(rmdir(folder), 0); /* nothing is left behind */
}

/* Arguments for an answer that does not end by itself soon: random tokens, a fixed seed. */
#define ENDLESS \
    "run", TINY, "Tell me a story.", "--temp", "50", "--top-k", "0", "--top-p", "1", "--seed", \
        "3", "-c", "16384"

static void test_interrupt(void **state)
{
    (void)state;
    const sl_process_setup setup = {.interrupt = true};
    sl_process p = sl_sluice(&setup, ENDLESS);
    sl_process_expect(&p, 130, "\n", NULL);
    assert_true(p.n_out > 0 && p.out[p.n_out - 1] == '\n');
    sl_process_free(&p);
}

static void test_background_job(void **state)
{
    (void)state;
    const sl_process_setup setup = {.interrupt = true, .background = true};
    sl_process p = sl_sluice(&setup, "run", TINY, "hello", "--greedy", "-n", "8");
    sl_process_expect(&p, 0, NULL, NULL);
    sl_process_free(&p);
}

/* On a terminal thinking is dim and ends plain, also when interrupted; NO_COLOR and terminals that
 * know no colours are respected. */
static void test_terminal(void **state)
{
    (void)state;
    const sl_process_setup terminal = {.terminal = true};
    sl_process p = sl_sluice(&terminal, "run", TINY, question, "--greedy", "--think", "on");
    sl_process_expect(&p, 0, "\033[2mThe user asks", NULL);
    const char *plain = strstr(p.out, "\033[0m");
    assert_non_null(plain);
    assert_non_null(strstr(plain, "The capital of France is Paris."));
    sl_process_free(&p);

    static const char *const without_colour[] = {"NO_COLOR=1", "TERM=dumb"};
    for (size_t i = 0; i < SL_COUNTOF(without_colour); i++) {
        const sl_process_setup setup = {.terminal = true, .env = without_colour[i]};
        p = sl_sluice(&setup, "run", TINY, question, "--greedy", "--think", "on");
        sl_process_expect(&p, 0, "The user asks", NULL);
        assert_null(strchr(p.out, '\033'));
        sl_process_free(&p);
    }

    const sl_process_setup interrupted = {.terminal = true, .interrupt = true};
    p = sl_sluice(&interrupted, ENDLESS, "--think", "on");
    sl_process_expect(&p, 130, "\033[0m", NULL);
    sl_process_free(&p);

    expect(sl_sluice(&terminal, "run", TINY, "--raw"), 2, "give the prompt as an argument", NULL);
    expect(sl_sluice(&terminal, "tokenize", TINY), 2, "give the text as an argument", NULL);
    expect(sl_sluice(&terminal, "tokenize", TINY, "--decode", "1324"), 0, "Hello\r\n", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_names_that_are_near),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_hostile_names),
        cmocka_unit_test(test_tokenize_round_trip),
        cmocka_unit_test(test_where_the_prompt_comes_from),
        cmocka_unit_test(test_prompt_in_two_parts),
        cmocka_unit_test(test_raw_text),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_verbose_and_plan),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_presence_penalty),
        cmocka_unit_test(test_limits_of_length),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_limit_of_a_prompt),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_recorded_questions),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_closed_pipe),
        cmocka_unit_test(test_closed_output),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_background_job),
        cmocka_unit_test(test_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
