/* Owns the messages of a conversation and the rules for taking them back. */
#include "chat_talk.h"

#include <string.h>

static sl_status no_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for the conversation");
}

static bool has_role(const json_t *message, const char *role)
{
    const char *is = json_string_value(json_object_get(message, "role"));
    return is && strcmp(is, role) == 0;
}

static const json_t *message_at(const sl_talk *talk, size_t i)
{
    return json_array_get(talk->messages, i);
}

/* ---- life ---- */

sl_status sl_talk_create(sl_talk *talk, sl_error *err)
{
    *talk = (sl_talk){.messages = json_array(), .think = -1};
    return talk->messages ? SL_OK : no_memory(err);
}

sl_status sl_talk_copy(const sl_talk *from, sl_talk *to, sl_error *err)
{
    *to = *from;
    to->messages = json_copy(from->messages);
    if (!to->messages)
        return no_memory(err);
    json_incref(to->tools);
    return SL_OK;
}

void sl_talk_free(sl_talk *talk)
{
    json_decref(talk->messages);
    json_decref(talk->tools);
    *talk = (sl_talk){0};
}

/* ---- the system message ---- */

static bool has_system(const sl_talk *talk)
{
    return has_role(message_at(talk, 0), "system");
}

const char *sl_talk_system(const sl_talk *talk)
{
    return has_system(talk) ? json_string_value(json_object_get(message_at(talk, 0), "content"))
                            : NULL;
}

static json_t *new_message(const char *role, const char *text, size_t n)
{
    return json_pack("{s:s, s:o}", "role", role, "content", sl_json_new_string(text, n));
}

sl_status sl_talk_set_system(sl_talk *talk, const char *text, sl_error *err)
{
    json_t *message = text && *text ? new_message("system", text, strlen(text)) : NULL;
    if (text && *text && !message)
        return no_memory(err);
    const bool had = has_system(talk);
    if (message && (had ? json_array_set_new(talk->messages, 0, message)
                        : json_array_insert_new(talk->messages, 0, message)) != 0)
        return no_memory(err);
    if (!message && had)
        json_array_remove(talk->messages, 0);
    return SL_OK;
}

/* ---- going on ---- */

sl_status sl_talk_add(sl_talk *talk, const char *role, const char *text, size_t n, sl_error *err)
{
    json_t *message = new_message(role, text, n);
    if (!message || json_array_append_new(talk->messages, message) != 0)
        return no_memory(err);
    talk->attempt = 0;
    return SL_OK;
}

sl_status sl_talk_add_answer(sl_talk *talk, json_t *message, sl_error *err)
{
    return json_array_append_new(talk->messages, message) == 0 ? SL_OK : no_memory(err);
}

const char *sl_talk_awaited(const sl_talk *talk)
{
    size_t i = json_array_size(talk->messages), n_results = 0;
    for (; i > 0 && has_role(message_at(talk, i - 1), "tool"); i--)
        n_results++;
    const json_t *answer = i > 0 ? message_at(talk, i - 1) : NULL;
    if (!has_role(answer, "assistant") || json_is_true(json_object_get(answer, "cut")))
        return NULL;
    const json_t *call = json_array_get(json_object_get(answer, "tool_calls"), n_results);
    return json_string_value(json_object_get(json_object_get(call, "function"), "name"));
}

size_t sl_talk_turns(const sl_talk *talk)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(talk->messages); i++)
        n += has_role(message_at(talk, i), "user");
    return n;
}

/* ---- going back ---- */

void sl_talk_drop(sl_talk *talk)
{
    json_array_remove(talk->messages, json_array_size(talk->messages) - 1);
}

/* Takes back messages up to and with the last one of the role. */
static bool drop_back_to(sl_talk *talk, const char *role)
{
    size_t i = json_array_size(talk->messages);
    while (i > 0 && !has_role(message_at(talk, i - 1), role))
        i--;
    if (i == 0)
        return false;
    while (json_array_size(talk->messages) >= i)
        sl_talk_drop(talk);
    return true;
}

bool sl_talk_undo(sl_talk *talk)
{
    talk->attempt = 0;
    return drop_back_to(talk, "user");
}

bool sl_talk_unanswer(sl_talk *talk)
{
    const size_t n = json_array_size(talk->messages);
    return n > 0 && !has_role(message_at(talk, n - 1), "user") && drop_back_to(talk, "assistant");
}

void sl_talk_clear(sl_talk *talk)
{
    const size_t keep = has_system(talk);
    while (json_array_size(talk->messages) > keep)
        sl_talk_drop(talk);
    talk->attempt = 0;
}

/* ---- files ---- */

sl_status sl_talk_to_json(const sl_talk *talk, json_t **out, sl_error *err)
{
    json_t *think = talk->think < 0 ? json_null() : json_boolean(talk->think);
    *out = json_pack("{s:O, s:O?, s:o, s:I}", "messages", talk->messages, "tools", talk->tools,
                     "think", think, "attempt", (json_int_t)talk->attempt);
    return *out ? SL_OK : no_memory(err);
}

/* Every message has a known role and text; only the first may be the system's. */
static bool good_messages(const json_t *messages)
{
    static const char *const roles[] = {"user", "assistant", "tool"};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        bool known = i == 0 && has_role(message, "system");
        for (size_t r = 0; r < SL_COUNTOF(roles); r++)
            known = known || has_role(message, roles[r]);
        if (!known || !json_is_string(json_object_get(message, "content")))
            return false;
    }
    return json_is_array(messages);
}

sl_status sl_talk_from_json(const json_t *object, const char *name, sl_talk *out, sl_error *err)
{
    json_t *messages = json_object_get(object, "messages");
    json_t *tools = json_object_get(object, "tools");
    const json_t *think = json_object_get(object, "think");
    int64_t attempt;
    SL_TRY(sl_json_get_int_or(object, "attempt", 0, UINT32_MAX, 0, &attempt, name, err));
    if (!good_messages(messages) || (tools && !json_is_array(tools) && !json_is_null(tools)))
        return sl_fail(err, SL_ERR_FORMAT, "%s holds no conversation", name);
    const sl_talk talk = {
        .messages = messages,
        .tools = json_is_array(tools) ? tools : NULL,
        .think = json_is_boolean(think) ? json_is_true(think) : -1,
        .attempt = (uint32_t)attempt,
    };
    return sl_talk_copy(&talk, out, err);
}
