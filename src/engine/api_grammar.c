/* Structured output that knows a model: the vocabulary for its logits and stop tokens. */
#include "engine/engine_internal.h"

enum { MAX_STOPS = 64 };

sl_status sl_engine_constraint_vocab(sl_engine *engine, const sl_constraint_vocab **out,
                                     sl_error *err)
{
    const sl_tokenizer *tokenizer;
    *out = engine->constraint_vocab;
    if (*out)
        return SL_OK;
    SL_TRY(sl_engine_tokenizer(engine, &tokenizer, err));
    int32_t stops[MAX_STOPS];
    size_t n_stops = 0;
    for (int32_t id = 0; (uint32_t)id < engine->config.vocab && n_stops < MAX_STOPS; id++) {
        if (sl_engine_is_stop(engine, id))
            stops[n_stops++] = id;
    }
    SL_TRY(sl_constraint_vocab_create(tokenizer, engine->config.vocab, stops, n_stops,
                                      &engine->constraint_vocab, err));
    *out = engine->constraint_vocab;
    return SL_OK;
}
