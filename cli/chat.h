/* A conversation on a terminal: `sluice run MODEL` without a prompt. */
#ifndef SL_CLI_CHAT_H
#define SL_CLI_CHAT_H

#include "chat_branches.h"
#include "chat_settings.h"

enum { SL_CHAT_DEFAULT_CONTEXT = 16384 };

typedef struct sl_chat_session {
    sl_chat_engine engine;
    sl_settings settings;
    sl_branches branches;
    bool json;    /* answers are JSON, one line each */
    bool verbose; /* tells times after each answer */
    bool quit;
} sl_chat_session;

/* What a chat begins with; all is borrowed. */
typedef struct sl_chat_setup {
    sl_engine *engine;
    const sl_run_options *options;
    json_t *tools; /* or NULL */
} sl_chat_setup;

sl_status sl_chat_create(sl_chat_session *chat, const sl_chat_setup *setup, sl_error *err);
void sl_chat_free(sl_chat_session *chat);

/* Says text to the model ("user"), or gives the result of a tool ("tool"), and shows the answer.
 * What cannot be answered is taken back. Failures are told on standard error. */
void sl_chat_say(sl_chat_session *chat, const char *role, const char *text, size_t n);

/* Answers the last turn once more. */
void sl_chat_answer_again(sl_chat_session *chat);

/* Reads from the terminal until the user quits; returns an exit status. */
int sl_chat_run(const sl_chat_setup *setup);

#endif
