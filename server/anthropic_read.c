#include "anthropic.h"

#include <string.h>

static sl_status no_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for a request");
}

static bool is_type(const json_t *object, const char *type)
{
    const json_t *value = json_object_get(object, "type");
    return value && sl_json_is_string(value) && strcmp(json_string_value(value), type) == 0;
}

static const json_t *string_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && sl_json_is_string(value) ? value : NULL;
}

/* Takes the reference of value; false: no memory, also when value is NULL. */
static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static json_t *copy_of(const json_t *value)
{
    return json_deep_copy(value);
}

/* ---- text ---- */

/* Appends the text of content: a string, or blocks of type text. */
static sl_status append_text(const sl_fields *f, const json_t *content, sl_buf *to, sl_error *err)
{
    if (sl_json_is_string(content))
        return sl_buf_append(to, json_string_value(content), json_string_length(content), err);
    if (!json_is_array(content))
        return sl_field_refuse(f, "a string or an array of blocks", err);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const json_t *text = string_of(block, "text");
        if (!is_type(block, "text"))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: only blocks of type \"text\" can be read here", f->param);
        if (!text)
            return sl_field_refuse(f, "a text in each block of type \"text\"", err);
        SL_TRY(sl_buf_append(to, json_string_value(text), json_string_length(text), err));
    }
    return SL_OK;
}

/* {"role": role, "content": text} */
static json_t *new_message(const char *role, const sl_buf *text)
{
    json_t *message = json_object();
    if (message && put(message, "role", json_string(role)) &&
        put(message, "content", sl_json_new_string(text->data ? text->data : "", text->n_bytes)))
        return message;
    json_decref(message);
    return NULL;
}

static sl_status push_message(json_t *messages, json_t *message, sl_error *err)
{
    if (!message || json_array_append_new(messages, message) != 0)
        return no_memory(err);
    return SL_OK;
}

static sl_status push_text(const sl_fields *f, json_t *messages, const char *role,
                           const json_t *content, sl_error *err)
{
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, (size_t)1 << 26);
    sl_status status = append_text(f, content, &text, err);
    if (status == SL_OK)
        status = push_message(messages, new_message(role, &text), err);
    sl_buf_free(&text);
    return status;
}

/* ---- messages of the assistant ---- */

typedef struct reply {
    sl_buf content, thinking;
    json_t *calls;
} reply;

/* {"id", "type": "function", "function": {"name", "arguments"}} */
static sl_status add_call(const sl_fields *f, const json_t *block, json_t *calls, sl_error *err)
{
    const json_t *id = string_of(block, "id"), *name = string_of(block, "name");
    const json_t *input = json_object_get(block, "input");
    if (!id || !name || !json_is_object(input))
        return sl_field_refuse(f, "id, name and input in a block of type \"tool_use\"", err);
    json_t *call = json_object(), *function = json_object();
    const bool is_made =
        call && function && put(function, "name", copy_of(name)) &&
        put(function, "arguments", copy_of(input)) && put(call, "id", copy_of(id)) &&
        put(call, "type", json_string("function")) &&
        json_object_set(call, "function", function) == 0 && json_array_append(calls, call) == 0;
    json_decref(function);
    json_decref(call);
    return is_made ? SL_OK : no_memory(err);
}

static sl_status add_reply_block(const sl_fields *f, const json_t *block, reply *r, sl_error *err)
{
    const json_t *text;
    if (is_type(block, "text") && (text = string_of(block, "text")) != NULL)
        return sl_buf_append(&r->content, json_string_value(text), json_string_length(text), err);
    if (is_type(block, "thinking") && (text = string_of(block, "thinking")) != NULL)
        return sl_buf_append(&r->thinking, json_string_value(text), json_string_length(text), err);
    if (is_type(block, "redacted_thinking"))
        return SL_OK;
    if (is_type(block, "tool_use"))
        return add_call(f, block, r->calls, err);
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: a message of the assistant has blocks of type text, thinking and tool_use",
                   f->param);
}

static sl_status fill_reply(const sl_fields *f, const json_t *content, reply *r, sl_error *err)
{
    if (sl_json_is_string(content))
        return sl_buf_append(&r->content, json_string_value(content), json_string_length(content),
                             err);
    if (!json_is_array(content))
        return sl_field_refuse(f, "a string or an array of blocks", err);
    for (size_t i = 0; i < json_array_size(content); i++)
        SL_TRY(add_reply_block(f, json_array_get(content, i), r, err));
    return SL_OK;
}

static json_t *reply_message(const reply *r)
{
    json_t *message = new_message("assistant", &r->content);
    bool is_made = message != NULL;
    if (is_made && r->thinking.n_bytes > 0)
        is_made = put(message, "reasoning_content",
                      sl_json_new_string(r->thinking.data, r->thinking.n_bytes));
    if (is_made && json_array_size(r->calls) > 0)
        is_made = json_object_set(message, "tool_calls", r->calls) == 0;
    if (is_made)
        return message;
    json_decref(message);
    return NULL;
}

static sl_status push_reply(const sl_fields *f, json_t *messages, const json_t *content,
                            sl_error *err)
{
    reply r = {.calls = json_array()};
    sl_buf_init(&r.content, SL_MEM_TEXT, (size_t)1 << 26);
    sl_buf_init(&r.thinking, SL_MEM_TEXT, (size_t)1 << 26);
    sl_status status = r.calls ? fill_reply(f, content, &r, err) : no_memory(err);
    if (status == SL_OK)
        status = push_message(messages, reply_message(&r), err);
    sl_buf_free(&r.content);
    sl_buf_free(&r.thinking);
    json_decref(r.calls);
    return status;
}

/* ---- messages of the user ---- */

static sl_status push_result(const sl_fields *f, json_t *messages, const json_t *block,
                             sl_error *err)
{
    const json_t *id = string_of(block, "tool_use_id");
    const json_t *content = json_object_get(block, "content");
    if (!id)
        return sl_field_refuse(f, "tool_use_id in a block of type \"tool_result\"", err);
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, (size_t)1 << 26);
    sl_status status = content ? append_text(f, content, &text, err) : SL_OK;
    json_t *message = status == SL_OK ? new_message("tool", &text) : NULL;
    if (message && !put(message, "tool_call_id", copy_of(id))) {
        json_decref(message);
        message = NULL;
    }
    if (status == SL_OK)
        status = push_message(messages, message, err);
    sl_buf_free(&text);
    return status;
}

/* Results of tools become messages of their own, in front of the text beside them. */
static sl_status push_user(const sl_fields *f, json_t *messages, const json_t *content,
                           sl_error *err)
{
    if (!json_is_array(content))
        return push_text(f, messages, "user", content, err);
    json_t *rest = json_array();
    sl_status status = rest ? SL_OK : no_memory(err);
    for (size_t i = 0; i < json_array_size(content) && status == SL_OK; i++) {
        json_t *block = json_array_get(content, i);
        if (is_type(block, "tool_result"))
            status = push_result(f, messages, block, err);
        else if (json_array_append(rest, block) != 0)
            status = no_memory(err);
    }
    if (status == SL_OK && (json_array_size(rest) > 0 || json_array_size(content) == 0))
        status = push_text(f, messages, "user", rest, err);
    json_decref(rest);
    return status;
}

static sl_status push_any(const sl_fields *f, json_t *messages, const json_t *message, size_t i,
                          sl_error *err)
{
    const json_t *role = string_of(message, "role");
    const json_t *content = json_object_get(message, "content");
    if (!role || !content)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "messages[%zu]: expected an object with role and "
                       "content",
                       i);
    if (strcmp(json_string_value(role), "user") == 0)
        return push_user(f, messages, content, err);
    if (strcmp(json_string_value(role), "assistant") == 0)
        return push_reply(f, messages, content, err);
    if (strcmp(json_string_value(role), "system") == 0)
        return push_text(f, messages, "system", content, err);
    return sl_fail(err, SL_ERR_ARGUMENT, "messages[%zu]: the role is \"user\" or \"assistant\"", i);
}

static sl_status read_messages(sl_fields *f, json_t *out, sl_error *err)
{
    const json_t *messages = NULL, *system = sl_field(f, "system");
    if (system)
        SL_TRY(push_text(f, out, "system", system, err));
    SL_TRY(sl_field_array(f, "messages", &messages, err));
    if (json_array_size(messages) == 0)
        return sl_field_refuse(f, "an array of at least one message", err);
    for (size_t i = 0; i < json_array_size(messages); i++)
        SL_TRY(push_any(f, out, json_array_get(messages, i), i, err));
    return SL_OK;
}

/* ---- tools and thinking ---- */

static sl_status add_tool(const sl_fields *f, const json_t *tool, json_t *out, sl_error *err)
{
    const json_t *name = string_of(tool, "name"), *about = string_of(tool, "description");
    const json_t *schema = json_object_get(tool, "input_schema");
    if (!name || !json_is_object(schema))
        return sl_field_refuse(f, "tools of name, description and input_schema", err);
    json_t *function = json_object();
    const bool is_made = function && put(function, "name", copy_of(name)) &&
                         (!about || put(function, "description", copy_of(about))) &&
                         put(function, "parameters", copy_of(schema));
    if (!is_made) {
        json_decref(function);
        return no_memory(err);
    }
    json_t *made = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (!made || json_array_append_new(out, made) != 0)
        return no_memory(err);
    return SL_OK;
}

/* {"type": "auto" | "none" | "any" | "tool", "name"} */
static sl_status read_choice(sl_fields *f, sl_anthropic_chat *out, bool *none, sl_error *err)
{
    const json_t *choice = NULL;
    SL_TRY(sl_field_object(f, "tool_choice", &choice, err));
    *none = choice && is_type(choice, "none");
    if (!choice || *none || is_type(choice, "auto"))
        return SL_OK;
    const json_t *name = string_of(choice, "name");
    const bool is_tool = is_type(choice, "tool");
    if (!is_tool && !is_type(choice, "any"))
        return sl_field_refuse(f, "a type of auto, any, tool or none", err);
    if (is_tool && !name)
        return sl_field_refuse(f, "a name with the type tool", err);
    out->forces_tools = true;
    out->forced = is_tool ? json_string_value(name) : NULL;
    return SL_OK;
}

static sl_status read_tools(sl_fields *f, sl_anthropic_chat *out, sl_error *err)
{
    const json_t *tools = NULL;
    bool none;
    SL_TRY(read_choice(f, out, &none, err));
    SL_TRY(sl_field_array(f, "tools", &tools, err));
    if (out->forces_tools && json_array_size(tools) == 0)
        return sl_field_refuse(f, "tools, which tool_choice requires", err);
    for (size_t i = 0; !none && i < json_array_size(tools); i++)
        SL_TRY(add_tool(f, json_array_get(tools, i), out->tools, err));
    return SL_OK;
}

static sl_status read_thinking(sl_fields *f, json_t *variables, sl_error *err)
{
    const json_t *thinking = NULL;
    SL_TRY(sl_field_object(f, "thinking", &thinking, err));
    const bool is_on = thinking && (is_type(thinking, "enabled") || is_type(thinking, "adaptive"));
    if (thinking && !is_on && !is_type(thinking, "disabled"))
        return sl_field_refuse(f, "a type of enabled, adaptive or disabled", err);
    /* Clients that do not ask for thinking do not expect any. */
    return put(variables, "enable_thinking", json_boolean(is_on)) ? SL_OK : no_memory(err);
}

/* ---- the calls ---- */

sl_status sl_anthropic_read_chat(sl_fields *f, sl_anthropic_chat *out, sl_error *err)
{
    *out = (sl_anthropic_chat){
        .messages = json_array(), .tools = json_array(), .variables = json_object()};
    if (!out->messages || !out->tools || !out->variables)
        return no_memory(err);
    SL_TRY(read_thinking(f, out->variables, err));
    SL_TRY(read_tools(f, out, err));
    return read_messages(f, out->messages, err);
}

void sl_anthropic_release(sl_anthropic_chat *chat)
{
    json_decref(chat->messages);
    json_decref(chat->tools);
    json_decref(chat->variables);
}

sl_status sl_anthropic_keep_chat(const sl_anthropic_chat *chat, sl_chat_texts *texts, sl_error *err)
{
    SL_TRY(sl_chat_text_put(&texts->messages, chat->messages, err));
    SL_TRY(sl_chat_text_put(&texts->variables, chat->variables, err));
    if (json_array_size(chat->tools) == 0)
        return SL_OK;
    return sl_chat_text_put(&texts->tools, chat->tools, err);
}
