/* A whole answer as one JSON value, by the streaming parser. */
#include "text/outparse.h"

typedef struct op_answer {
    sl_buf thinking, content, arguments;
    json_t *calls; /* array */
    json_t *call;  /* the open one, a member of the array */
} op_answer;

static sl_status out_of_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for an answer as JSON");
}

static json_t *json_of(const sl_buf *text)
{
    return sl_json_new_string(text->data, text->n_bytes);
}

static json_t *flag_names(unsigned flags)
{
    json_t *names = json_array();
    for (unsigned flag = 1; flag <= SL_OUTPARSE_THINKING_OPEN; flag <<= 1)
        if (flags & flag)
            json_array_append_new(names, json_string(sl_outparse_flag_name(flag)));
    return names;
}

static sl_status begin_call(op_answer *answer, sl_str name, sl_error *err)
{
    json_t *call = json_object();
    if (json_object_set_new(call, "name", sl_json_new_string(name.data, name.n_bytes)) != 0 ||
        json_array_append(answer->calls, call) != 0) {
        json_decref(call);
        return out_of_memory(err);
    }
    json_decref(call);
    answer->call = call;
    sl_buf_clear(&answer->arguments);
    return SL_OK;
}

static sl_status end_call(op_answer *answer, unsigned flags, sl_error *err)
{
    if (json_object_set_new(answer->call, "arguments", json_of(&answer->arguments)) != 0 ||
        json_object_set_new(answer->call, "flags", flag_names(flags)) != 0)
        return out_of_memory(err);
    return SL_OK;
}

static sl_status gather(void *user, const sl_outparse_event *event, sl_error *err)
{
    op_answer *answer = user;
    const sl_str text = event->text;
    switch (event->kind) {
    case SL_OUTPARSE_THINKING:
        return sl_buf_append(&answer->thinking, text.data, text.n_bytes, err);
    case SL_OUTPARSE_CONTENT:
        return sl_buf_append(&answer->content, text.data, text.n_bytes, err);
    case SL_OUTPARSE_CALL_BEGIN:
        return begin_call(answer, event->name, err);
    case SL_OUTPARSE_CALL_ARGUMENTS:
        return sl_buf_append(&answer->arguments, text.data, text.n_bytes, err);
    case SL_OUTPARSE_CALL_END:
        break;
    }
    return end_call(answer, event->flags, err);
}

sl_status sl_outparse_all(const char *text, size_t n, const sl_outparse_options *options,
                          json_t **out, sl_error *err)
{
    op_answer answer = {.calls = json_array()};
    sl_buf_init(&answer.thinking, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_buf_init(&answer.content, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_buf_init(&answer.arguments, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_outparse *parser = NULL;
    json_t *object = NULL;
    sl_status status;
    SL_CHECK(sl_outparse_new(options, gather, &answer, &parser, err));
    SL_CHECK(sl_outparse_push(parser, text, n, err));
    SL_CHECK(sl_outparse_finish(parser, err));
    object = json_object();
    if (json_object_set_new(object, "reasoning_content", json_of(&answer.thinking)) != 0 ||
        json_object_set_new(object, "content", json_of(&answer.content)) != 0 ||
        json_object_set(object, "tool_calls", answer.calls) != 0 ||
        json_object_set_new(object, "flags", flag_names(sl_outparse_flags_of(parser))) != 0) {
        status = out_of_memory(err);
        goto done;
    }
    *out = json_incref(object);

done:
    json_decref(object);
    json_decref(answer.calls);
    sl_outparse_free(parser);
    sl_buf_free(&answer.thinking);
    sl_buf_free(&answer.content);
    sl_buf_free(&answer.arguments);
    return status;
}
