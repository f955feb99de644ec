/* The answer parser (outparse.h): the public functions, thinking and content, and the events.
 * Owns the parser. Which bytes may become a tag is known to outparse_tag.c; here a '<' starts it,
 * and what it makes of the bytes goes to the state the parser is in. */
#include "text/outparse.h"

#include "base/fpenv.h"
#include "text/outparse_private.h"

enum {
    OUT_BYTES = 64 << 10,        /* an event is given out when it has grown to this */
    MOST_CALL_BYTES = 256 << 20, /* what max_call_bytes may be */
    MOST_BYTES_PER_CALL_BYTE = 6 /* a control character becomes \u00XX */
};

const char *sl_outparse_flag_name(sl_outparse_flags flag)
{
    switch (flag) {
    case SL_OUTPARSE_CALL_REPAIRED:
        return "repaired";
    case SL_OUTPARSE_CALL_CUT:
        return "cut";
    case SL_OUTPARSE_CALL_UNKNOWN:
        return "unknown_function";
    case SL_OUTPARSE_CALL_UNTYPED:
        return "untyped_value";
    case SL_OUTPARSE_CALL_TEXT:
        return "text_in_call";
    case SL_OUTPARSE_CALL_IN_THINKING:
        return "in_thinking";
    case SL_OUTPARSE_CALL_BROKEN:
        return "broken_call";
    case SL_OUTPARSE_STRAY_THINK:
        return "stray_think";
    case SL_OUTPARSE_THINKING_OPEN:
        return "thinking_open";
    }
    return "unknown";
}

/* ---- events ---- */

static sl_status flush(sl_outparse *p, sl_error *err)
{
    if (p->out.n_bytes == 0)
        return SL_OK;
    sl_outparse_event event = {.kind = p->out_kind, .text = {p->out.data, p->out.n_bytes}};
    if (p->out_kind == SL_OUTPARSE_CALL_ARGUMENTS)
        event.index = p->n_calls - 1;
    sl_status status = p->fn(p->user, &event, err);
    sl_buf_clear(&p->out);
    return status;
}

/* Neither events nor limits part a character. */
static bool is_inside_character(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

size_t sl_op_part(const char *s, size_t n)
{
    size_t part = sl_min_size(n, OUT_BYTES);
    while (part > 1 && part < n && is_inside_character(s[part]))
        part--;
    return part;
}

sl_status sl_op_room(sl_outparse *p, sl_outparse_kind kind, sl_error *err)
{
    if (p->out_kind != kind || p->out.n_bytes >= OUT_BYTES)
        SL_TRY(flush(p, err));
    p->out_kind = kind;
    return SL_OK;
}

static sl_status emit(sl_outparse *p, sl_outparse_kind kind, const char *s, size_t n, sl_error *err)
{
    while (n > 0) {
        size_t part = sl_op_part(s, n);
        SL_TRY(sl_op_room(p, kind, err));
        SL_TRY(sl_buf_append(&p->out, s, part, err));
        s += part;
        n -= part;
    }
    return SL_OK;
}

static sl_status emit_text(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    if (n == 0)
        return SL_OK;
    p->gap = OP_GAP_NONE;
    if (!p->is_thinking)
        return emit(p, SL_OUTPARSE_CONTENT, s, n, err);
    if (p->part_thoughts)
        SL_TRY(emit(p, SL_OUTPARSE_THINKING, "\n\n", 2, err));
    p->part_thoughts = false;
    p->thought = true;
    return emit(p, SL_OUTPARSE_THINKING, s, n, err);
}

sl_status sl_op_call_begin(sl_outparse *p, sl_str name, sl_error *err)
{
    SL_TRY(flush(p, err));
    const json_t *function = sl_outparse_function(p->options.tools, name);
    p->schema = sl_outparse_schema(function);
    p->call_flags |= p->is_thinking ? SL_OUTPARSE_CALL_IN_THINKING : 0u;
    p->call_flags |= p->options.tools && !function ? SL_OUTPARSE_CALL_UNKNOWN : 0u;
    p->n_parameters = 0;
    sl_buf_clear(&p->seen);
    sl_buf_clear(&p->stray);
    sl_buf_clear(&p->held);
    sl_buf_clear(&p->space); /* framing */
    sl_outparse_event event = {.kind = SL_OUTPARSE_CALL_BEGIN, .index = p->n_calls++, .name = name};
    return p->fn(p->user, &event, err);
}

sl_status sl_op_call_arguments(sl_outparse *p, sl_str piece, sl_error *err)
{
    return emit(p, SL_OUTPARSE_CALL_ARGUMENTS, piece.data, piece.n_bytes, err);
}

sl_status sl_op_call_end(sl_outparse *p, sl_error *err)
{
    SL_TRY(flush(p, err));
    p->call_flags |= p->stray.n_bytes > 0 ? SL_OUTPARSE_CALL_TEXT : 0u;
    sl_outparse_event event = {
        .kind = SL_OUTPARSE_CALL_END, .index = p->n_calls - 1, .flags = p->call_flags};
    SL_TRY(p->fn(p->user, &event, err));
    p->flags |= p->call_flags;
    p->call_flags = 0;
    SL_TRY(emit_text(p, p->stray.data, p->stray.n_bytes, err));
    sl_buf_clear(&p->stray);
    sl_buf_clear(&p->held);
    p->state = OP_TEXT;
    p->gap = OP_GAP_CALL; /* close tags may still follow */
    return SL_OK;
}

/* ---- thinking and content ---- */

/* White space turns out to stand before text. */
static sl_status release_space(sl_outparse *p, sl_error *err)
{
    SL_TRY(emit_text(p, p->space.data, p->space.n_bytes, err));
    sl_buf_clear(&p->space);
    return SL_OK;
}

/* The end of the text that is known not to touch framing: up to its last other byte. */
static size_t n_without_space_behind(const char *s, size_t n)
{
    while (n > 0 && sl_outparse_is_space(s[n - 1]))
        n--;
    return n;
}

static bool is_framing(const sl_outparse *p, char c)
{
    if (p->is_thinking)
        return p->gap == OP_GAP_START;
    return p->gap == OP_GAP_THOUGHT && p->space.n_bytes == 0 && (c == '\n' || c == '\r');
}

static sl_status hold_space(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (is_framing(p, s[i]))
            continue;
        if (p->space.n_bytes == SL_OUTPARSE_MAX_SPACE)
            SL_TRY(release_space(p, err));
        SL_TRY(sl_buf_append_char(&p->space, s[i], err));
    }
    return SL_OK;
}

sl_status sl_op_plain(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    size_t leading = sl_op_n_spaces(s, n);
    SL_TRY(hold_space(p, s, leading, err));
    if (leading == n)
        return SL_OK;
    SL_TRY(release_space(p, err));
    size_t end = n_without_space_behind(s, n);
    SL_TRY(emit_text(p, s + leading, end - leading, err));
    return hold_space(p, s + end, n - end, err);
}

static sl_status begin_thinking(sl_outparse *p)
{
    p->is_thinking = true;
    p->part_thoughts = p->thought;
    p->gap = OP_GAP_START;
    sl_buf_clear(&p->space);
    return SL_OK;
}

static sl_status end_thinking(sl_outparse *p)
{
    p->is_thinking = false;
    p->gap = OP_GAP_THOUGHT;
    sl_buf_clear(&p->space);
    return SL_OK;
}

static sl_status keep_think(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    p->flags |= SL_OUTPARSE_STRAY_THINK;
    return sl_op_plain(p, tag->bytes, tag->n_bytes, err);
}

/* A tag that may begin a call. */
static sl_status begin_call(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    p->n_call_bytes = 0;
    p->call_flags = tag->plain ? 0u : SL_OUTPARSE_CALL_REPAIRED;
    sl_buf_clear(&p->held);
    p->in_block = tag->kind == SL_TAG_CALL;
    if (tag->kind == SL_TAG_FUNCTION) {
        p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        return sl_op_function(p, tag, err);
    }
    p->state = OP_OPENED;
    return sl_buf_append(&p->held, tag->bytes, tag->n_bytes, err);
}

static sl_status text_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    bool behind_call = p->gap == OP_GAP_CALL;
    bool takes_calls =
        !p->options.ignore_calls && !(p->is_thinking && p->options.ignore_calls_in_thinking);
    switch (tag->kind) {
    case SL_TAG_THINK:
        return p->gap != OP_GAP_NONE ? begin_thinking(p) : keep_think(p, tag, err);
    case SL_TAG_THINK_END:
        return p->is_thinking || p->gap != OP_GAP_NONE ? end_thinking(p) : keep_think(p, tag, err);
    case SL_TAG_CALL:
        if (takes_calls)
            return begin_call(p, tag, err);
        break;
    case SL_TAG_FUNCTION:
        if (takes_calls && (!p->is_thinking || behind_call))
            return begin_call(p, tag, err);
        break;
    case SL_TAG_CALL_END:
    case SL_TAG_FUNCTION_END:
    case SL_TAG_PARAMETER_END:
        if (behind_call) { /* doubled, or late */
            sl_buf_clear(&p->space);
            return SL_OK;
        }
        break;
    case SL_TAG_PARAMETER:
        break;
    }
    return sl_op_plain(p, tag->bytes, tag->n_bytes, err);
}

sl_status sl_op_give_back(sl_outparse *p, sl_error *err)
{
    p->state = OP_TEXT;
    p->call_flags = 0;
    p->flags |= SL_OUTPARSE_CALL_BROKEN;
    SL_TRY(sl_op_plain(p, p->held.data, p->held.n_bytes, err));
    sl_buf_clear(&p->held);
    return SL_OK;
}

/* ---- behind <tool_call> ---- */

static sl_status opened_text(sl_outparse *p, const char *s, size_t n, size_t *used, sl_error *err)
{
    *used = sl_op_n_spaces(s, n);
    if (*used > SL_OUTPARSE_MAX_HELD - p->held.n_bytes) {
        *used = SL_OUTPARSE_MAX_HELD - p->held.n_bytes;
        SL_TRY(sl_buf_append(&p->held, s, *used, err));
        return sl_op_give_back(p, err);
    }
    SL_TRY(sl_buf_append(&p->held, s, *used, err));
    if (*used == n)
        return SL_OK;
    if (s[*used] != '{' && s[*used] != '[')
        return sl_op_give_back(p, err);
    sl_op_json_begin(p, false);
    return SL_OK;
}

static sl_status opened_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    if (tag->kind == SL_TAG_FUNCTION)
        return sl_op_function(p, tag, err);
    if (tag->kind == SL_TAG_CALL && tag->n_bytes <= SL_OUTPARSE_MAX_HELD - p->held.n_bytes) {
        p->call_flags |= SL_OUTPARSE_CALL_REPAIRED;
        return sl_buf_append(&p->held, tag->bytes, tag->n_bytes, err);
    }
    SL_TRY(sl_op_give_back(p, err));
    return text_tag(p, tag, err);
}

/* ---- bytes to runs and tags ---- */

sl_status sl_op_text(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    while (n > 0) {
        size_t used = n;
        switch (p->state) {
        case OP_TEXT:
            SL_TRY(sl_op_plain(p, s, n, err));
            break;
        case OP_OPENED:
            SL_TRY(opened_text(p, s, n, &used, err));
            break;
        case OP_FUNCTION:
            SL_TRY(sl_op_function_text(p, s, n, &used, err));
            break;
        case OP_BODY:
            SL_TRY(sl_op_body_text(p, s, n, err));
            break;
        case OP_VALUE:
            SL_TRY(sl_op_value_text(p, s, n, err));
            break;
        case OP_JSON:
            SL_TRY(sl_op_json_text(p, s, n, &used, err));
            break;
        case OP_JSON_AFTER:
            SL_TRY(sl_op_json_after_text(p, s, n, &used, err));
            break;
        case OP_FINISHED:
            return sl_fail(err, SL_ERR_ARGUMENT, "text behind the end of an answer");
        }
        s += used;
        n -= used;
    }
    return SL_OK;
}

sl_status sl_op_tag(sl_outparse *p, const sl_tag *tag, sl_error *err)
{
    switch (p->state) {
    case OP_TEXT:
        return text_tag(p, tag, err);
    case OP_OPENED:
        return opened_tag(p, tag, err);
    case OP_FUNCTION:
        return sl_op_function_tag(p, tag, err);
    case OP_BODY:
        return sl_op_body_tag(p, tag, err);
    case OP_VALUE:
        return sl_op_value_tag(p, tag, err);
    case OP_JSON:
        return sl_op_json_tag(p, tag, err);
    case OP_JSON_AFTER:
        return sl_op_json_after_tag(p, tag, err);
    case OP_FINISHED:
        break;
    }
    return SL_OK;
}

/* What the tag reader holds is text after all. Its bytes are copied: reading again may use it. */
static sl_status tag_as_text(sl_outparse *p, sl_error *err)
{
    sl_tag tag = p->tag;
    return sl_op_text(p, tag.bytes, tag.n_bytes, err);
}

/* Where a '<' begins no tag: in a string of JSON, but that </think> ends all calls in thinking. */
static bool has_no_tags(const sl_outparse *p)
{
    return p->state == OP_JSON && !p->is_thinking && sl_lax_in_string(&p->json);
}

/* Counts towards max_call_bytes. */
static bool counts(const sl_outparse *p)
{
    return p->state != OP_TEXT && !p->strict;
}

/* Takes a run without '<' behind its first byte. */
static sl_status take_run(sl_outparse *p, const char *s, size_t n, size_t *used, sl_error *err)
{
    size_t run = n;
    const char *next = memchr(s + 1, '<', n - 1);
    if (next)
        run = (size_t)(next - s);
    if (counts(p)) {
        size_t left = p->options.max_call_bytes - p->n_call_bytes, part = sl_min_size(run, left);
        while (part < run && is_inside_character(s[part]))
            part++;
        p->n_call_bytes += sl_min_size(part, left);
        run = part;
    }
    *used = run;
    return sl_op_text(p, s, run, err);
}

static sl_status take_tag_byte(sl_outparse *p, char c, size_t *used, sl_error *err)
{
    sl_tag_result result = sl_tag_push(&p->tag, c);
    *used = result != SL_TAG_NONE;
    if (result == SL_TAG_MORE)
        return SL_OK;
    if (counts(p))
        p->n_call_bytes += sl_min_size(p->tag.n_bytes, p->options.max_call_bytes - p->n_call_bytes);
    if (result == SL_TAG_NONE)
        return tag_as_text(p, err);
    sl_tag tag = p->tag;
    return sl_op_tag(p, &tag, err);
}

/* Leaves every state inside a call for OP_TEXT. */
static sl_status end_call(sl_outparse *p, sl_error *err)
{
    /* Reading again what was in doubt may open a call once more. */
    while (p->state != OP_TEXT) {
        switch (p->state) {
        case OP_FUNCTION:
        case OP_BODY:
        case OP_VALUE:
            SL_TRY(sl_op_xml_end(p, err));
            break;
        case OP_JSON:
        case OP_JSON_AFTER:
            SL_TRY(sl_op_json_end(p, err));
            break;
        default:
            SL_TRY(sl_op_give_back(p, err));
            break;
        }
    }
    return SL_OK;
}

/* max_call_bytes are reached: what follows is text. */
static sl_status end_call_early(sl_outparse *p, sl_error *err)
{
    SL_TRY(end_call(p, err));
    SL_TRY(release_space(p, err));
    p->gap = OP_GAP_NONE;
    return SL_OK;
}

static sl_status feed(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    while (n > 0) {
        size_t used = 1;
        if (!p->tag.active && counts(p) && p->n_call_bytes == p->options.max_call_bytes &&
            !is_inside_character(s[0]))
            SL_TRY(end_call_early(p, err));
        if (p->tag.active)
            SL_TRY(take_tag_byte(p, s[0], &used, err));
        else if (s[0] == '<' && !has_no_tags(p))
            sl_tag_begin(&p->tag);
        else
            SL_TRY(take_run(p, s, n, &used, err));
        s += used;
        n -= used;
    }
    return SL_OK;
}

sl_status sl_op_again(sl_outparse *p, const char *s, size_t n, sl_error *err)
{
    p->strict = true;
    SL_TRY(feed(p, s, n, err));
    if (p->tag.active) {
        p->tag.active = false;
        SL_TRY(tag_as_text(p, err));
    }
    p->strict = false;
    return SL_OK;
}

/* ---- the end ---- */

/* The beginning of a close tag at the end of the answer, where one may stand, is framing. */
static bool is_cut_close_tag(const sl_outparse *p)
{
    if (p->tag.n_bytes < 2 || p->tag.bytes[1] != '/')
        return false;
    if (p->state == OP_VALUE)
        return p->value.behind_tag || (p->value.newline && !p->value.in_doubt);
    return p->state == OP_FUNCTION || p->state == OP_BODY || p->state == OP_JSON_AFTER ||
           (p->state == OP_TEXT && p->gap == OP_GAP_CALL);
}

static sl_status finish(sl_outparse *p, sl_error *err)
{
    if (p->state == OP_FINISHED)
        return SL_OK;
    if (p->tag.active) {
        p->tag.active = false;
        if (!is_cut_close_tag(p))
            SL_TRY(tag_as_text(p, err));
    }
    SL_TRY(end_call(p, err));
    if (p->gap != OP_GAP_CALL)
        SL_TRY(release_space(p, err));
    SL_TRY(flush(p, err));
    p->flags |= p->is_thinking ? SL_OUTPARSE_THINKING_OPEN : 0u;
    p->state = OP_FINISHED;
    return SL_OK;
}

/* ---- the parser ---- */

sl_status sl_outparse_finish(sl_outparse *p, sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    const sl_status status = finish(p, err);
    sl_fpenv_leave(env);
    return status;
}

sl_status sl_outparse_push(sl_outparse *p, const char *text, size_t n, sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter(); /* arguments may be numbers */
    sl_status status = feed(p, text, n, err);
    if (status == SL_OK)
        status = flush(p, err);
    sl_fpenv_leave(env);
    return status;
}

unsigned sl_outparse_flags_of(const sl_outparse *p)
{
    return p->flags;
}

size_t sl_outparse_n_calls(const sl_outparse *p)
{
    return p->n_calls;
}

sl_status sl_outparse_new(const sl_outparse_options *options, sl_outparse_fn fn, void *user,
                          sl_outparse **out, sl_error *err)
{
    sl_outparse_options chosen = options ? *options : (sl_outparse_options){.tools = NULL};
    if (json_is_null(chosen.tools))
        chosen.tools = NULL;
    if (chosen.tools && !json_is_array(chosen.tools))
        return sl_fail(err, SL_ERR_ARGUMENT, "tools must be an array");
    if (chosen.max_call_bytes == 0)
        chosen.max_call_bytes = SL_OUTPARSE_MAX_CALL_BYTES;
    if (chosen.max_call_bytes > MOST_CALL_BYTES)
        return sl_fail(err, SL_ERR_ARGUMENT, "max_call_bytes is %zu, the most is %d",
                       chosen.max_call_bytes, MOST_CALL_BYTES);
    sl_outparse *p = sl_alloc_zero(SL_MEM_TEXT, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the parser of an answer");
    p->options = chosen;
    p->fn = fn;
    p->user = user;
    p->is_thinking = chosen.starts_in_thinking;
    p->gap = OP_GAP_START;
    /* What is gathered stays below these by construction. */
    size_t call = (chosen.max_call_bytes + SL_OUTPARSE_MAX_TAG) * MOST_BYTES_PER_CALL_BYTE;
    sl_buf_init(&p->space, SL_MEM_TEXT, SL_OUTPARSE_MAX_SPACE);
    sl_buf_init(&p->held, SL_MEM_TEXT, call);
    sl_buf_init(&p->out, SL_MEM_TEXT, call + MOST_BYTES_PER_CALL_BYTE * 2 * (size_t)OUT_BYTES);
    sl_buf_init(&p->seen, SL_MEM_TEXT, call);
    sl_buf_init(&p->stray, SL_MEM_TEXT, call);
    sl_buf_init(&p->text, SL_MEM_TEXT, call);
    sl_lax_init(&p->json, SL_MEM_TEXT, call);
    *out = p;
    return SL_OK;
}

void sl_outparse_free(sl_outparse *p)
{
    if (!p)
        return;
    sl_buf_free(&p->space);
    sl_buf_free(&p->held);
    sl_buf_free(&p->out);
    sl_buf_free(&p->seen);
    sl_buf_free(&p->stray);
    sl_buf_free(&p->text);
    sl_lax_free(&p->json);
    json_decref(p->own_tools);
    sl_free(p);
}

static sl_status create(const sl_outparse_params *params, sl_outparse_fn fn, void *user,
                        sl_outparse **out, sl_error *err)
{
    json_t *tools = NULL;
    if (params->tools.n_bytes > 0)
        SL_TRY(sl_json_parse(params->tools.data, params->tools.n_bytes, "tools",
                             sl_json_limits_default(), &tools, err));
    const sl_outparse_options options = {
        .tools = tools,
        .max_call_bytes = params->max_call_bytes,
        .starts_in_thinking = params->starts_in_thinking,
        .ignore_calls = params->ignore_calls,
        .ignore_calls_in_thinking = params->ignore_calls_in_thinking,
    };
    const sl_status status = sl_outparse_new(&options, fn, user, out, err);
    if (status == SL_OK)
        (*out)->own_tools = tools;
    else
        json_decref(tools);
    return status;
}

sl_status sl_outparse_create(const sl_outparse_params *params, sl_outparse_fn fn, void *user,
                             sl_outparse **out, sl_error *err)
{
    static const sl_outparse_params none;
    params = params ? params : &none;
    SL_TRY(sl_check_reserved(params->reserved, SL_COUNTOF(params->reserved), "sl_outparse_params",
                             err));
    sl_fpenv env = sl_fpenv_enter();
    const sl_status status = create(params, fn, user, out, err);
    sl_fpenv_leave(env);
    return status;
}
