/* Calls as JSON: {"name": ..., "arguments": {...}} in a <tool_call>, several of them, or the
 * arguments alone behind <function=NAME>. The text is held until the JSON is complete: only then is
 * it certain that it is a call, and what is none goes back as it came. */
#include "text/outparse_private.h"

void sl_op_json_begin(sl_outparse *p, bool arguments_only)
{
    p->state = OP_JSON;
    p->json_object = arguments_only;
    sl_lax_reset(&p->json);
}

/* ---- the members of a call ---- */

typedef struct op_json_call {
    sl_str name, arguments; /* JSON text, empty when missing */
    size_t n_others;        /* members that are neither these nor bookkeeping */
} op_json_call;

static bool is_bookkeeping(sl_str key)
{
    return sl_str_is(key, "\"type\"") || sl_str_is(key, "\"id\"") || sl_str_is(key, "\"index\"");
}

static bool is_string(sl_str value)
{
    return value.n_bytes > 0 && value.data[0] == '"';
}

/* Puts a member where it belongs; false: it is another one. */
static bool place_member(op_json_call *call, sl_str key, sl_str value)
{
    bool names = sl_str_is(key, "\"name\"") || (sl_str_is(key, "\"function\"") && is_string(value));
    if (names && call->name.n_bytes == 0) {
        call->name = value;
        return true;
    }
    bool argues = sl_str_is(key, "\"arguments\"") || sl_str_is(key, "\"parameters\"");
    if (argues && call->arguments.n_bytes == 0) {
        call->arguments = value;
        return true;
    }
    return is_bookkeeping(key);
}

static op_json_call members_of(sl_str object)
{
    op_json_call call = {.n_others = 0};
    sl_str key, value;
    for (size_t at = 0; sl_lax_next(object, &at, &key, &value);)
        call.n_others += !place_member(&call, key, value);
    return call;
}

/* {"function": {...}} of the OpenAI form: the object inside; else the object itself. */
static sl_str unwrapped(sl_str object)
{
    sl_str key, value;
    for (size_t at = 0; sl_lax_next(object, &at, &key, &value);)
        if (sl_str_is(key, "\"function\"") && value.data[0] == '{')
            return value;
    return object;
}

static bool has_only_function(sl_str object)
{
    sl_str key, value;
    for (size_t at = 0; sl_lax_next(object, &at, &key, &value);)
        if (!sl_str_is(key, "\"function\"") && !is_bookkeeping(key))
            return false;
    return true;
}

/* The other members as one JSON object, for the text behind the call. */
static sl_status keep_others(sl_outparse *p, sl_str object, sl_error *err)
{
    op_json_call call = {.n_others = 0};
    sl_str key, value;
    char before = '{';
    for (size_t at = 0; sl_lax_next(object, &at, &key, &value);) {
        if (place_member(&call, key, value))
            continue;
        SL_TRY(sl_buf_append_char(&p->stray, before, err));
        SL_TRY(sl_buf_append(&p->stray, key.data, key.n_bytes, err));
        SL_TRY(sl_buf_append_char(&p->stray, ':', err));
        SL_TRY(sl_buf_append(&p->stray, value.data, value.n_bytes, err));
        before = ',';
    }
    return before == ',' ? sl_buf_append_char(&p->stray, '}', err) : SL_OK;
}

/* ---- arguments ---- */

static bool is_blank(const char *s, size_t n)
{
    return sl_op_n_spaces(s, n) == n;
}

/* Arguments as a string: the object that it holds goes to scratch.out. */
static sl_status read_string(sl_outparse *p, sl_str string, sl_lax_json *scratch, bool *is_object,
                             sl_error *err)
{
    size_t used;
    sl_lax_result result;
    sl_buf_clear(&p->text);
    SL_TRY(sl_lax_unquote(string, &p->text, err));
    const char *s = p->text.data;
    size_t n = p->text.n_bytes;
    if (is_blank(s, n)) {
        *is_object = true;
        return sl_buf_append_str(&scratch->out, "{}", err);
    }
    SL_TRY(sl_lax_push(scratch, s, n, &used, &result, err));
    *is_object =
        result == SL_LAX_DONE && scratch->out.data[0] == '{' && is_blank(s + used, n - used);
    return SL_OK;
}

/* *is_object: `arguments` stands for an object, which is then in *out (scratch keeps it). */
static sl_status read_arguments(sl_outparse *p, sl_str arguments, sl_lax_json *scratch, sl_str *out,
                                bool *is_object, sl_error *err)
{
    *is_object = true;
    *out = arguments;
    if (arguments.n_bytes == 0 || sl_str_is(arguments, "null")) {
        *out = sl_str_of("{}");
    } else if (is_string(arguments)) {
        SL_TRY(read_string(p, arguments, scratch, is_object, err));
        *out = (sl_str){scratch->out.data, scratch->out.n_bytes};
    } else {
        *is_object = arguments.data[0] == '{';
    }
    return SL_OK;
}

/* ---- one call ---- */

/* With give_out: gives the call out. Without: only says whether it is one. */
static sl_status read_call(sl_outparse *p, sl_str object, bool give_out, bool complete,
                           bool *is_call, sl_error *err)
{
    *is_call = false;
    if (object.data[0] != '{')
        return SL_OK;
    sl_str inner = unwrapped(object);
    bool wrapped = inner.data != object.data;
    op_json_call call = members_of(inner);
    if (!is_string(call.name) || (wrapped && !has_only_function(object)))
        return SL_OK;
    if (call.arguments.n_bytes == 0 && (call.n_others > 0 || complete))
        return SL_OK;

    sl_str arguments;
    sl_lax_json scratch;
    sl_lax_init(&scratch, SL_MEM_TEXT, p->json.out.limit);
    sl_status status;
    SL_CHECK(read_arguments(p, call.arguments, &scratch, &arguments, is_call, err));
    sl_buf_clear(&p->text);
    SL_CHECK(sl_lax_unquote(call.name, &p->text, err));
    *is_call = *is_call && p->text.n_bytes > 0 && p->text.n_bytes <= SL_OUTPARSE_MAX_NAME;
    if (!*is_call || !give_out)
        goto done;

    p->call_flags |= p->json.repaired || wrapped || call.n_others > 0 ||
                             is_string(call.arguments) || call.arguments.n_bytes == 0
                         ? SL_OUTPARSE_CALL_REPAIRED
                         : 0u;
    SL_CHECK(sl_op_call_begin(p, (sl_str){p->text.data, p->text.n_bytes}, err));
    SL_CHECK(sl_op_call_arguments(p, arguments, err));
    SL_CHECK(keep_others(p, inner, err));
    SL_CHECK(sl_op_call_end(p, err));

done:
    sl_lax_free(&scratch);
    return status;
}

/* The calls of one object or array. */
static sl_status read_calls(sl_outparse *p, sl_str json, bool give_out, bool complete,
                            bool *are_calls, sl_error *err)
{
    if (json.data[0] == '{')
        return read_call(p, json, give_out, complete, are_calls, err);
    sl_str key, value;
    *are_calls = false;
    for (size_t at = 0; sl_lax_next(json, &at, &key, &value);) {
        if (give_out)
            p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        SL_TRY(read_call(p, value, give_out, complete, are_calls, err));
        if (!*are_calls)
            return SL_OK;
    }
    return SL_OK;
}

/* The JSON is complete. complete_only: a call must have its arguments. */
static sl_status finish_json(sl_outparse *p, bool complete_only, sl_error *err)
{
    sl_str json = {p->json.out.data, p->json.out.n_bytes};
    if (p->json_object) {
        SL_TRY(sl_op_call_begin(p, (sl_str){p->name, p->n_name}, err));
        SL_TRY(sl_op_call_arguments(p, json, err));
        return sl_op_call_end(p, err);
    }
    bool are_calls;
    SL_TRY(read_calls(p, json, false, complete_only, &are_calls, err));
    if (!are_calls)
        return sl_op_give_back(p, err);
    SL_TRY(read_calls(p, json, true, complete_only, &are_calls, err));
    p->state = OP_JSON_AFTER;
    return SL_OK;
}

/* ---- the states ---- */

sl_status sl_op_json_text(sl_outparse *p, const char *s, size_t n, size_t *used, sl_error *err)
{
    sl_lax_result result;
    SL_TRY(sl_lax_push(&p->json, s, n, used, &result, err));
    SL_TRY(sl_buf_append(&p->held, s, *used, err));
    if (result == SL_LAX_BAD)
        return sl_op_give_back(p, err);
    return result == SL_LAX_DONE ? finish_json(p, false, err) : SL_OK;
}

sl_status sl_op_json_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    if (sl_lax_in_string(&p->json) && tag->kind != SL_TAG_THINK_END)
        return sl_op_text(p, tag->bytes, tag->n_bytes, err);
    bool closed = false;
    if (tag->kind == SL_TAG_CALL_END || (p->json_object && tag->kind == SL_TAG_FUNCTION_END))
        SL_TRY(sl_lax_close(&p->json, &closed, err));
    SL_TRY(closed ? finish_json(p, false, err) : sl_op_give_back(p, err));
    return sl_op_tag(p, tag, err);
}

static bool is_between_calls(char c)
{
    return sl_outparse_is_space(c) || c == ',' || c == '}' || c == ']';
}

/* What is held was not between calls: it is text behind them. */
static sl_status leave_block(sl_outparse *p, sl_error *err)
{
    p->state = OP_TEXT;
    SL_TRY(sl_op_plain(p, p->held.data, p->held.n_bytes, err));
    sl_buf_clear(&p->held);
    return SL_OK;
}

sl_status sl_op_json_after_text(sl_outparse *p, const char *s, size_t n, size_t *used,
                                sl_error *err)
{
    size_t room = SL_OUTPARSE_MAX_HELD - p->held.n_bytes;
    for (*used = 0; *used < n && *used < room && is_between_calls(s[*used]);)
        ++*used;
    SL_TRY(sl_buf_append(&p->held, s, *used, err));
    if (*used == n)
        return SL_OK;
    if (s[*used] != '{' && s[*used] != '[')
        return leave_block(p, err);
    p->call_flags = SL_OUTPARSE_CALL_REPAIRED;
    sl_op_json_begin(p, false);
    return SL_OK;
}

sl_status sl_op_json_after_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    if (tag->kind == SL_TAG_CALL_END)
        sl_buf_clear(&p->held); /* framing */
    SL_TRY(leave_block(p, err));
    return sl_op_tag(p, tag, err);
}

sl_status sl_op_json_end(sl_outparse *p, sl_error *err)
{
    if (p->state == OP_JSON_AFTER) {
        sl_buf_clear(&p->held);
        p->state = OP_TEXT;
        return SL_OK;
    }
    bool closed = false;
    if (p->json.depth == 1 && !p->json_object)
        SL_TRY(sl_lax_close(&p->json, &closed, err));
    if (!closed)
        return sl_op_give_back(p, err);
    p->call_flags |= SL_OUTPARSE_CALL_CUT;
    return finish_json(p, true, err);
}
