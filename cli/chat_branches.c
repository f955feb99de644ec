/* Owns the branches and their states. */
#include "chat_branches.h"

#include <stdio.h>
#include <string.h>

static void branch_free(sl_branch *branch)
{
    sl_talk_free(&branch->talk);
    sl_state_free(branch->state);
}

sl_status sl_branches_create(sl_branches *branches, const sl_chat_engine *engine, sl_error *err)
{
    *branches = (sl_branches){.n = 1};
    sl_branch *first = &branches->items[0];
    snprintf(first->name, sizeof first->name, "main");
    sl_status status = sl_talk_create(&first->talk, err);
    if (status == SL_OK)
        status = sl_state_create(engine->engine, engine->context, &first->state, err);
    if (status != SL_OK)
        sl_branches_free(branches);
    return status;
}

void sl_branches_free(sl_branches *branches)
{
    for (size_t i = 0; i < branches->n; i++)
        branch_free(&branches->items[i]);
    *branches = (sl_branches){0};
}

sl_branch *sl_branches_current(sl_branches *branches)
{
    return &branches->items[branches->current];
}

/* branches->n when there is none. */
static size_t find(const sl_branches *branches, const char *name)
{
    size_t i = 0;
    while (i < branches->n && strcmp(branches->items[i].name, name) != 0)
        i++;
    return i;
}

bool sl_branches_has(const sl_branches *branches, const char *name)
{
    return find(branches, name) < branches->n;
}

static sl_status check_name(const sl_branches *branches, const char *name, sl_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.";
    const size_t n = strlen(name);
    if (n == 0 || n > SL_MAX_BRANCH_NAME || strspn(name, letters) != n)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "'%s': the name of a branch is at most %d letters, digits, '_', '-' and '.'",
                       name, SL_MAX_BRANCH_NAME);
    if (sl_branches_has(branches, name))
        return sl_fail(err, SL_ERR_ARGUMENT, "there is a branch '%s' already", name);
    return SL_OK;
}

sl_status sl_branches_fork(sl_branches *branches, const char *name, sl_error *err)
{
    char number[16];
    for (unsigned i = 1; !name; i++) {
        snprintf(number, sizeof number, "%u", i);
        if (!sl_branches_has(branches, number))
            name = number;
    }
    SL_TRY(check_name(branches, name, err));
    if (branches->n == SL_MAX_BRANCHES)
        return sl_fail(err, SL_ERR_LIMIT, "there are %d branches already; /fork drop NAME",
                       SL_MAX_BRANCHES);
    const sl_branch *from = sl_branches_current(branches);
    sl_branch *to = &branches->items[branches->n];
    *to = (sl_branch){.last = from->last};
    snprintf(to->name, sizeof to->name, "%s", name);
    sl_status status = sl_talk_copy(&from->talk, &to->talk, err);
    if (status == SL_OK)
        status = sl_state_fork(from->state, &to->state, err);
    if (status != SL_OK) {
        branch_free(to);
        return status;
    }
    branches->current = branches->n++;
    return SL_OK;
}

static sl_status find_named(const sl_branches *branches, const char *name, size_t *i, sl_error *err)
{
    *i = find(branches, name);
    return *i < branches->n ? SL_OK
                            : sl_fail(err, SL_ERR_ARGUMENT, "there is no branch '%s'", name);
}

sl_status sl_branches_switch(sl_branches *branches, const char *name, sl_error *err)
{
    size_t i;
    SL_TRY(find_named(branches, name, &i, err));
    branches->current = i;
    return SL_OK;
}

sl_status sl_branches_drop(sl_branches *branches, const char *name, sl_error *err)
{
    size_t i;
    SL_TRY(find_named(branches, name, &i, err));
    if (i == branches->current)
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s' is the current branch", name);
    branch_free(&branches->items[i]);
    branches->n--;
    memmove(&branches->items[i], &branches->items[i + 1],
            (branches->n - i) * sizeof branches->items[0]);
    branches->current -= branches->current > i;
    return SL_OK;
}

sl_status sl_branches_list(const sl_branches *branches, sl_buf *out, sl_error *err)
{
    for (size_t i = 0; i < branches->n; i++) {
        const sl_branch *branch = &branches->items[i];
        const size_t n = sl_talk_turns(&branch->talk);
        SL_TRY(sl_buf_printf(out, err, "%c %s: %zu turn%s, %u tokens\n",
                             i == branches->current ? '*' : ' ', branch->name, n, n == 1 ? "" : "s",
                             sl_state_length(branch->state)));
    }
    return SL_OK;
}
