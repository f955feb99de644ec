#include "text/chat.h"

#include <string.h>

enum { MAX_TEXT = 64 << 20 };

/* The message at work, for error messages. */
typedef struct place {
    size_t index;
    sl_error *err;
} place;

static sl_status refuse(const place *at, const char *field, const char *what)
{
    return sl_fail(at->err, SL_ERR_ARGUMENT, "messages[%zu].%s %s", at->index, field, what);
}

static sl_status no_memory(const place *at)
{
    return sl_fail(at->err, SL_ERR_MEMORY, "messages[%zu]: out of memory", at->index);
}

/* Sets object[key], taking the value over; a NULL value is a failed allocation. */
static sl_status set_new(const place *at, json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0 ? SL_OK : no_memory(at);
}

static const char *string_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return sl_json_is_string(value) ? json_string_value(value) : NULL;
}

/* ---- role ---- */

static sl_status normalise_role(const place *at, json_t *message)
{
    static const struct {
        const char *given, *role;
    } roles[] = {
        {"system", "system"},       {"developer", "system"}, {"user", "user"},
        {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"},
    };
    const char *given = string_of(message, "role");
    if (!given)
        return refuse(at, "role", "must be a string");
    for (size_t i = 0; i < SL_COUNTOF(roles); i++) {
        if (strcmp(given, roles[i].given) == 0)
            return set_new(at, message, "role", json_string(roles[i].role));
    }
    return sl_fail(at->err, SL_ERR_ARGUMENT,
                   "messages[%zu].role '%.40s' is none of system, developer, user, assistant, tool",
                   at->index, given);
}

/* ---- content ---- */

/* The text of one part, or NULL when it is no text; *kind is then what it is. */
static const json_t *part_text(const json_t *part, const char **kind)
{
    static const struct {
        const char *type, *member;
    } texts[] = {
        {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
    *kind = "unknown";
    if (sl_json_is_string(part))
        return part;
    const json_t *type = json_object_get(part, "type");
    if (type && !sl_json_is_string(type))
        return NULL;
    const char *name = type ? json_string_value(type) : "text";
    for (size_t i = 0; i < SL_COUNTOF(texts); i++) {
        const json_t *text = json_object_get(part, texts[i].member);
        if (strcmp(name, texts[i].type) == 0 && sl_json_is_string(text))
            return text;
    }
    if (type) {
        *kind = name;
    } else { /* {"image": ...} */
        const char *key = json_object_iter_key(json_object_iter((json_t *)(uintptr_t)part));
        *kind = key ? key : *kind;
    }
    return NULL;
}

static sl_status join_parts(const place *at, const json_t *parts, sl_buf *text)
{
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *kind;
        const json_t *piece = part_text(part, &kind);
        if (!piece)
            return sl_fail(at->err, SL_ERR_ARGUMENT,
                           "messages[%zu].content[%zu] is a part of type '%.40s': this model is "
                           "run on text only",
                           at->index, i, kind);
        sl_status status =
            sl_buf_append(text, json_string_value(piece), json_string_length(piece), at->err);
        if (status != SL_OK)
            return sl_fail_within(at->err, status, "messages[%zu].content", at->index);
    }
    return SL_OK;
}

static sl_status normalise_content(const place *at, json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    if (sl_json_is_string(content))
        return SL_OK;
    if (!content || json_is_null(content))
        return set_new(at, message, "content", json_string(""));
    if (!json_is_array(content))
        return refuse(at, "content", "must be a string, an array of parts, or null");
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, MAX_TEXT);
    sl_status status = join_parts(at, content, &text);
    if (status == SL_OK)
        status = set_new(at, message, "content", sl_json_new_string(text.data, text.n_bytes));
    sl_buf_free(&text);
    return status;
}

/* ---- tool calls ---- */

/* {"input": value}; takes a reference of its own. */
static json_t *wrapped(json_t *value)
{
    json_t *object = json_object();
    if (object && json_object_set(object, "input", value) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* A new object for `arguments`, or NULL without memory. */
static json_t *normalised_arguments(json_t *arguments)
{
    size_t n = json_string_length(arguments);
    if (json_is_object(arguments))
        return json_incref(arguments);
    if (!arguments || json_is_null(arguments) || (json_is_string(arguments) && n == 0))
        return json_object();
    if (!sl_json_is_string(arguments))
        return wrapped(arguments);
    json_t *parsed = NULL;
    sl_status status = sl_json_parse(json_string_value(arguments), n, "arguments",
                                     sl_json_limits_default(), &parsed, NULL);
    if (status == SL_ERR_MEMORY || json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return wrapped(arguments);
}

/* `holder` is a call, or its "function": what has the name and arguments. */
static sl_status normalise_holder(const place *at, size_t index, json_t *holder)
{
    if (!string_of(holder, "name"))
        return sl_fail(at->err, SL_ERR_ARGUMENT,
                       "messages[%zu].tool_calls[%zu] needs the name of a function", at->index,
                       index);
    return set_new(at, holder, "arguments",
                   normalised_arguments(json_object_get(holder, "arguments")));
}

/* Replaces the call at `index` of the (own) array of calls by a normalised copy. */
static sl_status normalise_call(const place *at, json_t *calls, size_t index)
{
    json_t *given = json_array_get(calls, index);
    if (!json_is_object(given))
        return sl_fail(at->err, SL_ERR_ARGUMENT, "messages[%zu].tool_calls[%zu] must be an object",
                       at->index, index);
    json_t *call = json_copy(given);
    if (!call || json_array_set_new(calls, index, call) != 0)
        return no_memory(at);
    const json_t *function = json_object_get(call, "function");
    if (!function || json_is_null(function))
        return normalise_holder(at, index, call);
    if (!json_is_object(function))
        return sl_fail(at->err, SL_ERR_ARGUMENT,
                       "messages[%zu].tool_calls[%zu].function must be an object", at->index,
                       index);
    json_t *copy = json_copy((json_t *)(uintptr_t)function);
    SL_TRY(set_new(at, call, "function", copy));
    return normalise_holder(at, index, copy);
}

/* [{"type": "function", "function": function}], or NULL without memory. */
static json_t *single_call(json_t *function)
{
    json_t *call = json_object(), *calls = json_array();
    bool ok = call && calls && json_object_set_new(call, "type", json_string("function")) == 0 &&
              json_object_set(call, "function", function) == 0 &&
              json_array_append(calls, call) == 0;
    json_decref(call);
    if (ok)
        return calls;
    json_decref(calls);
    return NULL;
}

static sl_status normalise_tool_calls(const place *at, json_t *message)
{
    json_t *given = json_object_get(message, "tool_calls");
    json_t *old = json_object_get(message, "function_call");
    bool missing = !given || json_is_null(given);
    if (missing)
        json_object_del(message, "tool_calls");
    if (missing && !json_is_object(old))
        return SL_OK;
    if (!missing && !json_is_array(given))
        return refuse(at, "tool_calls", "must be an array or null");
    json_t *calls = missing ? single_call(old) : json_copy(given);
    SL_TRY(set_new(at, message, "tool_calls", calls));
    if (missing)
        json_object_del(message, "function_call");
    for (size_t i = 0; i < json_array_size(calls); i++)
        SL_TRY(normalise_call(at, calls, i));
    return SL_OK;
}

/* ---- reasoning ---- */

static sl_status normalise_reasoning(const place *at, json_t *message)
{
    static const char *const aliases[] = {"reasoning", "thinking"};
    const json_t *given = json_object_get(message, "reasoning_content");
    if (given && !json_is_null(given))
        return sl_json_is_string(given)
                   ? SL_OK
                   : refuse(at, "reasoning_content", "must be a string or null");
    for (size_t i = 0; i < SL_COUNTOF(aliases); i++) {
        json_t *alias = json_object_get(message, aliases[i]);
        if (sl_json_is_string(alias))
            return set_new(at, message, "reasoning_content", json_incref(alias));
    }
    return SL_OK;
}

/* ---- the whole ---- */

static sl_status normalise_message(const place *at, json_t *message)
{
    SL_TRY(normalise_role(at, message));
    SL_TRY(normalise_content(at, message));
    SL_TRY(normalise_tool_calls(at, message));
    return normalise_reasoning(at, message);
}

/* Adds the text of one more system message to the joined one. */
static sl_status add_system(const place *at, const json_t *message, sl_buf *system)
{
    const json_t *content = json_object_get(message, "content");
    size_t n = json_string_length(content);
    if (n == 0)
        return SL_OK;
    sl_status status = system->n_bytes > 0 ? sl_buf_append(system, "\n\n", 2, at->err) : SL_OK;
    if (status == SL_OK)
        status = sl_buf_append(system, json_string_value(content), n, at->err);
    return status == SL_OK ? SL_OK
                           : sl_fail_within(at->err, status, "messages[%zu].content", at->index);
}

/* Appends normalised copies to `result`; system messages go into *system, the first into *head. */
static sl_status collect(const json_t *messages, json_t *result, json_t **head, sl_buf *system,
                         sl_error *err)
{
    size_t i;
    json_t *given;
    json_array_foreach(messages, i, given)
    {
        const place at = {i, err};
        if (!json_is_object(given))
            return sl_fail(err, SL_ERR_ARGUMENT, "messages[%zu] must be an object", i);
        json_t *message = json_copy(given);
        if (!message)
            return no_memory(&at);
        sl_status status = normalise_message(&at, message);
        bool is_system = status == SL_OK && strcmp(string_of(message, "role"), "system") == 0;
        if (is_system)
            status = add_system(&at, message, system);
        if (is_system && !*head)
            *head = json_incref(message);
        else if (status == SL_OK && !is_system && json_array_append(result, message) != 0)
            status = no_memory(&at);
        json_decref(message);
        SL_TRY(status);
    }
    return SL_OK;
}

sl_status sl_chat_normalise(const json_t *messages, json_t **out, sl_error *err)
{
    *out = NULL;
    if (!json_is_array(messages))
        return sl_fail(err, SL_ERR_ARGUMENT, "messages must be an array");
    if (json_array_size(messages) > SL_CHAT_MAX_MESSAGES)
        return sl_fail(err, SL_ERR_LIMIT, "%zu messages, more than %d", json_array_size(messages),
                       SL_CHAT_MAX_MESSAGES);
    const place front = {0, err};
    json_t *result = json_array(), *head = NULL;
    sl_buf system;
    sl_buf_init(&system, SL_MEM_TEXT, MAX_TEXT);
    sl_status status = result ? collect(messages, result, &head, &system, err) : no_memory(&front);
    if (status == SL_OK && head) {
        status = set_new(&front, head, "content", sl_json_new_string(system.data, system.n_bytes));
        if (status == SL_OK && json_array_insert(result, 0, head) != 0)
            status = no_memory(&front);
    }
    json_decref(head);
    sl_buf_free(&system);
    if (status != SL_OK) {
        json_decref(result);
        return status;
    }
    *out = result;
    return SL_OK;
}
