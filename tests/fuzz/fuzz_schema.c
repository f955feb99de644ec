/* JSON schemas: what was taken must let a text be written by its masks that is JSON when it ends.
 */
#include "fuzz.h"

#include "grammar/machine.h"

enum { MAX_STEPS = 200, STOP = 256, N_TOKENS = 257 };

static sl_constraint_vocab *make_vocab(void)
{
    static char bytes[256];
    sl_vocab_token tokens[N_TOKENS] = {0};
    const int32_t stop = STOP;
    sl_constraint_vocab *vocab = NULL;
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i].bytes = (sl_str){&bytes[i], 1};
    }
    sl_vocab_create(tokens, N_TOKENS, &stop, 1, &vocab, NULL);
    return vocab;
}

/* The end before anything else, closing before going on. */
static int32_t pick(const uint32_t *mask, unsigned n)
{
    static const char first[] = "\"}]";
    if (mask[STOP / 32] >> (STOP % 32) & 1)
        return STOP;
    for (unsigned i = 0; i < 3; i++) {
        const unsigned byte = (unsigned char)first[(n + i) % 3];
        if (mask[byte / 32] >> (byte % 32) & 1)
            return (int32_t)byte;
    }
    for (unsigned i = 0; i < 256; i++) {
        const unsigned byte = (n + i) % 256;
        if (mask[byte / 32] >> (byte % 32) & 1)
            return (int32_t)byte;
    }
    return -1;
}

static void check_json(const sl_buf *text)
{
    json_error_t why;
    json_t *value = json_loadb(text->data, text->n_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    /* Numbers beyond 64 bits and NUL in keys are JSON, if not to this reader. */
    sl_fuzz_check(value || strstr(why.text, "big") || strstr(why.text, "NUL") ||
                  strstr(why.text, "overflow") || strstr(why.text, "depth"));
    json_decref(value);
}

static void walk(const sl_grammar *grammar, const sl_constraint_vocab *vocab, const char *data,
                 size_t n)
{
    sl_error err = {0};
    sl_constraint *constraint = NULL;
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, 1 << 16);
    if (!sl_fuzz_ok(sl_constraint_create(grammar, vocab, &constraint, &err), &err))
        return;
    for (size_t i = 0; i < MAX_STEPS; i++) {
        const uint32_t *mask;
        if (!sl_fuzz_ok(sl_constraint_allowed(constraint, &mask, &err), &err))
            break;
        const int32_t token = pick(mask, n > 0 ? (unsigned char)data[i % n] : 0);
        sl_fuzz_check(token >= 0); /* never a dead end */
        if (token == STOP) {
            check_json(&text);
            break;
        }
        if (!sl_fuzz_ok(sl_constraint_accept(constraint, token, &err), &err) ||
            !sl_fuzz_ok(sl_buf_append_char(&text, (char)token, &err), &err))
            break;
    }
    sl_buf_free(&text);
    sl_constraint_free(constraint);
}

static void body(const uint8_t *data, size_t n)
{
    sl_error err = {0};
    sl_grammar *grammar = NULL;
    char *text = sl_fuzz_copy(data, n);
    sl_constraint_vocab *vocab = make_vocab();
    if (text && vocab &&
        sl_fuzz_ok(sl_grammar_from_json_schema((sl_str){text, n}, &grammar, &err), &err))
        walk(grammar, vocab, text, n);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(vocab);
    sl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return n > 4096 ? 0 : sl_fuzz_run(body, data, n);
}
