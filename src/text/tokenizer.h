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

/* Half-open byte range of a text. Ranges in a list are ascending and do not touch. */
typedef struct sl_range {
    size_t begin, end;
} sl_range;

typedef enum sl_token_kind {
    SL_TOKEN_NORMAL,
    SL_TOKEN_CONTROL,      /* <|im_start|>: matched in trusted text only, hidden in answers */
    SL_TOKEN_USER_DEFINED, /* <think>, <tool_call>: matched in trusted text, shown */
    SL_TOKEN_UNUSED,       /* padding rows of the embedding; never produced, never emitted */
    SL_TOKEN_INVALID       /* a kind this family does not have: sl_tokenizer_create refuses it */
} sl_token_kind;

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

typedef struct sl_tokenizer sl_tokenizer;

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

size_t sl_tokenizer_count(const sl_tokenizer *tokenizer);
sl_token_kind sl_tokenizer_kind(const sl_tokenizer *tokenizer, int32_t id);

/* The id whose text is exactly `text` (an added token or one in the byte alphabet), or -1. */
int32_t sl_tokenizer_find(const sl_tokenizer *tokenizer, const char *text);

/* The bytes a token stands for; empty for unused or out-of-range ids. */
sl_str sl_tokenizer_bytes(const sl_tokenizer *tokenizer, int32_t id);

/* A growing list of ids. Zero-initialise; release with sl_ids_free. */
typedef struct sl_ids {
    int32_t *ids;
    size_t n, capacity;
} sl_ids;
sl_status sl_ids_push(sl_ids *ids, int32_t id, sl_error *err);
void sl_ids_free(sl_ids *ids);

typedef struct sl_encode_options {
    bool control;      /* match control tokens outside untrusted ranges */
    bool user_defined; /* match user-defined tokens outside untrusted ranges */
    const sl_range *untrusted;
    size_t n_untrusted;
} sl_encode_options;

#define SL_TOKENIZER_MAX_TEXT ((size_t)1 << 30)

/* Appends the ids of text[0..n). Added tokens are found leftmost first, the longest of those that
 * begin at one place; one that is not wanted or touches an untrusted byte is as if it did not
 * exist. Invalid UTF-8 is read as U+FFFD; *n_replaced (may be NULL) counts the replacements.
 * options NULL: no added tokens. Uses a bounded stack and time in proportion to n log n whatever
 * the text. Errors: SL_ERR_ARGUMENT for ranges, SL_ERR_LIMIT for more than SL_TOKENIZER_MAX_TEXT
 * bytes, SL_ERR_MEMORY; *ids is as before then. */
sl_status sl_tokenizer_encode(const sl_tokenizer *tokenizer, const char *text, size_t n,
                              const sl_encode_options *options, sl_ids *ids, size_t *n_replaced,
                              sl_error *err);

#endif
