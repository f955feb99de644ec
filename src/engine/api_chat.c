/* Conversations of sluice.h: messages as JSON text become tokens, and the places in them to which a
 * later conversation will come back. Knows no template: what two conversations have in common shows
 * when both are rendered. */
#include <string.h>

#include "base/fpenv.h"
#include "engine/engine_internal.h"

/* ---- the JSON texts ---- */

typedef struct parts {
    json_t *messages, *tools, *variables;
} parts;

static sl_status parse_part(sl_str text, const char *name, json_t **out, sl_error *err)
{
    *out = NULL;
    if (text.n_bytes == 0)
        return SL_OK;
    return sl_json_parse(text.data, text.n_bytes, name, sl_json_limits_default(), out, err);
}

static sl_status check_part(const json_t *part, bool is_right, const char *name, const char *type,
                            sl_error *err)
{
    if (!part || is_right)
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "%s must be a JSON %s", name, type);
}

static void parts_free(parts *p)
{
    json_decref(p->messages);
    json_decref(p->tools);
    json_decref(p->variables);
}

/* Release with parts_free, also after a failure. */
static sl_status parse(const sl_chat *chat, parts *p, sl_error *err)
{
    *p = (parts){0};
    SL_TRY(parse_part(chat->messages, "messages", &p->messages, err));
    SL_TRY(parse_part(chat->tools, "tools", &p->tools, err));
    SL_TRY(parse_part(chat->variables, "variables", &p->variables, err));
    if (!p->messages)
        return sl_fail(err, SL_ERR_ARGUMENT, "there are no messages");
    SL_TRY(check_part(p->messages, json_is_array(p->messages), "messages", "array", err));
    SL_TRY(check_part(p->tools, json_is_array(p->tools), "tools", "array", err));
    return check_part(p->variables, json_is_object(p->variables), "variables", "object", err);
}

static sl_template_input input_of(const sl_chat *chat, const parts *p)
{
    return (sl_template_input){
        .messages = p->messages,
        .tools = p->tools,
        .variables = p->variables,
        .add_generation_prompt = !chat->no_reply,
        .now = chat->now,
        .trust_content = chat->trust_content,
    };
}

static sl_status check_call(const sl_engine *engine, const sl_chat *chat, sl_error *err)
{
    SL_TRY(sl_check_reserved(chat->reserved, SL_COUNTOF(chat->reserved), "sl_chat", err));
    return sl_engine_need_text(engine, err);
}

/* ---- rendering ---- */

/* Hands the text and its marks over. */
static sl_status take_rendered(sl_marked_text *marked, size_t n_replaced, sl_rendered *out,
                               sl_error *err)
{
    SL_TRY(sl_buf_reserve(&marked->text, 1, err)); /* a text even when it is empty */
    *out = (sl_rendered){.untrusted = marked->untrusted,
                         .n_untrusted = marked->n_untrusted,
                         .n_replaced = n_replaced};
    out->text = sl_buf_take(&marked->text, &out->n_bytes);
    marked->untrusted = NULL;
    marked->n_untrusted = 0;
    return SL_OK;
}

static sl_status render(const sl_engine *engine, const sl_chat *chat, sl_ids *ids,
                        sl_rendered *rendered, sl_error *err)
{
    parts p;
    sl_marked_text marked = {0};
    size_t n_replaced = 0;
    sl_status status;
    sl_buf_init(&marked.text, SL_MEM_TEXT, 0);
    SL_CHECK(parse(chat, &p, err));
    const sl_template_input input = input_of(chat, &p);
    SL_CHECK(
        sl_text_render(engine->text, &input, ids, rendered ? &marked : NULL, &n_replaced, err));
    if (rendered)
        SL_CHECK(take_rendered(&marked, n_replaced, rendered, err));
done:
    sl_marked_text_free(&marked);
    parts_free(&p);
    return status;
}

sl_status sl_engine_render(const sl_engine *engine, const sl_chat *chat, sl_ids *ids,
                           sl_rendered *rendered, sl_error *err)
{
    SL_TRY(check_call(engine, chat, err));
    sl_fpenv env = sl_fpenv_enter(); /* JSON and templates have numbers */
    const sl_status status = render(engine, chat, ids, rendered, err);
    sl_fpenv_leave(env);
    return status;
}

void sl_rendered_free(sl_rendered *rendered)
{
    sl_free(rendered->text);
    sl_free(rendered->untrusted);
    *rendered = (sl_rendered){0};
}

/* ---- marks ---- */

/* Stands where the text of another turn will stand. */
static const char any_text[] = "\xC2\xB7";

typedef struct marking {
    const sl_text *text;
    sl_template_input input; /* of the conversation, without the beginning of a reply */
    const int32_t *prompt;
    size_t n_prompt;
    sl_prompt_mark *marks;
    size_t n_marks;
} marking;

static const char *role_at(const json_t *messages, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role ? role : "";
}

static bool is_system(const json_t *messages, size_t i)
{
    const char *role = role_at(messages, i);
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
}

/* The first n of the messages and after them one of each role, as a new reference; NULL when memory
 * is short. */
static json_t *other_messages(const json_t *messages, size_t n, const char *const *roles,
                              size_t n_roles)
{
    json_t *other = json_array();
    bool ok = other != NULL;
    for (size_t i = 0; i < n && ok; i++)
        ok = json_array_append(other, json_array_get(messages, i)) == 0;
    for (size_t i = 0; i < n_roles && ok; i++)
        ok = json_array_append_new(
                 other, json_pack("{s:s, s:s}", "role", roles[i], "content", any_text)) == 0;
    if (ok)
        return other;
    json_decref(other);
    return NULL;
}

/* Marks the end of what the prompt has in common with another conversation. One that the template
 * refuses gives no mark. */
static sl_status mark_common(marking *m, size_t n, const char *const *roles, size_t n_roles,
                             sl_anchor anchor, sl_error *err)
{
    sl_ids ids = {0};
    sl_template_input input = m->input;
    json_t *other = other_messages(m->input.messages, n, roles, n_roles);
    if (!other)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the messages");
    input.messages = other;
    const sl_status status = sl_text_render(m->text, &input, &ids, NULL, NULL, err);
    size_t common = 0;
    while (status == SL_OK && common < m->n_prompt && common < ids.n &&
           m->prompt[common] == ids.ids[common])
        common++;
    if (common > 0 && common < m->n_prompt && common <= UINT32_MAX)
        m->marks[m->n_marks++] = (sl_prompt_mark){(uint32_t)common, anchor};
    sl_ids_free(&ids);
    json_decref(other);
    return status == SL_ERR_MEMORY ? status : SL_OK;
}

static sl_status find_marks(marking *m, sl_error *err)
{
    static const char *const user[] = {"user"}, *const answered[] = {"assistant", "user"};
    const json_t *messages = m->input.messages;
    const size_t n = json_array_size(messages);
    const char *const last[] = {n > 0 ? role_at(messages, n - 1) : ""};
    size_t n_system = 0;
    while (n_system < n && is_system(messages, n_system))
        n_system++;
    if (n_system > 0 || m->input.tools)
        SL_TRY(mark_common(m, n_system, user, 1, SL_ANCHOR_SYSTEM, err));
    if (n > 0)
        SL_TRY(mark_common(m, n - 1, last, 1, SL_ANCHOR_TURN, err));
    return mark_common(m, n, answered, 2, SL_ANCHOR_REPLY, err);
}

/* By position; of the same one in the order found. */
static void sort_marks(sl_prompt_mark *marks, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const sl_prompt_mark mark = marks[i];
        size_t k = i;
        for (; k > 0 && marks[k - 1].position > mark.position; k--)
            marks[k] = marks[k - 1];
        marks[k] = mark;
    }
}

sl_status sl_engine_prompt_marks(const sl_engine *engine, const sl_chat *chat,
                                 const int32_t *prompt, size_t n_prompt,
                                 sl_prompt_mark marks[SL_MAX_PROMPT_MARKS], size_t *n_marks,
                                 sl_error *err)
{
    parts p;
    sl_status status;
    *n_marks = 0;
    SL_TRY(check_call(engine, chat, err));
    sl_fpenv env = sl_fpenv_enter();
    SL_CHECK(parse(chat, &p, err));
    marking m = {.text = engine->text,
                 .input = input_of(chat, &p),
                 .prompt = prompt,
                 .n_prompt = n_prompt,
                 .marks = marks};
    m.input.add_generation_prompt = false;
    SL_CHECK(find_marks(&m, err));
    sort_marks(marks, m.n_marks);
    *n_marks = m.n_marks;
done:
    sl_fpenv_leave(env);
    parts_free(&p);
    return status;
}
