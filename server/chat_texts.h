/* A conversation as the JSON texts that are rendered. */
#ifndef SL_SERVER_CHAT_TEXTS_H
#define SL_SERVER_CHAT_TEXTS_H

#include "base/json.h"
#include "sluice.h"

typedef struct sl_chat_texts {
    sl_buf messages, tools, variables; /* empty: none */
} sl_chat_texts;

void sl_chat_texts_init(sl_chat_texts *texts);
void sl_chat_texts_free(sl_chat_texts *texts);

/* A value becomes one of the texts. */
sl_status sl_chat_text_put(sl_buf *text, const json_t *value, sl_error *err);

/* For sl_engine_render; borrows the texts. */
sl_chat sl_chat_of_texts(const sl_chat_texts *texts);

#endif
