/* The tokens at which loop breaking ends: what separates the parts of a text, and what dialogues
 * are framed with. They may come again and again. */
#ifndef SL_ENGINE_BREAKERS_H
#define SL_ENGINE_BREAKERS_H

#include "text/tokenizer.h"

/* "\n", ":", "\"" and "*". */
extern const sl_str sl_default_breakers[];
enum { SL_N_DEFAULT_BREAKERS = 4 };

/* A set of tokens for sl_sampler_set_breakers: those whose bytes contain one of the texts, and all
 * control and user-defined tokens. n_vocab: ids it has bits for. sl_free it; NULL when memory is
 * short. */
uint32_t *sl_breakers_create(const sl_tokenizer *tokenizer, const sl_str *texts, size_t n,
                             size_t n_vocab);

#endif
