/* Byte-level BPE: text to token ids and back, in time linear in the text.
 *
 * Added tokens (control and user-defined) are cut out of the text first, the rest is normalised to
 * NFC, split by the model family's rule (text/pretok.h) and merged. Text that came from a user
 * never becomes an added token: callers mark it (sl_range), and inside a marked range "<|im_end|>"
 * is ten ordinary characters. A tokenizer never changes: any number of threads may use it. */
#ifndef SL_TEXT_TOKENIZER_H
#define SL_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

/* The kind of a value of GGUF's tokenizer.ggml.token_type: 1 normal, 3 control, 4 user-defined,
 * 5 unused. Others (2 unknown, 6 byte: both of SentencePiece vocabularies) are SL_TOKEN_INVALID.
 * The file decides what is matched: llama.cpp treats <|fim_*|>, <|repo_name|> and <|file_sep|> as
 * control tokens whatever their type; here they are what the file says, user-defined. */
sl_token_kind sl_token_kind_from_gguf(int type);

typedef enum sl_pretok_rule {
    SL_PRETOK_QWEN35, /* combining marks stay with their letters */
    SL_PRETOK_QWEN2
} sl_pretok_rule;

/* Everything a tokenizer is made of, from any container. All pointers are borrowed during
 * sl_tokenizer_create only. Token texts are in the byte-to-unicode alphabet of GPT-2 for normal
 * tokens and plain UTF-8 for the other kinds; those of unused tokens are not read. Every byte must
 * have a normal token, and merges join normal tokens to normal tokens: so an added token can come
 * from nothing but its own text in a trusted place. */
typedef struct sl_tokenizer_spec {
    size_t n_tokens;
    const sl_str *tokens;
    const sl_token_kind *kinds;
    size_t n_merges;
    const sl_str *merges; /* "left right", by rank */
    sl_pretok_rule pretok;
    bool nfc;
} sl_tokenizer_spec;

/* Errors: SL_ERR_FORMAT naming the token or merge, SL_ERR_UNSUPPORTED, SL_ERR_MEMORY. */
sl_status sl_tokenizer_create(const sl_tokenizer_spec *spec, sl_tokenizer **out, sl_error *err);

/* From a parsed Hugging Face tokenizer.json (type BPE, ByteLevel, the qwen2 or qwen35 split
 * pattern, NFC or no normaliser). n_vocab is the number of rows of the model's embedding: ids the
 * file does not name are unused. extra_added is the added_tokens_decoder object of
 * tokenizer_config.json or NULL. Anything else in the pipeline is SL_ERR_UNSUPPORTED by name. */
sl_status sl_tokenizer_create_json(const json_t *tokenizer_json, const json_t *extra_added,
                                   size_t n_vocab, const char *name, sl_tokenizer **out,
                                   sl_error *err);
void sl_tokenizer_free(sl_tokenizer *tokenizer);

#endif
