/* Text to tokens. Byte 0 holds the settings, byte 1 the number of untrusted ranges, then come a gap
 * and a length for each, then the text. Tokens joined must give the text, and no added token may
 * come from an untrusted byte. */
#include "base/utf8.h"
#include "fuzz.h"
#include "text/tokenizer.h"

enum { MAX_RANGES = 16, N_ADDED = 7, N_MERGED = 6, N_TOKENS = 256 + N_MERGED + N_ADDED };

/* As in GPT-2: bytes that do not print get characters from U+0100 on. */
static void spell_bytes(char alphabet[256][4], sl_str *tokens)
{
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        const bool prints = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        tokens[byte] =
            (sl_str){alphabet[byte], sl_utf8_encode(prints ? byte : next++, alphabet[byte])};
    }
}

static sl_status make_tokenizer(bool nfc, sl_pretok_rule rule, sl_tokenizer **out, sl_error *err)
{
    static const char *const merged[N_MERGED] = {"ab",
                                                 "abc",
                                                 "aa",
                                                 "aaaa",
                                                 "\xC4\xA0"
                                                 "a",
                                                 "bc"};
    static const char *const merges[] = {"b c", "a b", "a bc", "a a", "aa aa", "\xC4\xA0 a"};
    static const char *const added[N_ADDED] = {"<|a|>", "<|a|>b", "<t>", "</t>", "|>", "ab<", "  "};
    char alphabet[256][4];
    sl_str tokens[N_TOKENS], merge_texts[SL_COUNTOF(merges)];
    sl_token_kind kinds[N_TOKENS];
    spell_bytes(alphabet, tokens);
    for (size_t i = 0; i < N_TOKENS; i++)
        kinds[i] = SL_TOKEN_NORMAL;
    for (size_t i = 0; i < N_MERGED; i++)
        tokens[256 + i] = sl_str_of(merged[i]);
    for (size_t i = 0; i < N_ADDED; i++) {
        tokens[256 + N_MERGED + i] = sl_str_of(added[i]);
        kinds[256 + N_MERGED + i] = i % 2 == 0 ? SL_TOKEN_CONTROL : SL_TOKEN_USER_DEFINED;
    }
    for (size_t i = 0; i < SL_COUNTOF(merges); i++)
        merge_texts[i] = sl_str_of(merges[i]);
    const sl_tokenizer_spec spec = {
        .n_tokens = N_TOKENS,
        .tokens = tokens,
        .kinds = kinds,
        .n_merges = SL_COUNTOF(merges),
        .merges = merge_texts,
        .pretok = rule,
        .nfc = nfc,
    };
    return sl_tokenizer_create(&spec, out, err);
}

/* Made at the first call and kept. */
static const sl_tokenizer *tokenizer_of(bool nfc, sl_pretok_rule rule)
{
    static sl_tokenizer *made[4];
    sl_tokenizer **tokenizer = &made[2 * nfc + (rule == SL_PRETOK_QWEN2)];
    sl_error err;
    if (!*tokenizer)
        sl_fuzz_check(make_tokenizer(nfc, rule, tokenizer, &err) == SL_OK);
    return *tokenizer;
}

static bool touches(const sl_encode_options *options, size_t begin, size_t end)
{
    for (size_t i = 0; i < options->n_untrusted; i++) {
        if (begin < options->untrusted[i].end && options->untrusted[i].begin < end)
            return true;
    }
    return false;
}

static void check_ids(const sl_tokenizer *tokenizer, const sl_encode_options *options,
                      const sl_ids *ids, sl_str text)
{
    size_t pos = 0;
    for (size_t i = 0; i < ids->n; i++) {
        const sl_token_kind kind = sl_tokenizer_kind(tokenizer, ids->ids[i]);
        const sl_str bytes = sl_tokenizer_bytes(tokenizer, ids->ids[i]);
        sl_fuzz_check(bytes.n_bytes <= text.n_bytes - pos);
        sl_fuzz_check(memcmp(text.data + pos, bytes.data, bytes.n_bytes) == 0);
        sl_fuzz_check(kind == SL_TOKEN_NORMAL || !touches(options, pos, pos + bytes.n_bytes));
        sl_fuzz_check(options->control || kind != SL_TOKEN_CONTROL);
        sl_fuzz_check(options->user_defined || kind != SL_TOKEN_USER_DEFINED);
        pos += bytes.n_bytes;
    }
    sl_fuzz_check(pos == text.n_bytes);
}

static void body(const uint8_t *data, size_t n)
{
    sl_fuzz_input in = {data, n};
    const uint8_t settings = sl_fuzz_byte(&in);
    sl_range ranges[MAX_RANGES];
    size_t n_ranges = sl_fuzz_byte(&in) % (MAX_RANGES + 1), end = 0;
    for (size_t i = 0; i < n_ranges; i++) {
        ranges[i].begin = end + 1 + sl_fuzz_byte(&in);
        end = ranges[i].end = ranges[i].begin + sl_fuzz_byte(&in);
    }
    while (n_ranges > 0 && ranges[n_ranges - 1].end > in.n)
        n_ranges--;
    const sl_encode_options options = {
        .control = settings & 1,
        .user_defined = settings & 2,
        .untrusted = ranges,
        .n_untrusted = n_ranges,
    };
    const bool nfc = settings & 4;

    const sl_tokenizer *tokenizer =
        tokenizer_of(nfc, settings & 8 ? SL_PRETOK_QWEN2 : SL_PRETOK_QWEN35);
    sl_error err = {0};
    sl_ids ids = {0};
    size_t n_replaced;
    char *text = sl_fuzz_copy(in.data, in.n);
    if (text &&
        sl_fuzz_ok(sl_tokenizer_encode(tokenizer, text, in.n, &options, &ids, &n_replaced, &err),
                   &err)) {
        /* A range or token may cut a character, whose parts are then no characters. */
        sl_fuzz_check(n_replaced > 0 || n_ranges > 0 || sl_utf8_valid(text, in.n, NULL));
        if (n_replaced == 0 && !nfc)
            check_ids(tokenizer, &options, &ids, (sl_str){text, in.n});
    }
    sl_ids_free(&ids);
    sl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    for (int i = 0; i < 4; i++) /* not within the run: their allocations do not fail */
        tokenizer_of(i & 1, i & 2 ? SL_PRETOK_QWEN2 : SL_PRETOK_QWEN35);
    return sl_fuzz_run(body, data, n);
}
