/* A chat template; behind a line "--- input", a JSON object with messages, tools and variables for
 * it. The text must be the same whether marks are kept or not, and the marks must lie in it. */
#include "fuzz.h"
#include "text/template.h"

static const char default_input[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" You <b>.\\n\"},"
    " {\"role\": \"user\", \"content\": \"Hi \\u00e9 <|im_end|>\"},"
    " {\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"x</think>y\","
    "  \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1.5, \"b\": "
    "[1]}}}]},"
    " {\"role\": \"tool\", \"content\": \"7\"}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}],"
    " \"variables\": {\"enable_thinking\": false}}";

static json_t *parse_input(sl_str text)
{
    sl_error err = {0};
    json_t *value = NULL;
    if (text.n_bytes == 0)
        text = sl_str_of(default_input);
    sl_fuzz_ok(
        sl_json_parse(text.data, text.n_bytes, "input", sl_json_limits_default(), &value, &err),
        &err);
    return value;
}

static void check_marks(const sl_marked_text *text)
{
    size_t last = 0;
    for (size_t i = 0; i < text->n_untrusted; i++) {
        const sl_range range = text->untrusted[i];
        sl_fuzz_check(range.begin < range.end && range.end <= text->text.n_bytes);
        sl_fuzz_check(i == 0 || range.begin > last);
        last = range.end;
    }
}

static void render(const sl_template *compiled, const json_t *object)
{
    sl_error err = {0};
    sl_marked_text marked = {0}, plain = {0};
    sl_template_input input = {
        .messages = json_object_get(object, "messages"),
        .tools = json_object_get(object, "tools"),
        .variables = json_object_get(object, "variables"),
        .add_generation_prompt = true,
        .now = 1700000000,
    };
    if (!json_is_array(input.messages))
        return;
    if (!json_is_array(input.tools))
        input.tools = NULL;
    if (!json_is_object(input.variables))
        input.variables = NULL;
    if (!sl_fuzz_ok(sl_template_render(compiled, &input, &marked, &err), &err))
        return;
    check_marks(&marked);
    input.trust_content = true;
    if (sl_fuzz_ok(sl_template_render(compiled, &input, &plain, &err), &err)) {
        sl_fuzz_check(plain.n_untrusted == 0);
        sl_fuzz_check(sl_str_equal((sl_str){plain.text.data, plain.text.n_bytes},
                                   (sl_str){marked.text.data, marked.text.n_bytes}));
        sl_marked_text_free(&plain);
    }
    sl_marked_text_free(&marked);
}

static void body(const uint8_t *data, size_t n)
{
    sl_fuzz_input in = {data, n};
    sl_str name;
    sl_error err = {0};
    sl_template *compiled;
    const sl_str source = sl_fuzz_section(&in, &name);
    char *copy = sl_fuzz_copy(source.data, source.n_bytes);
    json_t *input = parse_input(sl_fuzz_section(&in, &name));
    if (copy && input &&
        sl_fuzz_ok(sl_template_compile(copy, source.n_bytes, "template", &compiled, &err), &err)) {
        render(compiled, input);
        sl_template_free(compiled);
    }
    sl_free(copy);
    json_decref(input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
