/* The limit on thinking of sluice.h. One limit for a turn: it has at most budget + grace thinking
 * tokens, besides forced line breaks, and the model never sees its thought cut off inside a
 * word. */
#ifndef SL_ENGINE_THINK_BUDGET_H
#define SL_ENGINE_THINK_BUDGET_H

#include "base/str.h"
#include "text/tokenizer.h"

/* SL_ERR_ARGUMENT unless `end` has 1 to SL_THINK_MAX_END tokens with close_id once among them, not
 * among the first n_line, and open_id never. */
sl_status sl_think_rules_check(const sl_think_rules *rules, sl_error *err);

#endif
