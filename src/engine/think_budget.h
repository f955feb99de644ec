/* A limit on thinking: after so many thinking tokens of a turn the thinking is brought to its end,
 * at the next line break, or at the latest after some tokens of grace. The end is written by
 * forcing tokens: the model never sees its thought cut off inside a word, and reads the same close
 * of thinking that it would have written.
 *
 * The limit is one for the turn. A second block of thinking goes on counting where the first ended,
 * so that a turn has at most budget + grace thinking tokens, besides forced line breaks.
 *
 *   sl_think_budget_begin         after the prompt
 *   before every token:           sl_think_budget_forced says what must come, for
 *                                 sl_sample_context.forced
 *   after every token:            sl_think_budget_push
 *
 * The budget is plain data and a function of the tokens pushed alone: copy it to fork a sequence or
 * to keep it with a saved one, and with speculation push the tokens that were accepted. */
#ifndef SL_ENGINE_THINK_BUDGET_H
#define SL_ENGINE_THINK_BUDGET_H

#include "base/str.h"
#include "text/tokenizer.h"

enum { SL_THINK_DEFAULT_GRACE = 64, SL_THINK_MAX_END = 16 };

/* The same for all turns of a model and request. */
typedef struct sl_think_rules {
    uint32_t budget;               /* thinking tokens of a turn */
    uint32_t grace;                /* more tokens to wait for a line break */
    int32_t open_id, close_id;     /* <think> and </think> */
    int32_t end[SL_THINK_MAX_END]; /* what is forced: the tokens of "\n</think>\n\n" */
    size_t n_end;
    size_t n_line; /* the first n_line of them break the line; left out where a line just ended */
} sl_think_rules;

/* SL_ERR_ARGUMENT unless `end` has 1 to SL_THINK_MAX_END tokens with close_id once among them, not
 * among the first n_line, and open_id never. */
sl_status sl_think_rules_check(const sl_think_rules *rules, sl_error *err);

/* The rules for a model's tokens. SL_ERR_UNSUPPORTED when its vocabulary has no <think> and
 * </think>. */
sl_status sl_think_rules_create(const sl_tokenizer *tokenizer, uint32_t budget, uint32_t grace,
                                sl_think_rules *out, sl_error *err);

typedef struct sl_think_budget {
    bool thinking;       /* the next token is one of thinking, or ends it */
    bool line_ended;     /* the text so far ends with a line break */
    uint32_t n_thinking; /* thinking tokens of the turn, without the tags */
    uint32_t n_grace;    /* those of them that came after the budget was used up */
    uint32_t next_end;   /* while forcing: index into end, plus 1; else 0 */
    uint32_t n_forced;   /* tokens that were forced in this turn */
} sl_think_budget;

/* thinking: the prompt ends inside of a block. prompt_end: the last bytes of the prompt. */
sl_think_budget sl_think_budget_begin(const sl_think_rules *rules, bool thinking,
                                      sl_str prompt_end);

/* The token that has to come next, or -1. */
int32_t sl_think_budget_forced(const sl_think_budget *budget, const sl_think_rules *rules);

/* Takes in a token and its bytes. A token other than the forced one ends the forcing; the rules
 * then apply as to any other. */
void sl_think_budget_push(sl_think_budget *budget, const sl_think_rules *rules, int32_t token,
                          sl_str bytes);

#endif
