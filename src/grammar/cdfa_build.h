/* What is shared by those who make automata over code points. */
#ifndef SL_GRAMMAR_CDFA_BUILD_H
#define SL_GRAMMAR_CDFA_BUILD_H

#include "base/mem.h"
#include "grammar/regex.h"

/* Sorts ranges and joins those that touch; how many remain. */
size_t sl_code_ranges_join(sl_code_range *ranges, size_t n);

/* The automaton from node `start`. anything_after: the text may go on as it likes behind the end.
 * *out is released on failure. Errors: SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_cdfa_determinise(const sl_nfa *nfa, uint32_t start, bool anything_after, sl_cdfa *out,
                              sl_error *err);

#endif
