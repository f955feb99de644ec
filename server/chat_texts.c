#include "chat_texts.h"

enum { MAX_TEXT = 1 << 26 };

void sl_chat_texts_init(sl_chat_texts *texts)
{
    sl_buf_init(&texts->messages, SL_MEM_TEXT, MAX_TEXT);
    sl_buf_init(&texts->tools, SL_MEM_TEXT, MAX_TEXT);
    sl_buf_init(&texts->variables, SL_MEM_TEXT, MAX_TEXT);
}

void sl_chat_texts_free(sl_chat_texts *texts)
{
    sl_buf_free(&texts->messages);
    sl_buf_free(&texts->tools);
    sl_buf_free(&texts->variables);
}

sl_status sl_chat_text_put(sl_buf *text, const json_t *value, sl_error *err)
{
    sl_buf_clear(text);
    return sl_json_append(text, value, err);
}

sl_chat sl_chat_of_texts(const sl_chat_texts *texts)
{
    return (sl_chat){
        .messages = {texts->messages.data, texts->messages.n_bytes},
        .tools = {texts->tools.data, texts->tools.n_bytes},
        .variables = {texts->variables.data, texts->variables.n_bytes},
    };
}
