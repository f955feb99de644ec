/* The named branches of a chat: each a conversation with its state. One is the current one. */
#ifndef SL_CLI_CHAT_BRANCHES_H
#define SL_CLI_CHAT_BRANCHES_H

#include "chat_engine.h"

enum { SL_MAX_BRANCHES = 16, SL_MAX_BRANCH_NAME = 32 };

typedef struct sl_branch {
    char name[SL_MAX_BRANCH_NAME + 1];
    sl_talk talk;
    sl_state *state;
    sl_chat_report last; /* turn */
} sl_branch;

typedef struct sl_branches {
    sl_branch items[SL_MAX_BRANCHES];
    size_t n, current;
} sl_branches;

/* One branch "main" with an empty conversation. */
sl_status sl_branches_create(sl_branches *branches, const sl_chat_engine *engine, sl_error *err);
void sl_branches_free(sl_branches *branches);

sl_branch *sl_branches_current(sl_branches *branches);
bool sl_branches_has(const sl_branches *branches, const char *name);

/* A new branch that goes on from the current one, which stays as it is; the new one is current
 * then. name NULL: the first number from 1 that is free. SL_ERR_ARGUMENT: no name for a branch or
 * taken; SL_ERR_LIMIT. */
sl_status sl_branches_fork(sl_branches *branches, const char *name, sl_error *err);

/* SL_ERR_ARGUMENT when there is no such branch, or it is the current one (drop). */
sl_status sl_branches_switch(sl_branches *branches, const char *name, sl_error *err);
sl_status sl_branches_drop(sl_branches *branches, const char *name, sl_error *err);

/* One line for each branch, a star before the current one. */
sl_status sl_branches_list(const sl_branches *branches, sl_buf *out, sl_error *err);

#endif
