/* What the engine asks of a constraint beside the public calls. */
#ifndef SL_GRAMMAR_CONSTRAINT_H
#define SL_GRAMMAR_CONSTRAINT_H

#include "sluice.h"

/* The tokens that its masks have bits for. */
size_t sl_constraint_n_vocab(const sl_constraint *constraint);

/* Whether user-defined tokens (<tool_call>) may stand for their text: its texts are calls. */
bool sl_constraint_is_calls(const sl_constraint *constraint);

#endif
