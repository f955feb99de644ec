/* Templates against reference renderings: Hugging Face's of whole conversations, Jinja2's of single
 * expressions and statements; and the marks on what came from messages and tools. */
#include "support.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "templates.h"
#include "text_data.h"

#define DATA "tests/data/template/"

/* The template DATA/name.jinja, compiled, as the cases of one file ask for them in turn. */
typedef struct templates {
    char name[64];
    char *source;
    sl_template *compiled;
} templates;

static const sl_template *load(templates *t, const char *name)
{
    sl_error err;
    if (t->compiled && strcmp(t->name, name) == 0)
        return t->compiled;
    free(t->source);
    sl_template_free(t->compiled);
    char path[128];
    size_t n;
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(path, sizeof path, DATA "%s.jinja", name);
    t->source = sl_test_read_file(path, &n);
    assert_ok(sl_template_compile(t->source, n, name, &t->compiled, &err));
    return t->compiled;
}

static void unload(templates *t)
{
    free(t->source);
    sl_template_free(t->compiled);
}

/* Marks must cover what users wrote: no word of a message that the template itself does not
 * contain may stand in trusted text. */
static void check_words(const json_t *value, const char *source, const sl_marked_text *text)
{
    const char *key;
    json_t *member;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)value, key, member) check_words(member, source, text);
    json_array_foreach(value, i, member) check_words(member, source, text);
    if (!sl_json_is_string(value))
        return;
    for (const char *s = json_string_value(value); *s;) {
        char word[64];
        size_t n = 0;
        while (*s && !isalnum((unsigned char)*s))
            s++;
        for (; isalnum((unsigned char)*s); s++)
            if (n + 1 < sizeof word)
                word[n++] = *s;
        word[n] = '\0';
        if (n < 4 || strstr(source, word) || strcasecmp(word, "null") == 0 ||
            strcasecmp(word, "true") == 0 || strcasecmp(word, "false") == 0)
            continue;
        size_t range = 0;
        for (const char *hit = strstr(text->text.data, word); hit; hit = strstr(hit + n, word)) {
            size_t at = (size_t)(hit - text->text.data);
            while (range < text->n_untrusted && text->untrusted[range].end <= at)
                range++;
            if (range == text->n_untrusted || text->untrusted[range].begin > at ||
                text->untrusted[range].end < at + n)
                fail_msg("'%s' stands in trusted text", word);
        }
    }
}

/* One case: {template, messages, tools, and an object of variables}. */
static sl_status render_case(templates *t, const json_t *c, const char *variables,
                             bool trust_content, sl_marked_text *out, sl_error *err)
{
    const json_t *given = json_object_get(c, variables), *tools = json_object_get(c, "tools");
    sl_template_input input = {
        .messages = json_object_get(c, "messages"),
        .tools = json_is_null(tools) ? NULL : tools,
        .variables = given,
        .add_generation_prompt = json_is_true(json_object_get(given, "add_generation_prompt")),
        .trust_content = trust_content,
    };
    const char *name = json_string_value(json_object_get(c, "template"));
    return sl_template_render(load(t, name), &input, out, err);
}

/* Every case of a file; returns how many there were. */
static int check_cases(const char *path, const char *variables, const char *expected_key,
                       const char *text_key, const char *type_key)
{
    sl_error err;
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, path);
    templates t = {0};
    int n = 0;
    for (json_t *c; (c = sl_test_lines_next(&lines)); n++) {
        sl_marked_text marked, plain;
        const char *expected = json_string_value(json_object_get(c, expected_key));
        if (expected) {
            assert_ok(render_case(&t, c, variables, false, &marked, &err));
            assert_string_equal(marked.text.data, expected);
            sl_test_check_marks(&marked);
            check_words(json_object_get(c, "messages"), t.source, &marked);
            check_words(json_object_get(c, "tools"), t.source, &marked);
            assert_ok(render_case(&t, c, variables, true, &plain, &err));
            assert_string_equal(plain.text.data, expected);
            assert_int_equal(plain.n_untrusted, 0);
            sl_marked_text_free(&plain);
        } else {
            const char *type = json_string_value(json_object_get(c, type_key));
            const char *text = json_string_value(json_object_get(c, text_key));
            if (strcmp(type, "ValueError") == 0) /* raised before the template runs */
                text = "No messages provided.";
            else if (strcmp(type, "TemplateError") != 0)
                text = "";
            assert_refused(render_case(&t, c, variables, false, &marked, &err), SL_ERR_ARGUMENT,
                           text);
        }
        sl_marked_text_free(&marked);
        json_decref(c);
    }
    unload(&t);
    sl_test_lines_close(&lines);
    return n;
}

static void test_golden_cases(void **state)
{
    (void)state;
    assert_int_equal(check_cases(DATA "cases.jsonl", "kwargs", "rendered", "error", "error_type"),
                     490);
}

static void test_variants(void **state)
{
    (void)state;
    assert_int_equal(check_cases(DATA "variants.jsonl", "variables", "expected", "text", "error"),
                     360);
}

static void test_expressions(void **state)
{
    (void)state;
    sl_error err;
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, DATA "expressions.jsonl");
    json_t *first = sl_test_lines_next(&lines);
    sl_template_input input = {.variables = json_object_get(first, "variables"), .now = 1700000000};
    int n = 0, n_refused = 0;
    for (json_t *c; (c = sl_test_lines_next(&lines)); n++) {
        sl_marked_text out;
        sl_str source = sl_test_string(c, "template");
        const char *expected = json_string_value(json_object_get(c, "expected"));
        sl_status status = sl_test_render(source.data, source.n_bytes, &input, &out, &err);
        if (expected) {
            if (status != SL_OK)
                fail_msg("%s: %s", source.data, err.message);
            size_t n_expected = json_string_length(json_object_get(c, "expected"));
            if (out.text.n_bytes != n_expected || memcmp(out.text.data, expected, n_expected) != 0)
                fail_msg("%s: expected '%s', got '%s'", source.data, expected, out.text.data);
            assert_int_equal(out.n_untrusted, 0);
            sl_marked_text_free(&out);
        } else {
            if (status == SL_OK)
                fail_msg("%s: should be refused, gave '%s'", source.data, out.text.data);
            assert_true(strncmp(err.message, "t: line ", 8) == 0);
            assert_true(status == SL_ERR_ARGUMENT || status == SL_ERR_FORMAT ||
                        status == SL_ERR_UNSUPPORTED || status == SL_ERR_LIMIT);
            n_refused++;
        }
        json_decref(c);
    }
    json_decref(first);
    sl_test_lines_close(&lines);
    assert_true(n > 700 && n_refused > 100);
}

/* ---- marks ---- */

static void check_marks(const char *source, const char *messages, const char *variables,
                        const char *expected)
{
    sl_error err;
    sl_marked_text out;
    assert_ok(sl_test_render_json(source, messages, variables, &out, &err));
    sl_test_check_marks(&out);
    char *shown = sl_test_show_marks(&out);
    if (strcmp(shown, expected) != 0)
        fail_msg("%s: expected %s, got %s", source, expected, shown);
    free(shown);
    sl_marked_text_free(&out);
}

static void test_marks(void **state)
{
    (void)state;
    /* m is "  A<|im_end|>b</think> ", u "end|>", l two parts, k a dict with untrusted keys. */
    static const char messages[] =
        "[{'role': 'user', 'm': '  A<|im_end|>b</think> ', 'u': 'end|>', 'l': ['<|im_', 'end|>'],"
        "  'k': {'key<': 'v>', 'n': 1.5, 'b': true}, 'e': '', 'i': 7, 'n': 'one\\ntwo\\n',"
        "  'q': 'a\\u00e4b', 'f': '%s-%s', 'c': 'x', 'w': 12345678901234567890}]";
    static const struct {
        const char *expression, *expected;
    } cases[] = {
        {"m.u", "«end|>»"},
        {"'<|im_' + m.u", "<|im_«end|>»"},
        {"'<|im_' ~ m.u ~ '<'", "<|im_«end|>»<"},
        {"'<|im_start|>' + m.role + '\n'", "<|im_start|>«user»\n"},
        {"m.l|join", "«<|im_end|>»"},
        {"m.l|join('|')", "«<|im_»|«end|>»"},
        {"'+'.join(m.l)", "«<|im_»+«end|>»"},
        {"m.u.join(['a', 'b'])", "a«end|>»b"},
        {"m.l[0] + m.l[1]", "«<|im_end|>»"},
        {"m.m|trim", "«A<|im_end|>b</think>»"},
        {"m.m.strip()", "«A<|im_end|>b</think>»"},
        {"(' x' ~ m.m ~ 'y ')|trim", "x«  A<|im_end|>b</think> »y"},
        {"m.m[3:13]", "«<|im_end|>»"},
        {"('ab' ~ m.u ~ 'cd')[1:4]", "b«en»"},
        {"('ab' ~ m.u ~ 'cd')[-3:]", "«>»cd"},
        {"('ab' ~ m.u ~ 'cd')[::-1]", "dc«>|dne»ba"},
        {"('ab' ~ m.u)|reverse", "«>|dne»ba"},
        {"('a' ~ m.u)[0]", "a"},
        {"('a' ~ m.u)[1]", "«e»"},
        {"('a' ~ m.u)|first", "a"},
        {"('a' ~ m.u)|last", "«>»"},
        {"('a' ~ m.u ~ 'b')|list|join('.')", "a.«e».«n».«d».«|».«>».b"},
        {"m.m.split('</think>')[0]", "«  A<|im_end|>b»"},
        {"m.m.split('</think>')|join('</think>')", "«  A<|im_end|>b»</think>« »"},
        {"('x ' ~ m.u ~ ' y').split()|join('_')", "x_«end|>»_y"},
        {"('x,' ~ m.u).rsplit(',', 1)|join('_')", "x_«end|>»"},
        {"('x' ~ m.u).partition(m.u)|join('_')", "x_«end|>»_"},
        {"m.n.splitlines()|join('/')", "«one»/«two»"},
        {"m.u|replace('end', '<END>')", "<END>«|>»"},
        {"m.u.replace('|', '!')", "«end»!«>»"},
        {"'say X'|replace('X', m.u)", "say «end|>»"},
        {"'aXb'.replace('X', m.u)", "a«end|>»b"},
        {"m.u.replace('', '.')", ".«e».«n».«d».«|».«>»."},
        {"('a' ~ m.u)|upper", "A«END|>»"},
        {"('A' ~ m.q ~ 'Z').lower()", "a«aäb»z"},
        {"('a' ~ m.q ~ 'z').title()", "A«aäb»z"},
        {"(m.q ~ 'Z')|capitalize", "«Aäb»z"},
        {"('a ' ~ m.q)|title", "A «Aäb»"},
        {"m.w", "12345678901234567890"}, /* numbers have no marks */
        {"m.w ~ m.u ~ [m.w]|tojson", "12345678901234567890«end|>»[12345678901234567890]"},
        {"m.u.center(8, '-')", "-«end|>»--"},
        {"'ab'.ljust(4, m.c)", "ab«xx»"},
        {"('a' ~ m.u).rjust(8, m.c)", "«xx»a«end|>»"},
        {"('-' ~ m.c).zfill(4)", "-00«x»"},
        {"('a' ~ m.q).swapcase()", "A«AÄB»"},
        {"m.u|center(9)", "  «end|>»  "},
        {"m.k|tojson", "{\"«key<»\": \"«v>»\", \"«n»\": 1.5, \"«b»\": true}"},
        {"{'a': m.u}|tojson", "{\"a\": \"«end|>»\"}"},
        {"('\"' ~ m.n)|tojson", "\"\\\"«one\\ntwo\\n»\""},
        {"m.q|tojson(ensure_ascii=true)", "\"«a\\u00e4b»\""},
        {"[1]|tojson(indent=m.c)", "[\n«x»1\n]"},
        {"[1, 2]|tojson(separators=(m.c, ':'))", "[1«x»2]"},
        {"m.k|string", "{'«key<»': '«v>»', '«n»': 1.5, '«b»': True}"},
        {"[m.n]|string", "['«one\\ntwo\\n»']"},
        {"m.k.items()|list", "[('«key<»', '«v>»'), ('«n»', 1.5), ('«b»', True)]"},
        {"m.k|dictsort|map('first')|join(',')", "«b»,«key<»,«n»"},
        {"m.k.keys()|join(' ')", "«key<» «n» «b»"},
        {"m.i", "7"},
        {"m.i ~ m.e ~ 'x'", "7x"},
        {"m.u * 2", "«end|>end|>»"},
        {"('<' ~ m.c) * 2", "<«x»<«x»"},
        {"('a\n' ~ m.n)|indent(2)", "a\n  «one»\n  «two»\n"},
        {"'a\nb'|indent(m.c, true)", "«x»a\n«x»b"},
        {"m.f % ('a', 'b')", "a«-»b"},
        {"'%s|%5s|%.2s' % (m.u, m.c, m.u)", "«end|>»|    «x»|«en»"},
        {"m.f|format(1, m.c)", "1«-x»"},
        {"'{}<{x}>'.format(m.u, x=m.c)", "«end|>»<«x»>"},
        {"m.u|escape", "«end|&gt;»"},
        {"m.u|safe", "«end|>»"},
        {"('<'|safe) + m.u", "<«end|&gt;»"},
        {"m.u|default('x')", "«end|>»"},
        {"(m.u, 'a')|sort|join", "a«end|>»"},
        {"m.u is string and m.u == 'end|>' and m.u in ['end|>']", "True"},
        {"{'user': '<|im_start|>user'}[m.role]", "<|im_start|>user"},
        {"m.u.removeprefix('e') ~ m.u.removesuffix('>')", "«nd|>end|»"},
        {"m.u.find('|')", "3"},
        {"add ~ flag", "add7"},
        {"m.zzz|default(m.u)", "«end|>»"},
        {"(m.u if true) ~ ('a' if false)", "«end|>»"},
        {"[m.u, 'a']|map('upper')|join(',')", "«END|>»,A"},
        {"messages|map(attribute='u')|join", "«end|>»"},
        {"messages|selectattr('role', 'equalto', 'user')|map(attribute='c')|list", "['«x»']"},
        {"m|tojson|length > 10", "True"},
        {"dict(a=m.u).a ~ namespace(b=m.c).b", "«end|>x»"},
        {"strftime_now('%Y') ~ strftime_now(m.c)", "1970«x»"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char source[256];
        snprintf(source, sizeof source, "{%% set m = messages[0] %%}{{ %s }}", cases[i].expression);
        check_marks(source, messages, "{'add': 'add', 'flag': 7}", cases[i].expected);
    }
}

static void test_marks_through_statements(void **state)
{
    (void)state;
    static const char messages[] = "[{'role': 'user', 'c': '<|im_end|>'}]";
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"{% for m in messages %}<{{ m.c }}>{% endfor %}", "<«<|im_end|>»>"},
        {"{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
         "«role»=«user»;«c»=«<|im_end|>»;"},
        {"{% set x %}a{{ messages[0].c }}b{% endset %}{{ x }}{{ x|length }}", "a«<|im_end|>»b12"},
        {"{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].c) ~ f('t') }}",
         "[«<|im_end|>»][t]"},
        {"{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ messages[0].c }}"
         "{% endcall %}",
         "<«<|im_end|>»>"},
        {"{% filter upper %}a{{ messages[0].c }}{% endfilter %}", "A«<|IM_END|>»"},
        {"{% for c in messages[0].c %}{{ c }}{% endfor %}", "«<|im_end|>»"},
        {"{% for c in messages[0].c[:3] %}{{ c }}{{ '.' }}{% endfor %}", "«<».«|».«i»."},
        {"{% set ns = namespace(s='') %}{% for i in range(3) %}{% set ns.s = ns.s ~ '<' ~ "
         "messages[0].role %}{% endfor %}{{ ns.s }}",
         "<«user»<«user»<«user»"},
        {"a{% generation %}{{ messages[0].c }}{% endgeneration %}b", "a«<|im_end|>»b"},
        /* A capture that begins where a marked text ended must not take its mark along. */
        {"{{ messages[0].role }}{% set x %}{{ messages[0].role }}{% endset %}{{ 'a' ~ x }}",
         "«user»a«user»"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        check_marks(cases[i].source, messages, NULL, cases[i].expected);
}

/* Appends a random expression of strings. m.a, m.b and m.c are untrusted and hold no ASCII. */
static void random_expression(sl_test_rng *rng, int depth, sl_buf *out)
{
    sl_error err;
    static const char *const atoms[] = {"m.a",   "m.b",         "m.a",     "m.c", "'ab'",
                                        "'A b'", "' <x> a\\n'", "'q\\nr'", "''"};
    static const char *const steps[] = {
        "|trim",
        "|upper",
        "|lower",
        "|title",
        "|capitalize",
        "|reverse",
        "|string",
        "|indent(2)",
        "|indent(m.b, true, true)",
        "|replace('a', m.b)",
        "|replace(m.c, 'Z')",
        "|replace('x', '')",
        "|e",
        "|safe",
        "|list|join('.')",
        "|batch(3)|map('join')|join('|')",
        "|unique|join",
        "|sort|join(m.c)",
        "|map('upper')|join",
        "|select('in', m.a)|join",
        "|first",
        "|last",
        "|tojson",
        "|default('D', true)",
        "|format",
        ".strip()",
        ".lstrip(m.c ~ 'a')",
        ".split()|join('+')",
        ".split(m.c)|join(m.b)",
        ".split('a', 1)|join('_')",
        ".rsplit(none, 1)|join('-')",
        ".rsplit(m.c, 1)|last",
        ".splitlines(true)|join('/')",
        ".partition('a')|join('^')",
        ".rpartition(m.c)|join('^')",
        ".removeprefix('a')",
        ".removesuffix(m.b)",
        ".replace('', m.c)",
        ".replace('', '.', 2)",
        ".title()",
        ".swapcase()",
        ".center(9, m.c)",
        ".ljust(7)",
        ".rjust(8, 'r')",
        ".zfill(6)",
        "|center(12)",
        ".join([m.a, 'k', m.b])",
        "[1:]",
        "[:-1]",
        "[::-1]",
        "[2:9:2]",
        "[-4:]",
        "[0]",
        " * 2",
    };
    static const char *const forms[] = {
        "@ ~ @",
        "@ + @",
        "'<%s|%r>' % (@, @)",
        "[@, @]|join",
        "[@, {@: 1}]|string",
        "{@: [@]}|tojson",
        "'{}{}'.format(@, @)",
        "@ if true else @",
        "dict(a=@).a ~ namespace(b=@).b",
    };
    if (depth == 0) {
        uint32_t i = sl_test_rng_below(rng, (uint32_t)SL_COUNTOF(atoms));
        assert_ok(sl_buf_append_str(out, atoms[i], &err));
        return;
    }
    if (sl_test_rng_below(rng, 3) > 0) {
        assert_ok(sl_buf_append_char(out, '(', &err));
        random_expression(rng, depth - 1, out);
        uint32_t i = sl_test_rng_below(rng, (uint32_t)SL_COUNTOF(steps));
        assert_ok(sl_buf_printf(out, &err, ")%s", steps[i]));
        return;
    }
    /* '@' stands for an operand. */
    for (const char *f = forms[sl_test_rng_below(rng, (uint32_t)SL_COUNTOF(forms))]; *f; f++) {
        assert_ok(sl_buf_append_char(out, *f == '@' ? '(' : *f, &err));
        if (*f == '@') {
            random_expression(rng, depth - 1, out);
            assert_ok(sl_buf_append_char(out, ')', &err));
        }
    }
}

/* Literals are ASCII and what users wrote is not: so a byte is marked exactly if it is not ASCII,
 * whatever was done to it. */
static void test_marks_of_random_expressions(void **state)
{
    (void)state;
    json_t *messages = sl_test_json_of("[{'a': '\u0430\u0411\u0432\u00b7\u0433\u0434\u00e9',"
                                       " 'b': '\u044e\u0416', 'c': '\u00b7'}]");
    sl_template_input input = {.messages = messages};
    sl_test_rng rng = sl_test_rng_of(7);
    sl_buf source;
    sl_buf_init(&source, SL_MEM_GENERAL, 1 << 16);
    int n_rounds = sl_test_shortened() ? 3000 : 30000, n_rendered = 0;
    for (int round = 0; round < n_rounds; round++) {
        sl_error err;
        sl_marked_text out;
        sl_buf_clear(&source);
        assert_ok(sl_buf_append_str(&source, "{% set m = messages[0] %}{{ ", &err));
        random_expression(&rng, 1 + (int)sl_test_rng_below(&rng, 5), &source);
        assert_ok(sl_buf_append_str(&source, " }}", &err));
        sl_status status = sl_test_render(source.data, source.n_bytes, &input, &out, &err);
        if (status != SL_OK) {
            if (status != SL_ERR_ARGUMENT && status != SL_ERR_UNSUPPORTED)
                fail_msg("%s: %s", source.data, err.message);
            continue;
        }
        n_rendered++;
        sl_test_check_marks(&out);
        size_t range = 0;
        for (size_t i = 0; i < out.text.n_bytes; i++) {
            while (range < out.n_untrusted && out.untrusted[range].end <= i)
                range++;
            bool marked = range < out.n_untrusted && out.untrusted[range].begin <= i;
            if (marked != ((unsigned char)out.text.data[i] >= 0x80))
                fail_msg("%s: byte %zu of '%s'", source.data, i, out.text.data);
        }
        sl_marked_text_free(&out);
    }
    assert_true(n_rendered > n_rounds / 2);
    sl_buf_free(&source);
    json_decref(messages);
}

/* Variables are the operator's, whatever they contain; tools are the client's. */
static void test_sources_of_trust(void **state)
{
    (void)state;
    sl_error err;
    static const char source[] = "{{ v }}{{ tools[0].name }}{{ messages[0].c }}";
    json_t *messages = sl_test_json_of("[{'c': 'M'}]"), *tools = sl_test_json_of("[{'name': 'T'}]");
    json_t *variables = sl_test_json_of("{'v': 'V', 'messages': 'no', 'tools': 'no'}");
    sl_template_input input = {.messages = messages, .tools = tools, .variables = variables};
    sl_marked_text out;
    assert_ok(sl_test_render(source, strlen(source), &input, &out, &err));
    char *shown = sl_test_show_marks(&out);
    assert_string_equal(shown, "V«TM»");
    free(shown);
    sl_marked_text_free(&out);
    input.trust_content = true;
    assert_ok(sl_test_render(source, strlen(source), &input, &out, &err));
    assert_string_equal(out.text.data, "VTM");
    assert_int_equal(out.n_untrusted, 0);
    sl_marked_text_free(&out);
    json_decref(messages);
    json_decref(tools);
    json_decref(variables);
}

/* Text that begins as a big integer does inside is text. */
static void test_text_is_no_big_integer(void **state)
{
    (void)state;
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"{{ messages[0].a is string }}{{ messages[0].a is number }}", "TrueFalse"},
        {"{{ messages[0].a }}", "«\xEF\xBF\xBD"
                                "12345678901234567890»"},
        {"{{ messages[0].b|tojson }}", "\"«\xEF\xBF\xBD"
                                       "12345678901234567890»\""},
        {"{{ messages[0].a == messages[0].c }}{{ messages[0].c }}", "False12345678901234567890"},
        {"{{ messages[0]|list|last }}", "«\xEF\xBF\xBD"
                                        "12345678901234567890»"},
        {"{{ '\xEF\xB7\x90"
         "12345678901234567890' is string }}",
         "True"},
        {"{{ ('\\ufdd0' ~ '12345678901234567890') is number }}", "False"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        check_marks(cases[i].source,
                    "[{'a': '\xEF\xB7\x90"
                    "12345678901234567890',"
                    " 'b': '\\uFDD012345678901234567890', 'c': 12345678901234567890,"
                    " '\\ufdd012345678901234567890': 1}]",
                    NULL, cases[i].expected);
}

/* ---- errors ---- */

static void test_errors_name_the_place(void **state)
{
    (void)state;
    sl_error err;
    static const struct {
        const char *source;
        sl_status status;
        const char *part;
    } cases[] = {
        {"a\n{{ x | nope }}", SL_ERR_UNSUPPORTED, "t: line 2: filter 'nope' is not supported"},
        {"{% include 'f' %}", SL_ERR_UNSUPPORTED, "t: line 1: statement 'include'"},
        {"{% block a %}{% endblock %}", SL_ERR_UNSUPPORTED, "statement 'block'"},
        {"{% for a in b recursive %}{% endfor %}", SL_ERR_UNSUPPORTED, "recursive loops"},
        {"{{ f(*a) }}", SL_ERR_UNSUPPORTED, "'*'"},
        {"{{ 1 is nope }}", SL_ERR_UNSUPPORTED, "test 'nope'"},
        {"\n\n{% if x %}", SL_ERR_FORMAT, "line 3: the template ends without 'endif'"},
        {"{% endfor %}", SL_ERR_FORMAT, "'endfor' does not close"},
        {"{{ 'a }}", SL_ERR_FORMAT, "string without an end"},
        {"{{ '\\x4' }}", SL_ERR_FORMAT, "malformed escape"},
        {"{{ '\\ud800' }}", SL_ERR_FORMAT, "malformed escape"},
        {"{# a", SL_ERR_FORMAT, "comment without an end"},
        {"{% raw %}a", SL_ERR_FORMAT, "raw block"},
        {"{{ (1] }}", SL_ERR_FORMAT, "']' without"},
        {"{{ a b }}", SL_ERR_FORMAT, "expected '}}', got 'b'"},
        {"{{ 99999999999999999999 }}", SL_ERR_FORMAT, "beyond 64 bits"},
        {"a\xff", SL_ERR_FORMAT, "byte 1 is not UTF-8"},
        {"\n{{ m.x.y }}", SL_ERR_ARGUMENT, "line 2: 'm' is undefined"},
        {"{{ v.x.y }}", SL_ERR_ARGUMENT, "dict has no attribute 'x'"},
        {"{{ raise_exception('It is ' ~ 'so.') }}", SL_ERR_ARGUMENT, "t: line 1: It is so."},
        {"{{ 1 // 0 }}", SL_ERR_ARGUMENT, "division by zero"},
        {"{{ 9223372036854775807 + 1 }}", SL_ERR_ARGUMENT, "beyond 64 bits"},
        {"\n{{ w + 1 }}", SL_ERR_UNSUPPORTED,
         "line 2: arithmetic on an integer beyond 64 bits is not supported"},
        {"{{ 1.5 - w }}", SL_ERR_UNSUPPORTED, "arithmetic on an integer beyond 64 bits"},
        {"{{ w * 2 }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ true / w }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ w // w }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ w ** 0 }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ w is even }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ w is divisibleby 3 }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ [1, w]|sum }}", SL_ERR_UNSUPPORTED, "arithmetic"},
        {"{{ w|round(-2) }}", SL_ERR_UNSUPPORTED, "rounding an int beyond 64 bits"},
        {"{{ w|round(0, 'ceil') }}", SL_ERR_UNSUPPORTED, "rounding an int beyond 64 bits"},
        {"{{ '%x' % w }}", SL_ERR_UNSUPPORTED, "%x of an int beyond 64 bits"},
        {"{{ '%f' % e }}", SL_ERR_ARGUMENT, "%f of an int that is too large"},
        {"{{ e|float }}", SL_ERR_ARGUMENT, "float: an int that is too large"},
        {"{{ '%d' % ('inf'|float) }}", SL_ERR_ARGUMENT, "%d of a float that is no number"},
        {"{{ 'a' * w }}", SL_ERR_ARGUMENT, "does not apply to str and int beyond 64 bits"},
        {"{{ 'a' + w }}", SL_ERR_ARGUMENT, "does not apply to str and int beyond 64 bits"},
        {"{{ 'abc'[:w] }}", SL_ERR_ARGUMENT, "a slice needs integers, not int beyond 64 bits"},
        {"{{ range(w) }}", SL_ERR_ARGUMENT, "range needs integers, not int beyond 64 bits"},
        {"{{ 'a'.split('a', w) }}", SL_ERR_ARGUMENT, "must be an integer, not int beyond 64 bits"},
        {"{{ 'a'.center(w) }}", SL_ERR_ARGUMENT, "must be an integer, not int beyond 64 bits"},
        {"{{ 'a'.find('a', w) }}", SL_ERR_ARGUMENT, "must be integers, not int beyond 64 bits"},
        {"{% for i in w %}{% endfor %}", SL_ERR_ARGUMENT, "int beyond 64 bits cannot be iterated"},
        {"{{ w < 'a' }}", SL_ERR_ARGUMENT, "int beyond 64 bits and str have no order"},
        {"{{ w.a.b }}", SL_ERR_ARGUMENT, "int beyond 64 bits has no attribute 'a'"},
        {"{{ 'a'.center(3, 'xy') }}", SL_ERR_ARGUMENT, "the fill must be one character"},
        {"{{ v|items|list }}{{ 1|items }}", SL_ERR_ARGUMENT, "items needs a mapping, not int"},
        {"{{ [].append(1) }}", SL_ERR_UNSUPPORTED, "list.append"},
        {"{{ 'a' + 1 }}", SL_ERR_ARGUMENT, "operator '+' does not apply to str and int"},
        {"{% macro f(a) %}\n{{ a.b.c }}\n{% endmacro %}\n{{ f(v) }}", SL_ERR_ARGUMENT,
         "line 2: dict has no attribute 'b'"},
    };
    char variables[600] = "{'v': {'a': 1}, 'w': 12345678901234567890, 'e': 1";
    size_t n = strlen(variables);
    memset(variables + n, '0', 400);
    memcpy(variables + n + 400, "}", 2);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_marked_text out;
        assert_refused(sl_test_render_json(cases[i].source, NULL, variables, &out, &err),
                       cases[i].status, cases[i].part);
    }
    sl_marked_text out;
    sl_template *compiled;
    json_t *object = json_object(), *array = json_array();
    assert_ok(sl_template_compile("", 0, "t", &compiled, &err));
    sl_template_input input = {.messages = object};
    assert_refused(sl_template_render(compiled, &input, &out, &err), SL_ERR_ARGUMENT, "messages");
    sl_marked_text_free(&out);
    input = (sl_template_input){.messages = array, .variables = array};
    assert_refused(sl_template_render(compiled, &input, &out, &err), SL_ERR_ARGUMENT, "variables");
    sl_marked_text_free(&out);
    json_decref(object);
    json_decref(array);
    sl_template_free(compiled);
}

static void test_dates(void **state)
{
    (void)state;
    sl_error err;
    static const struct {
        int64_t now;
        const char *expected;
    } cases[] = {
        {0, "1970-01-01 00:00:00 Thursday 001 4"},
        {951782399, "2000-02-28 23:59:59 Monday 059 1"},
        {951782400, "2000-02-29 00:00:00 Tuesday 060 2"},
        {978307199, "2000-12-31 23:59:59 Sunday 366 7"},
        {1700000000, "2023-11-14 22:13:20 Tuesday 318 2"},
        {4107542400, "2100-03-01 00:00:00 Monday 060 1"},
        {-1, "1969-12-31 23:59:59 Wednesday 365 3"},
    };
    static const char source[] = "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %j %u') }}";
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_template_input input = {.now = cases[i].now};
        sl_marked_text out;
        assert_ok(sl_test_render(source, strlen(source), &input, &out, &err));
        assert_string_equal(out.text.data, cases[i].expected);
        sl_marked_text_free(&out);
    }
}

/* Text with U+0000 goes through whole. */
static void test_nul(void **state)
{
    (void)state;
    sl_error err;
    sl_marked_text out;
    assert_ok(sl_test_render_json("{{ messages[0].c|trim }}|{{ messages[0].c|length }}",
                                  "[{'c': 'a\\u0000b '}]", NULL, &out, &err));
    assert_int_equal(out.text.n_bytes, 5);
    assert_memory_equal(out.text.data, "a\0b|4", 5);
    sl_marked_text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_cases),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_marks_through_statements),
        cmocka_unit_test(test_marks_of_random_expressions),
        cmocka_unit_test(test_sources_of_trust),
        cmocka_unit_test(test_text_is_no_big_integer),
        cmocka_unit_test(test_errors_name_the_place),
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
