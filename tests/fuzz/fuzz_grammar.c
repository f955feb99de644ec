/* GBNF: what was taken must let a text be written by its masks, and read again in single bytes. */
#include "fuzz.h"

#include "grammar/machine.h"

enum { MAX_STEPS = 24, STOP = 256, N_TOKENS = 260 };

static sl_constraint_vocab *make_vocab(void)
{
    static char bytes[256];
    static const char *const more[] = {"ab", "\"}", "\n "};
    sl_vocab_token tokens[N_TOKENS] = {0};
    const int32_t stop = STOP;
    sl_constraint_vocab *vocab = NULL;
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i].bytes = (sl_str){&bytes[i], 1};
    }
    for (size_t i = 0; i < 3; i++)
        tokens[257 + i].bytes = sl_str_of(more[i]);
    sl_vocab_create(tokens, N_TOKENS, &stop, 1, &vocab, NULL);
    return vocab;
}

/* The n-th of the tokens that may come, counted around; -1: none may. */
static int32_t pick(const uint32_t *mask, unsigned n)
{
    for (unsigned i = 0; i < N_TOKENS; i++) {
        const unsigned id = (n + i) % N_TOKENS;
        if (mask[id / 32] >> (id % 32) & 1)
            return (int32_t)id;
    }
    return -1;
}

static void walk(const sl_grammar *grammar, const sl_constraint_vocab *vocab, const char *data,
                 size_t n)
{
    sl_error err = {0};
    sl_constraint *constraint = NULL, *fork = NULL;
    if (!sl_fuzz_ok(sl_constraint_create(grammar, vocab, &constraint, &err), &err))
        return;
    for (size_t i = 0; i < MAX_STEPS; i++) {
        const uint32_t *mask;
        if (!sl_fuzz_ok(sl_constraint_allowed(constraint, &mask, &err), &err))
            break;
        const int32_t token = pick(mask, n > 0 ? 31u * (unsigned char)data[i % n] : 0);
        sl_fuzz_check(token >= 0); /* never a dead end */
        if (token == STOP)
            sl_fuzz_check(sl_constraint_may_end(constraint));
        const sl_status status = sl_constraint_accept(constraint, token, &err);
        sl_fuzz_check(status == SL_OK || status == SL_ERR_LIMIT || status == SL_ERR_MEMORY);
        if (status != SL_OK || token == STOP)
            break;
    }
    if (sl_fuzz_ok(sl_constraint_fork(constraint, &fork, &err), &err))
        sl_fuzz_check(sl_constraint_equal(constraint, fork));
    sl_constraint_free(fork);
    sl_constraint_free(constraint);
}

static void body(const uint8_t *data, size_t n)
{
    sl_error err = {0};
    sl_grammar *grammar = NULL;
    char *text = sl_fuzz_copy(data, n);
    sl_constraint_vocab *vocab = make_vocab();
    if (text && vocab && sl_fuzz_ok(sl_grammar_from_gbnf((sl_str){text, n}, &grammar, &err), &err))
        walk(grammar, vocab, text, n);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(vocab);
    sl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return n > 4096 ? 0 : sl_fuzz_run(body, data, n);
}
