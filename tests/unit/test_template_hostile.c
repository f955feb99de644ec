/* Templates that want to crash, hang or fill memory; and templates that are broken. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "templates.h"
#include "text_data.h"

#define QWEN "tests/data/template/qwen3.5-4b.jinja"

static const char conversation[] =
    "[{'role': 'system', 'content': 'S'}, {'role': 'user', 'content': 'a'},"
    " {'role': 'assistant', 'content': '<think>x</think>y', 'tool_calls': [{'function':"
    " {'name': 'f', 'arguments': {'p': 1, 'q': [2]}}}]}, {'role': 'tool', 'content': 't'},"
    " {'role': 'user', 'content': [{'type': 'text', 'text': 'b'}]}]";

/* Compiles and renders on a small stack. */
typedef struct job {
    const char *source;
    size_t n;
    const json_t *messages;
    sl_status status;
    sl_error err;
    size_t n_bytes;
} job;

static void *run_job(void *arg)
{
    job *j = arg;
    sl_template_input input = {.messages = j->messages};
    sl_marked_text out;
    j->status = sl_test_render(j->source, j->n, &input, &out, &j->err);
    if (j->status == SL_OK) {
        j->n_bytes = out.text.n_bytes;
        sl_marked_text_free(&out);
    }
    return NULL;
}

static job run_source(const char *source, size_t n, const json_t *messages)
{
    job j = {.source = source, .n = n, .messages = messages};
    sl_test_on_small_stack(run_job, &j);
    return j;
}

static void expect_limit(const char *source, const char *part)
{
    sl_mem_stats before = sl_mem_get_stats();
    job j = run_source(source, strlen(source), NULL);
    if (j.status != SL_ERR_LIMIT || !strstr(j.err.message, part))
        fail_msg("%s: %s %s", source, sl_status_name(j.status), j.err.message);
    assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
}

/* head, `count` times open, middle, `count` times close, tail. Release with free. */
static char *nested(const char *head, const char *open, const char *middle, const char *close,
                    const char *tail, size_t count)
{
    size_t n =
        strlen(head) + strlen(middle) + strlen(tail) + count * (strlen(open) + strlen(close)) + 1;
    char *text = malloc(n);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", head);
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, "%s", open);
    at += sprintf(at, "%s", middle);
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, "%s", close);
    sprintf(at, "%s", tail);
    return text;
}

/* Nesting of every kind: what is shallow works, what is deep is refused, on 64 KiB of stack. */
static void test_nesting(void **state)
{
    (void)state;
    static const struct {
        const char *head, *open, *middle, *close, *tail;
        size_t fits;
    } cases[] = {
        {"{{ ", "(", "1", ")", " }}", 60},
        {"{{ ", "[", "1", "]", " }}", 60},
        {"{{ ", "{1:", "1", "}", " }}", 60},
        {"{{ ", "-", "1", "", " }}", 60},
        {"{{ ", "not ", "1", "", " }}", 60},
        {"{{ ", "1+(", "1", ")", " }}", 30},
        {"{{ ", "1 or 1 and 1 == 1 + '' ~ 1 * 1 ** (", "1", ")", " }}", 7},
        {"{{ ", "range(", "1", ")", " }}", 1},
        {"{{ ", "dict(a=", "1", ")", " }}", 60},
        {"{{ ", "[1][", "0", "]", " }}", 1},
        {"{{ ", "'a'[:", "0", "]", " }}", 1},
        {"{{ ", "1 if 1 else ", "1", "", " }}", 60},
        {"{{ ", "'a'|default(", "1", ")", " }}", 60},
        {"{{ ", "1 is eq(", "1", ")", " }}", 60},
        {"{{ ", "1 is eq [", "1", "]", " }}", 1},
        {"", "{% if 1 %}", "a", "{% endif %}", "", 60},
        {"", "{% for i in [1] %}", "a", "{% endfor %}", "", 60},
        {"", "{% if 0 %}{% else %}", "a", "{% endif %}", "", 60},
        {"", "{% set x %}", "a", "{% endset %}", "", 60},
        {"", "{% with %}", "a", "{% endwith %}", "", 60},
        {"", "{% filter upper %}", "a", "{% endfilter %}", "", 60},
        {"", "{% generation %}", "a", "{% endgeneration %}", "", 60},
        {"", "{% macro f() %}", "a", "{% endmacro %}", "", 60},
        {"{% macro f() %}{{ caller() }}{% endmacro %}", "{% call f() %}", "a", "{% endcall %}", "",
         12},
        {"{% for ", "(", "a,", "),", " in [] %}{% endfor %}", 50},
    };
    static const size_t counts[] = {64, 65, 66, 100, 130, 1000, 20000};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char *text = nested(cases[i].head, cases[i].open, cases[i].middle, cases[i].close,
                            cases[i].tail, cases[i].fits);
        job j = run_source(text, strlen(text), NULL);
        if (j.status != SL_OK)
            fail_msg("%s: %s", text, j.err.message);
        free(text);
        for (size_t k = 0; k < SL_COUNTOF(counts); k++) {
            text = nested(cases[i].head, cases[i].open, cases[i].middle, cases[i].close,
                          cases[i].tail, counts[k]);
            j = run_source(text, strlen(text), NULL);
            if (counts[k] > 64 && j.status != SL_ERR_LIMIT)
                fail_msg("%s x %zu: %s %s", cases[i].open, counts[k], sl_status_name(j.status),
                         j.err.message);
            free(text);
        }
    }
}

/* Chains are lists, not depth: thousands of operators are fine. */
static void test_long_chains(void **state)
{
    (void)state;
    static const struct {
        const char *head, *open;
    } cases[] = {
        {"{{ 1", " + 1"},     {"{{ 1", " * 1"},
        {"{{ 1", " ~ ''"},    {"{{ 0", " or 0"},
        {"{{ 1", " and 1"},   {"{{ 1", " == 1"},
        {"{{ 1", "|abs"},     {"{{ []", "[:]"},
        {"{{ {}", ".copy()"}, {"{% if 0 %}", "{% elif 0 %}"},
        {"", "{{ 1 }}"},      {"{{ 1", ", 1"},
        {"{{ ''", "''"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const char *tail = i == 9 ? "{% endif %}" : i == 10 ? "" : " }}";
        char *text = nested(cases[i].head, cases[i].open, "", "", tail, 2000);
        job j = run_source(text, strlen(text), NULL);
        if (j.status != SL_OK)
            fail_msg("%s: %s", cases[i].open, j.err.message);
        free(text);
    }
}

static void test_run_time_depth(void **state)
{
    (void)state;
    expect_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested");
    expect_limit("{% macro f(a) %}{{ f([a]) }}{% endmacro %}{{ f(1) }}", "nested");
    expect_limit("{% macro f() %}{% for i in [1] %}{% if 1 %}{{ g(1, f=f) }}{% endif %}"
                 "{% endfor %}{% endmacro %}{% macro g(a, f) %}{{ ((((f()))))|trim ~ 'a' }}"
                 "{% endmacro %}{{ f() }}",
                 "nested");
    expect_limit("{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
                 "nested");
    expect_limit("{% macro f(x=f()) %}{% endmacro %}{{ f() }}", "nested");
    /* Macros that call themselves from deep inside every construct, for the widest frames. */
    static const struct {
        const char *open, *middle, *close;
    } frames[] = {
        {"dict(a=", "f()", ")"},
        {"[1]|map('default', ", "f()", ")|list"},
        {"'%s' % (", "f()", ",)"},
        {"1 is eq(", "f()", ")"},
        {"'a'[:1 if ", "f()", " else 2]"},
        {"1 + (", "f()", "|length)"},
        {"{'a': ", "f()", "}"},
        {"{% endmacro %}{% macro f() %}{% for i in [1] if 1 %}", "{{ f() }}",
         "{% else %}{% endfor %}"},
        {"{% set x %}", "{{ f() }}", "{% endset %}{{ x }}"},
        {"{% filter replace('a', 'b') %}", "{{ f() }}", "{% endfilter %}"},
        {"{% with a = 1 %}", "{{ f() }}", "{% endwith %}"},
        {"{% if 0 %}{% elif 1 %}", "{{ f() }}", "{% endif %}"},
        {"{% call g() %}", "{{ f() }}", "{% endcall %}"},
    };
    for (size_t i = 0; i < SL_COUNTOF(frames); i++) {
        bool tags = strncmp(frames[i].open, "{%", 2) == 0;
        for (size_t depth = 1; depth < 24; depth += 11) {
            char *text = nested(tags ? "{% macro g() %}{{ caller() }}{% endmacro %}{% macro f() %}"
                                     : "{% macro f() %}{{ ",
                                frames[i].open, frames[i].middle, frames[i].close,
                                tags ? "{% endmacro %}{{ f() }}" : " }}{% endmacro %}{{ f() }}",
                                tags && i == 7 ? 1 : depth);
            expect_limit(text, "nested");
            free(text);
        }
    }
#define DEEP(use) \
    "{% set ns = namespace(x=[], y=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}" \
    "{% set ns.y = [ns.y] %}{% endfor %}" use
    expect_limit(DEEP("{{ ns.x }}"), "nested");
    expect_limit(DEEP("{{ ns.x|tojson }}"), "nested");
    expect_limit(DEEP("{{ ns.x == ns.y }}"), "nested");
    expect_limit(DEEP("{{ ns.x < ns.y }}"), "nested");
    expect_limit(DEEP("{{ [ns.x, ns.y]|sort }}"), "nested");
    expect_limit(DEEP("{{ ns.x in [ns.y] }}"), "nested");
    expect_limit(DEEP("{{ '%s' % [ns.x] }}"), "nested");
    expect_limit("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "nested");
    expect_limit(
        "{% set ns = namespace(t=1) %}{% for i in range(500) %}{% set ns.t = {'a': ns.t} %}"
        "{% endfor %}{{ ns.t }}",
        "nested");
}

static void test_deep_input(void **state)
{
    (void)state;
    static const size_t depths[] = {60, 99, 101, 5000};
    for (size_t i = 0; i < SL_COUNTOF(depths); i++) {
        json_t *messages = json_array();
        for (size_t k = 1; k < depths[i]; k++) {
            json_t *outer = k % 2 == 0 ? json_array() : json_object();
            if (k % 2 == 0)
                json_array_append_new(outer, messages);
            else
                json_object_set_new(outer, "a", messages);
            messages = outer;
        }
        json_t *array = json_array();
        json_array_append_new(array, messages);
        job j = run_source("{{ messages|tojson|length }}", 28, array);
        assert_int_equal(j.status, depths[i] < 80 ? SL_OK : SL_ERR_LIMIT);
        json_decref(array);
    }
}

/* Things that grow. All end at a limit, soon, and give everything back. */
static void test_growth(void **state)
{
    (void)state;
#define REPEAT(init, step) \
    "{% set ns = namespace(s=" init ") %}{% for i in range(100) %}{% set ns.s = " step \
    " %}{% endfor %}{{ ns.s|length }}"
    expect_limit(REPEAT("'ab'", "ns.s ~ ns.s"), "bytes");
    expect_limit(REPEAT("'ab'", "ns.s + ns.s"), "bytes");
    expect_limit(REPEAT("'ab'", "ns.s * 9"), "bytes");
    expect_limit(REPEAT("'ab'", "ns.s|replace('a', ns.s)"), "bytes");
    expect_limit(REPEAT("'ab'", "ns.s.replace('', ns.s)"), "bytes");
    expect_limit(REPEAT("'ab'", "ns.s.join([ns.s, ns.s, ns.s])"), "bytes");
    expect_limit(REPEAT("'ab'", "'%s%s%s' % (ns.s, ns.s, ns.s)"), "bytes");
    expect_limit(REPEAT("'\"'", "ns.s|tojson"), "bytes");
    expect_limit(REPEAT("'&'", "ns.s|string|e|string ~ '&' ~ ns.s"), "bytes");
    expect_limit(REPEAT("[1]", "ns.s + ns.s"), "more than");
    expect_limit(REPEAT("[1]", "ns.s * 7"), "more than");
    expect_limit("{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}"
                 "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
                 "{{ ns.s == ns.t }}",
                 "steps");
    expect_limit("{% set ns = namespace(s=[1]) %}{% for i in range(60) %}"
                 "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}",
                 "more than");
    expect_limit("{{ 'x' * 9223372036854775807 }}", "bytes");
    expect_limit("{{ 'ab' * 100000000 }}", "bytes");
    expect_limit("{{ 'ab'.center(9223372036854775807) }}", "bytes");
    expect_limit("{{ 'ab'.ljust(9223372036854775807, 'é') }}", "bytes");
    expect_limit("{{ 'ab'.rjust(99999999) }}", "bytes");
    expect_limit("{{ '-b'.zfill(9223372036854775807) }}", "bytes");
    expect_limit("{{ 'ab'|center(9223372036854775807) }}", "bytes");
    expect_limit("{{ [1] * 9223372036854775807 }}", "");
    expect_limit("{{ [1] * 1000000000 }}", "");
    expect_limit("{{ range(1000000000)|list }}", "range");
    expect_limit("{{ range(-9223372036854775807, 9223372036854775807) }}", "range");
    expect_limit("{{ 'a'|indent(9223372036854775807, true) }}", "bytes");
    expect_limit("{{ '%99999999d' % 1 }}", "bytes");
    expect_limit("{{ 'a'|batch(9223372036854775807, 'x')|list }}", "");
    expect_limit("{% set s = 'a' * 16000000 %}{{ s }}{{ s }}", "bytes");
    expect_limit("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}"
                 "{% endfor %}",
                 "steps");
    expect_limit("{% for i in range(100000) %}{% for j in range(100000)|list %}{% endfor %}"
                 "{% endfor %}",
                 "");
    if (sl_test_shortened())
        return;
    /* Slow on purpose: each operation is quadratic in the worst case, or long and repeated. */
    expect_limit("{% set s = 'a' * 4000000 %}{{ (('a' * 2000000) ~ 'b') in s }}", "steps");
    expect_limit("{% set s = 'a' * 8000000 %}{{ s.rsplit('b' ~ 'a' * 4000000) }}", "steps");
    expect_limit("{% set s = ' ' * 8000000 %}{% for i in range(100000) %}{{ s.strip('x ') }}"
                 "{{ s.split() }}{% endfor %}",
                 "steps");
    expect_limit("{% set s = 'é' * 4000000 %}{% for i in range(100000) %}{{ s[3999999] }}"
                 "{% endfor %}",
                 "steps");
    expect_limit("{% set s = 'é' * 4000000 %}{% for i in range(100000) %}"
                 "{{ s.find('x', 3999999) }}{{ s.startswith('x', -2) }}{{ s.count('', 1) }}"
                 "{% endfor %}",
                 "steps");
    expect_limit("{% for i in range(100000) %}{{ 'a'.center(9000000)|length }}{% endfor %}", "");
    expect_limit("{% set s = range(100000)|list %}{% for i in range(100000) %}{{ 'x' in s }}"
                 "{% endfor %}",
                 "steps");
    expect_limit("{% set s = range(100000)|unique|list %}", "steps");
}

/* Building a text or list of honest size piece by piece is no attack. */
static void test_honest_growth(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = ns.s ~ "
        "messages[0].c ~ '<' ~ i %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = ns.s + "
        "messages[0].c + messages[0].c %}{% endfor %}{{ ns.s }}",
        "{% for i in range(100000) %}{{ messages[0].c }}{{ loop.index }}{% endfor %}",
        "{% set s %}{% for i in range(100000) %}{{ messages[0].c ~ '|' }}{% endfor %}{% endset %}"
        "{{ s.split('|')|join('!') }}",
    };
    json_t *messages = sl_test_json_of("[{'c': 'user text'}]");
    for (size_t i = 0; i < SL_COUNTOF(sources); i++) {
        job j = run_source(sources[i], strlen(sources[i]), messages);
        if (j.status != SL_OK)
            fail_msg("%s: %s", sources[i], j.err.message);
        assert_true(j.n_bytes > 900000);
    }
    json_decref(messages);
}

static void test_source_limits(void **state)
{
    (void)state;
    sl_error err;
    sl_template *compiled;
    char *text = malloc(SL_TEMPLATE_MAX_SOURCE + 1);
    assert_non_null(text);
    memset(text, 'a', SL_TEMPLATE_MAX_SOURCE + 1);
    assert_ok(sl_template_compile(text, SL_TEMPLATE_MAX_SOURCE, "t", &compiled, &err));
    sl_template_free(compiled);
    assert_refused(sl_template_compile(text, SL_TEMPLATE_MAX_SOURCE + 1, "t", &compiled, &err),
                   SL_ERR_LIMIT, "1048576");
    free(text);
    /* The densest sources still compile or are refused. */
    static const char *const dense[] = {"{{a}}", "{%set a=1%}", "{{[1,1,1,1]}}", "{{a.b.c|e|e}}"};
    for (size_t i = 0; i < SL_COUNTOF(dense); i++) {
        text = nested("", dense[i], "", "", "", SL_TEMPLATE_MAX_SOURCE / strlen(dense[i]));
        assert_ok(sl_template_compile(text, strlen(text), "t", &compiled, &err));
        sl_template_free(compiled);
        free(text);
    }
    text = nested("{{ range(", "1,", "1", "", ") }}", 32);
    assert_refused(sl_template_compile(text, strlen(text), "t", &compiled, &err), SL_ERR_LIMIT,
                   "more than 32 arguments");
    free(text);
    /* 60 calls of 31 arguments, all waiting for the innermost. */
    text = nested("{{ ",
                  "dict(a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1,k=1,l=1,m=1,n=1,o=1,p=1,q=1,"
                  "r=1,s=1,t=1,u=1,v=1,w=1,x=1,y=1,z=1,aa=1,ab=1,ac=1,ad=1,ae=",
                  "1", ")", " }}", 50);
    expect_limit(text, "arguments in nested calls");
    free(text);
}

/* Every beginning of a real template compiles or is refused. */
static void test_prefixes(void **state)
{
    (void)state;
    size_t n;
    char *source = sl_test_read_file(QWEN, &n);
    sl_mem_stats before = sl_mem_get_stats();
    for (size_t i = 0; i <= n; i += sl_test_shortened() ? 5 : 1) {
        sl_error err;
        sl_template *compiled;
        /* In a block of its own, so that a read behind its end is seen. */
        char *prefix = malloc(i + 1);
        assert_non_null(prefix);
        memcpy(prefix, source, i);
        sl_status status = sl_template_compile(prefix, i, "t", &compiled, &err);
        assert_true(status == SL_OK || status == SL_ERR_FORMAT || status == SL_ERR_UNSUPPORTED);
        sl_template_free(compiled);
        free(prefix);
    }
    free(source);
    assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The pieces of a source: words, brackets of tags, single characters. */
static size_t cut_tokens(const char *source, size_t n, sl_str *tokens)
{
    size_t count = 0;
    for (size_t at = 0; at < n;) {
        size_t end = at + 1;
        if (is_word(source[at]))
            while (end < n && is_word(source[end]))
                end++;
        else if (end < n && (source[at] == '{' || source[end] == '}'))
            end++;
        tokens[count++] = (sl_str){source + at, end - at};
        at = end;
    }
    return count;
}

/* Tokens dropped, doubled, swapped and replaced at random: compiles and renders, or is refused. */
static void test_shuffles(void **state)
{
    (void)state;
    size_t n;
    char *source = sl_test_read_file(QWEN, &n);
    sl_str *tokens = malloc(n * sizeof *tokens);
    char *text = malloc(2 * n + 256);
    assert_true(tokens && text);
    size_t n_tokens = cut_tokens(source, n, tokens);
    json_t *messages = sl_test_json_of(conversation);
    sl_mem_stats before = sl_mem_get_stats();
    sl_test_rng rng = sl_test_rng_of(1);
    size_t n_rendered = 0, n_compiled = 0;
    int n_rounds = sl_test_shortened() ? 1000 : 10000;
    for (int round = 0; round < n_rounds; round++) {
        size_t length = 0;
        uint32_t edits = 1 + sl_test_rng_below(&rng, 4);
        size_t places[4];
        uint32_t kinds[4];
        for (uint32_t e = 0; e < edits; e++) {
            places[e] = sl_test_rng_below(&rng, (uint32_t)n_tokens);
            kinds[e] = sl_test_rng_below(&rng, 4);
        }
        for (size_t i = 0; i < n_tokens; i++) {
            sl_str token = tokens[i];
            size_t copies = 1;
            for (uint32_t e = 0; e < edits; e++) {
                if (places[e] != i)
                    continue;
                copies = kinds[e] == 0 ? 0 : kinds[e] == 1 ? 2 : 1;
                if (kinds[e] >= 2)
                    token = tokens[sl_test_rng_below(&rng, (uint32_t)n_tokens)];
            }
            for (size_t k = 0; k < copies; k++) {
                memcpy(text + length, token.data, token.n_bytes);
                length += token.n_bytes;
            }
        }
        sl_error err;
        sl_template *compiled;
        sl_marked_text out;
        if (sl_template_compile(text, length, "t", &compiled, &err) != SL_OK) {
            assert_true(err.message[0] != '\0');
            continue;
        }
        n_compiled++;
        sl_template_input input = {.messages = messages};
        if (sl_template_render(compiled, &input, &out, &err) == SL_OK) {
            sl_test_check_marks(&out);
            n_rendered++;
        }
        sl_marked_text_free(&out);
        sl_template_free(compiled);
    }
    assert_true(n_compiled > 100 && n_rendered > 30);
    assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
    json_decref(messages);
    free(source);
    free(tokens);
    free(text);
}

/* The longest integers, in numbers: cheap enough that steps need not count their digits. */
static void test_long_integers(void **state)
{
    (void)state;
    char digits[SL_JSON_MAX_DIGITS + 1], *text = malloc(100 * sizeof digits);
    assert_non_null(text);
    memset(digits, '9', SL_JSON_MAX_DIGITS);
    digits[SL_JSON_MAX_DIGITS] = '\0';
    size_t n = 0;
    for (int i = 0; i < 90; i++)
        n += (size_t)sprintf(text + n, "%c%s", i == 0 ? '[' : ',', digits);
    sprintf(text + n, ",-%s]", digits);
    json_t *messages = sl_test_json_of(text);
    static const char source[] =
        "{% set ns = namespace(n=0) %}{% for i in range(1000) %}"
        "{% if (messages|sort)[0] == -messages[0] and messages|unique|list|length == 2 %}"
        "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }}{{ messages[0] > 1e308 }}"
        "{{ messages|tojson|length }}{{ (messages[3]|string|int) == messages[0] }}"
        "{{ ('-0_0' ~ messages[3])|int == messages[90] }}{{ messages[90] < -1e308 }}";
    sl_template_input input = {.messages = messages};
    sl_marked_text out;
    sl_error err;
    assert_ok(sl_test_render(source, sizeof source - 1, &input, &out, &err));
    assert_string_equal(out.text.data, "1000True391483TrueTrueTrue");
    sl_marked_text_free(&out);
    static const char *const refused[] = {"{{ (messages[0] ~ '9')|int }}",
                                          "{{ ('-' ~ messages[0] ~ '9')|int }}"};
    for (size_t i = 0; i < SL_COUNTOF(refused); i++)
        assert_refused(sl_test_render(refused[i], strlen(refused[i]), &input, &out, &err),
                       SL_ERR_LIMIT, "int: more than 4300 digits");
    json_decref(messages);
    free(text);
}

/* Every allocation of a compilation and render fails once. */
static void test_out_of_memory(void **state)
{
    (void)state;
    static const char source[] =
        "{% macro f(a, b='x') %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(s='') %}"
        "{% for m in messages %}{% set ns.s = ns.s ~ m.content|string|upper %}"
        "{{ f(m.role) }}{{ m|tojson }}{{ m.content|string ~ '<' }}{% endfor %}{{ ns.s|sort|list }}"
        "{{ ('ab' * 3000).replace('a', 'xyz').split('x')|map('trim')|unique|join(',') }}"
        "{% for i in range(200) %}{{ messages[0].role }}{{ i }}"
        "{{ -messages[0].w }}{{ '18446744073709551616'|int }}{{ 1e30|int }}"
        "{{ messages[0].role.center(40).ljust(60, '.').zfill(90).swapcase() }}{% endfor %}";
    json_t *messages = sl_test_json_of(conversation);
    json_t *wide = sl_test_json_of("12345678901234567890");
    json_object_set_new(json_array_get(messages, 0), "w", wide);
    sl_mem_stats before = sl_mem_get_stats();
    sl_template_input input = {.messages = messages};
    sl_status status = SL_ERR_MEMORY;
    uint64_t n = 0;
    while (status != SL_OK) {
        sl_error err;
        sl_marked_text out;
        sl_mem_fail_at(++n, false);
        status = sl_test_render(source, sizeof source - 1, &input, &out, &err);
        sl_mem_fail_at(0, false);
        if (status == SL_OK)
            sl_marked_text_free(&out);
        else
            assert_int_equal(status, SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
    }
    assert_true(n > 10);
    json_decref(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting),        cmocka_unit_test(test_long_chains),
        cmocka_unit_test(test_run_time_depth), cmocka_unit_test(test_deep_input),
        cmocka_unit_test(test_growth),         cmocka_unit_test(test_honest_growth),
        cmocka_unit_test(test_source_limits),  cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_shuffles),       cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_long_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
