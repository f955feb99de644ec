/* Writes a conversation as the library takes it: as JSON text. */
#include "messages.h"

#include <time.h>

enum { TEXT_LIMIT = 1 << 30 };

static sl_str text_of(const sl_buf *buf)
{
    return (sl_str){buf->data, buf->n_bytes};
}

sl_status sl_messages_render(const sl_messages *input, const sl_engine *engine, sl_ids *ids,
                             sl_marks *marks, sl_error *err)
{
    static const char think_on[] = "{\"enable_thinking\": true}";
    static const char think_off[] = "{\"enable_thinking\": false}";
    sl_buf messages, tools;
    sl_status status;
    sl_buf_init(&messages, SL_MEM_TEXT, TEXT_LIMIT);
    sl_buf_init(&tools, SL_MEM_TEXT, TEXT_LIMIT);
    SL_CHECK(sl_json_append(&messages, input->messages, err));
    if (input->tools)
        SL_CHECK(sl_json_append(&tools, input->tools, err));
    sl_chat chat = {
        .messages = text_of(&messages),
        .tools = text_of(&tools),
        .trust_content = input->trust_content,
        .now = (int64_t)time(NULL),
    };
    if (input->think >= 0)
        chat.variables = input->think ? (sl_str){think_on, sizeof think_on - 1}
                                      : (sl_str){think_off, sizeof think_off - 1};
    SL_CHECK(sl_engine_render(engine, &chat, ids, NULL, err));
    if (marks)
        SL_CHECK(
            sl_engine_prompt_marks(engine, &chat, ids->ids, ids->n, marks->items, &marks->n, err));
done:
    sl_buf_free(&messages);
    sl_buf_free(&tools);
    return status;
}
