/* Calls of the first form: <function=NAME>, then parameters. The rules for where a value ends, and
 * what is done about text between the tags, stand in outparse.h. */
#include "text/outparse_private.h"

static const sl_str no_close = {"", 0};

static sl_str name_of(const sl_outparse *p)
{
    return (sl_str){p->name, p->n_name};
}

/* ---- behind <function=NAME> ---- */

sl_status sl_op_function(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    if (tag->n_bytes > SL_OUTPARSE_MAX_HELD - p->held.n_bytes) {
        SL_TRY(sl_op_give_back(p, err));
        return sl_op_plain(p, tag->bytes, tag->n_bytes, err);
    }
    sl_str name = sl_tag_name(tag);
    memcpy(p->name, name.data, name.n_bytes);
    p->n_name = name.n_bytes;
    p->call_flags |= tag->plain ? 0u : SL_OUTPARSE_CALL_REPAIRED;
    p->state = OP_FUNCTION;
    return sl_buf_append(&p->held, tag->bytes, tag->n_bytes, err);
}

static sl_status begin(sl_outparse *p, sl_error *err)
{
    p->state = OP_BODY;
    return sl_op_call_begin(p, name_of(p), err);
}

static sl_status end(sl_outparse *p, sl_error *err)
{
    sl_str rest = sl_str_of(p->n_parameters == 0 ? "{}" : "}");
    SL_TRY(sl_op_call_arguments(p, rest, err));
    return sl_op_call_end(p, err);
}

sl_status sl_op_function_text(sl_outparse *p, const char *s, size_t n, size_t *used, sl_error *err)
{
    size_t spaces = sl_op_n_spaces(s, n);
    *used = sl_min_size(spaces, SL_OUTPARSE_MAX_HELD - p->held.n_bytes);
    SL_TRY(sl_buf_append(&p->held, s, *used, err));
    if (*used == n)
        return SL_OK;
    if (*used < spaces || s[*used] != '{')
        return sl_op_give_back(p, err);
    p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
    sl_op_json_begin(p, true);
    return SL_OK;
}

sl_status sl_op_function_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    bool begins = tag->kind == SL_TAG_PARAMETER || tag->kind == SL_TAG_FUNCTION_END ||
                  tag->kind == SL_TAG_CALL_END;
    /* Another call in its place: in a <tool_call> this one is certain enough. */
    if (p->in_block && (tag->kind == SL_TAG_FUNCTION || tag->kind == SL_TAG_CALL))
        begins = true;
    if (begins) {
        SL_TRY(begin(p, err));
        return sl_op_body_tag(p, tag, err);
    }
    bool fits = tag->n_bytes <= SL_OUTPARSE_MAX_HELD - p->held.n_bytes;
    if (tag->kind == SL_TAG_PARAMETER_END && fits) {
        p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        return sl_buf_append(&p->held, tag->bytes, tag->n_bytes, err);
    }
    SL_TRY(sl_op_give_back(p, err));
    return sl_op_tag(p, tag, err);
}

/* ---- parameters ---- */

/* `seen` holds the names as ">a>b>": no name has a '>'. */
static bool was_given(const sl_outparse *p, sl_str name)
{
    const char *s = p->seen.data, *end = s + p->seen.n_bytes;
    while (s < end) {
        const char *stop = memchr(s, '>', (size_t)(end - s));
        if (sl_str_equal((sl_str){s, (size_t)(stop - s)}, name))
            return true;
        s = stop + 1;
    }
    return false;
}

static bool takes(const sl_outparse *p, sl_str name)
{
    return p->n_parameters < SL_OUTPARSE_MAX_PARAMETERS && !was_given(p, name) &&
           (!p->schema || sl_outparse_parameter(p->schema, name));
}

static sl_status append_arguments(sl_outparse *p, const char *s, sl_error *err)
{
    return sl_op_call_arguments(p, sl_str_of(s), err);
}

static sl_status append_escaped(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    while (n > 0) {
        size_t part = sl_op_part(s, n);
        SL_TRY(sl_op_room(p, SL_OUTPARSE_CALL_ARGUMENTS, err));
        SL_TRY(sl_outparse_escape(&p->out, (sl_str){s, part}, err));
        s += part;
        n -= part;
    }
    return SL_OK;
}

static sl_status begin_value(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    sl_str name = sl_tag_name(tag);
    p->state = OP_VALUE;
    p->value = (op_value){.sink = OP_SINK_STRAY};
    p->call_flags |= tag->plain ? 0u : SL_OUTPARSE_CALL_REPAIRED;
    if (p->n_parameters == SL_OUTPARSE_MAX_PARAMETERS || was_given(p, name))
        return sl_buf_append(&p->stray, tag->bytes, tag->n_bytes, err);
    SL_TRY(append_arguments(p, p->n_parameters++ == 0 ? "{\"" : ",\"", err));
    SL_TRY(append_escaped(p, name.data, name.n_bytes, err));
    SL_TRY(append_arguments(p, "\":", err));
    SL_TRY(sl_buf_append(&p->seen, name.data, name.n_bytes, err));
    SL_TRY(sl_buf_append_char(&p->seen, '>', err));
    const json_t *parameter = p->schema ? sl_outparse_parameter(p->schema, name) : NULL;
    p->value.types = sl_outparse_types(p->schema, parameter);
    p->value.sink = p->value.types == SL_VALUE_STRING ? OP_SINK_STRING : OP_SINK_TYPED;
    sl_buf_clear(&p->text);
    return p->value.sink == OP_SINK_STRING ? append_arguments(p, "\"", err) : SL_OK;
}

static sl_status pass_on(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    if (p->value.sink == OP_SINK_STRING)
        return append_escaped(p, s, n, err);
    return sl_buf_append(&p->text, s, n, err);
}

/* Bytes that are certainly part of the value, but for the newlines at its ends. */
static sl_status add_to_value(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    op_value *value = &p->value;
    if (n == 0)
        return SL_OK;
    if (value->sink == OP_SINK_STRAY)
        return sl_buf_append(&p->stray, s, n, err);
    if (!value->begun) {
        value->begun = true;
        size_t framing = s[0] == '\n';
        return add_to_value(p, s + framing, n - framing, err);
    }
    if (value->newline)
        SL_TRY(pass_on(p, "\n", 1, err));
    value->newline = s[n - 1] == '\n';
    return pass_on(p, s, n - value->newline, err);
}

/* close: the tag that ends it, empty when there is none. */
static sl_status end_value(sl_outparse *p, sl_str close, sl_error *err)
{
    p->state = OP_BODY;
    switch (p->value.sink) {
    case OP_SINK_STRING:
        return append_arguments(p, "\"", err);
    case OP_SINK_STRAY:
        return sl_buf_append(&p->stray, close.data, close.n_bytes, err);
    case OP_SINK_TYPED:
        break;
    }
    bool fits, repaired = false;
    SL_TRY(sl_op_room(p, SL_OUTPARSE_CALL_ARGUMENTS, err));
    SL_TRY(sl_outparse_value(p->value.types, (sl_str){p->text.data, p->text.n_bytes}, &p->json,
                             &p->out, &fits, &repaired, err));
    p->call_flags |= fits ? 0u : SL_OUTPARSE_CALL_UNTYPED;
    p->call_flags |= repaired ? SL_OUTPARSE_CALL_REPAIRED : 0u;
    return SL_OK;
}

/* ---- between the tags of a call ---- */

sl_status sl_op_body_text(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    size_t spaces = p->stray.n_bytes == 0 ? sl_op_n_spaces(s, n) : 0;
    return sl_buf_append(&p->stray, s + spaces, n - spaces, err);
}

sl_status sl_op_body_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    p->call_flags |= tag->plain ? 0u : SL_OUTPARSE_CALL_REPAIRED;
    switch (tag->kind) {
    case SL_TAG_PARAMETER:
        return begin_value(p, tag, err);
    case SL_TAG_FUNCTION_END:
        return end(p, err);
    case SL_TAG_CALL_END:
        p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        return end(p, err);
    case SL_TAG_PARAMETER_END:
        p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        return SL_OK;
    case SL_TAG_THINK_END:
        if (!p->is_thinking)
            break;
        /* fall through */
    case SL_TAG_CALL:
    case SL_TAG_FUNCTION:
        p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        SL_TRY(end(p, err));
        return sl_op_tag(p, tag, err);
    case SL_TAG_THINK:
        break;
    }
    return sl_op_body_text(p, tag->bytes, tag->n_bytes, err);
}

/* ---- where a value ends ---- */

/* The value was whatever came before the first candidate: what follows is read again. */
static sl_status end_at_first(sl_outparse *p, sl_error *err)
{
    sl_buf again = p->held;
    sl_buf_init(&p->held, again.tag, again.limit);
    p->value.in_doubt = p->value.behind_tag = false;
    sl_status status = sl_op_again(p, again.data, again.n_bytes, err);
    sl_buf_free(&again);
    return status;
}

/* The value ends at the last close tag; those before it were part of it. */
static sl_status end_at_last(sl_outparse *p, sl_error *err)
{
    SL_TRY(add_to_value(p, p->held.data, p->value.last_at, err));
    const char *close = p->held.data + p->value.last_at; /* and white space behind it */
    const char *end = memchr(close, '>', p->held.n_bytes - p->value.last_at);
    SL_TRY(end_value(p, (sl_str){close, (size_t)(end - close) + 1}, err));
    sl_buf_clear(&p->held);
    return SL_OK;
}

static sl_status keep_held(sl_outparse *p, sl_error *err)
{
    p->value.in_doubt = false;
    SL_TRY(add_to_value(p, p->held.data, p->held.n_bytes, err));
    sl_buf_clear(&p->held);
    return SL_OK;
}

static sl_status value_bytes(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    return p->value.in_doubt ? sl_buf_append(&p->held, s, n, err) : add_to_value(p, s, n, err);
}

/* Something else than a tag of the call follows the last candidate. */
static sl_status pass_candidate(sl_outparse *p, sl_error *err)
{
    p->value.behind_tag = false;
    /* A <tool_call> without a known function is no reason for doubt. */
    return p->value.first_kind == SL_TAG_CALL ? keep_held(p, err) : SL_OK;
}

sl_status sl_op_value_text(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    size_t spaces = p->value.behind_tag ? sl_op_n_spaces(s, n) : 0;
    SL_TRY(value_bytes(p, s, spaces, err));
    if (spaces == n)
        return SL_OK;
    if (p->value.behind_tag)
        SL_TRY(pass_candidate(p, err));
    return value_bytes(p, s + spaces, n - spaces, err);
}

static sl_status add_candidate(sl_outparse *p, const sl_tag *tag, bool belongs, sl_error *err)
{
    op_value *value = &p->value;
    if (!value->in_doubt) {
        value->in_doubt = true;
        value->any_belongs = false;
        value->first_kind = tag->kind;
        sl_buf_clear(&p->held);
    }
    value->behind_tag = true;
    value->last_kind = tag->kind;
    value->last_at = p->held.n_bytes;
    value->last_belongs = belongs;
    value->any_belongs = value->any_belongs || belongs;
    return sl_buf_append(&p->held, tag->bytes, tag->n_bytes, err);
}

/* A function behind a <tool_call>: either part of the value, or the next call. */
static void note_call(sl_outparse *p, const sl_tag *tag)
{
    op_value *value = &p->value;
    if (value->last_kind != SL_TAG_CALL || tag->kind != SL_TAG_FUNCTION)
        return;
    value->function_open = true;
    const json_t *tools = p->options.tools;
    if (value->first_kind == SL_TAG_CALL &&
        (!tools || sl_outparse_function(tools, sl_tag_name(tag))))
        value->first_kind = SL_TAG_FUNCTION;
}

typedef enum op_verdict { OP_VALUE_GOES_ON, OP_VALUE_ENDS_FIRST, OP_VALUE_ENDS_LAST } op_verdict;

/* What a tag says about the candidate just before it. */
static op_verdict judge(const sl_outparse *p, const sl_tag *tag)
{
    const op_value *value = &p->value;
    bool ends_call = tag->kind == SL_TAG_CALL_END || tag->kind == SL_TAG_CALL;
    bool next_function = tag->kind == SL_TAG_FUNCTION || tag->kind == SL_TAG_FUNCTION_END;
    switch (value->last_kind) {
    case SL_TAG_PARAMETER_END:
        if (!value->last_belongs && tag->kind != SL_TAG_THINK && tag->kind != SL_TAG_THINK_END)
            return OP_VALUE_ENDS_LAST;
        break;
    case SL_TAG_FUNCTION_END:
        if (!value->any_belongs && (ends_call || next_function))
            return OP_VALUE_ENDS_FIRST;
        break;
    case SL_TAG_CALL_END:
        if (!value->any_belongs && ends_call)
            return OP_VALUE_ENDS_FIRST;
        break;
    default:
        break;
    }
    return OP_VALUE_GOES_ON;
}

static sl_status strict_value_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    bool ends = tag->kind == SL_TAG_PARAMETER_END || tag->kind == SL_TAG_FUNCTION_END ||
                tag->kind == SL_TAG_CALL_END || tag->kind == SL_TAG_CALL ||
                (tag->kind == SL_TAG_PARAMETER && takes(p, sl_tag_name(tag)));
    if (!ends)
        return add_to_value(p, tag->bytes, tag->n_bytes, err);
    if (tag->kind == SL_TAG_PARAMETER_END)
        return end_value(p, sl_tag_text(tag), err);
    SL_TRY(end_value(p, no_close, err));
    p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
    return sl_op_body_tag(p, tag, err);
}

sl_status sl_op_value_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    op_value *value = &p->value;
    if (p->strict)
        return strict_value_tag(p, tag, err);
    if (value->behind_tag) {
        op_verdict verdict = judge(p, tag);
        if (verdict != OP_VALUE_GOES_ON) {
            SL_TRY(verdict == OP_VALUE_ENDS_LAST ? end_at_last(p, err) : end_at_first(p, err));
            return sl_op_tag(p, tag, err);
        }
        note_call(p, tag);
        SL_TRY(pass_candidate(p, err));
    }
    switch (tag->kind) {
    case SL_TAG_PARAMETER:
        if (!value->function_open && takes(p, sl_tag_name(tag))) {
            p->call_flags |= value->in_doubt ? 0u : SL_OUTPARSE_CALL_REPAIRED;
            SL_TRY(value->in_doubt ? end_at_first(p, err) : end_value(p, no_close, err));
            return sl_op_tag(p, tag, err);
        }
        value->n_open++;
        break;
    case SL_TAG_PARAMETER_END: {
        bool belongs = value->n_open > 0;
        value->n_open -= belongs;
        return add_candidate(p, tag, belongs, err);
    }
    case SL_TAG_FUNCTION_END: {
        bool belongs = value->function_open;
        value->function_open = false;
        return add_candidate(p, tag, belongs, err);
    }
    case SL_TAG_CALL_END:
    case SL_TAG_CALL:
        return add_candidate(p, tag, false, err);
    case SL_TAG_THINK_END:
        if (!p->is_thinking)
            break;
        /* Thinking about a call goes on after it more often than a call writes this. */
        p->call_flags |= value->in_doubt ? 0u : SL_OUTPARSE_CALL_CUT;
        SL_TRY(value->in_doubt ? end_at_first(p, err) : end_value(p, no_close, err));
        return sl_op_tag(p, tag, err);
    default:
        break;
    }
    return value_bytes(p, tag->bytes, tag->n_bytes, err);
}

/* ---- the end ---- */

sl_status sl_op_xml_end(sl_outparse *p, sl_error *err)
{
    if (p->state == OP_FUNCTION) {
        if (!p->in_block)
            return sl_op_give_back(p, err);
        SL_TRY(begin(p, err));
    }
    if (p->state == OP_VALUE) {
        bool closed = p->value.behind_tag && p->value.last_kind == SL_TAG_PARAMETER_END &&
                      !p->value.last_belongs;
        if (p->value.in_doubt && !closed)
            return end_at_first(p, err);
        SL_TRY(closed ? end_at_last(p, err) : end_value(p, no_close, err));
    }
    p->call_flags |= SL_OUTPARSE_CALL_CUT;
    return end(p, err);
}
