/* The commands of a chat: lines that begin with a slash and a letter. */
#ifndef SL_CLI_CHAT_COMMANDS_H
#define SL_CLI_CHAT_COMMANDS_H

#include "chat.h"

bool sl_chat_is_command(const char *line);

/* Does what the line says; failures are told on standard error. */
void sl_chat_command(sl_chat_session *chat, const char *line);

#endif
