/* The tokens at which loop breaking ends: what separates the parts of a text, and what dialogues
 * are framed with. They may come again and again. */
#ifndef SL_ENGINE_BREAKERS_H
#define SL_ENGINE_BREAKERS_H

#include "text/tokenizer.h"

/* "\n", ":", "\"" and "*". */
extern const sl_str sl_default_breakers[];
enum { SL_N_DEFAULT_BREAKERS = 4 };

#endif
