/* sluice: inference for the Qwen3.5 / 3.6 / 3.8 hybrid models (gated DeltaNet + gated attention).
 *
 * The public header. There is no other one, and the program `sluice` uses nothing else.
 *
 * WHAT THERE IS
 *   engine    one loaded model: its weights, its text side (tokenizer, chat template), its threads
 *             and the memory in which checkpoints of sequences are kept.
 *   state     one sequence as a value: everything the model remembers of its tokens. It can be
 *             forked, taken back, kept, saved and brought to other tokens, always exactly.
 *   batch     sl_engine_eval appends tokens to any number of states in one go and gives logits.
 *   sampler   chooses a token from logits: a function of logits, settings, history, seed and
 *             position, of nothing else.
 *   parser    takes the text of an answer apart into thinking, content and tool calls.
 * sl_generate puts these together into one answer to one prompt; sl_engine_step takes any number of
 * such answers a step further together.
 *
 * LIFE CYCLE
 *   sl_engine_open -> sl_engine_render (messages) or sl_tokenizer_encode (text) -> sl_state_create
 *   -> sl_generate, or sl_engine_eval and sl_state_sample in turn -> sl_state_free
 *   -> sl_engine_close, after everything that was made from the engine.
 *
 * THE CONTRACT
 *   The logits of a position are a function of the tokens up to it, the model file and the number
 *   format of the attention cache: the same bits whatever the batch, the neighbours, the pieces of
 *   a prompt, the threads, and whether a state was forked, taken back, restored or loaded.
 *
 * THREADS
 *   One thread at a time may be inside of an engine or of anything made from it (states, samplers).
 *   Different engines are independent of each other. Decoders, filters, parsers, budgets and lists
 *   of ids belong to whoever uses them, one thread at a time. Safe at any time from any thread:
 *   everything on a const sl_tokenizer; sl_engine_tokenizer, sl_engine_is_stop, sl_engine_render,
 *   sl_engine_model_info and the other calls that take a const sl_engine; what needs no object
 *   (versions, names, defaults, memory statistics, sl_free). Callbacks come on the calling thread
 *   and may make only calls that are safe at any time.
 *   A process forked after an engine was opened has none of its threads: evaluating there is
 *   refused, and closing does nothing. Fork first, or open an engine in the child.
 *
 * OWNERSHIP
 *   What a function writes to `out` is the caller's, to be released with the _free or _close named
 *   beside it; memory without such a function (char *, uint32_t *) with sl_free. Everything else
 *   that a function returns or shows to a callback is borrowed: strings of an engine live as long
 *   as the engine, the text a decoder or filter returns until its next call, what a callback sees
 *   until it returns. Nothing passed in is kept unless its comment says so. Releasing NULL is
 *   allowed.
 *
 * ERRORS
 *   Functions that can fail return an sl_status and take an sl_error (or NULL), which receives one
 *   sentence: what was wrong, with file, tensor, field and offset where they apply. After a failure
 *   *out is not to be used. The library never exits, aborts, prints or reads the environment.
 *
 * STRUCTS
 *   Begin with the _default() function or with all members 0. Reserved members must be 0 and are
 *   refused otherwise, so that they can get a meaning later.
 *
 * The calls compute in their own floating-point environment (round to nearest, denormals on) and
 * leave the caller's as it was. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SL_VERSION_MAJOR 0
#define SL_VERSION_MINOR 1
#define SL_VERSION_PATCH 0
#define SL_ABI_VERSION   0 /* the number in the library's SONAME */

/* "0.1.0": of the library that is running, not of the header. */
const char *sl_version(void);

/* ---- status and error ---- */

/* What kind of thing went wrong. The sentence in sl_error says what exactly. */
typedef enum sl_status {
    SL_OK = 0,
    SL_ERR_MEMORY,      /* an allocation failed */
    SL_ERR_IO,          /* the operating system refused a file operation, or a file shrank */
    SL_ERR_FORMAT,      /* a file is malformed or contradicts itself */
    SL_ERR_UNSUPPORTED, /* a well-formed file or request that this version does not handle */
    SL_ERR_ARGUMENT,    /* a caller's argument is out of range */
    SL_ERR_LIMIT,       /* a size, depth or step limit was reached */
    SL_ERR_CONTEXT,     /* the sequence would grow past its context length */
    SL_ERR_NUMERIC,     /* a value that must be finite is not */
    SL_ERR_CANCELLED    /* the caller asked to stop */
} sl_status;

enum { SL_ERROR_MESSAGE_BYTES = 512 };

typedef struct sl_error {
    sl_status status;
    char message[SL_ERROR_MESSAGE_BYTES]; /* UTF-8, NUL-terminated; a long one lacks its middle */
} sl_error;

/* "memory", "io", "format", ...: a stable lower-case word for a status. */
const char *sl_status_name(sl_status status);

/* ---- text and memory ---- */

/* A borrowed piece of text: not NUL-terminated, may hold any bytes. */
typedef struct sl_str {
    const char *data;
    size_t n_bytes;
} sl_str;

/* Half-open byte range of a text. Ranges in a list are ascending and do not touch. */
typedef struct sl_range {
    size_t begin, end;
} sl_range;

void sl_free(void *p);

/* What the library's memory is used for. */
typedef enum sl_mem_tag {
    SL_MEM_GENERAL, /* handles, names, small tables */
    SL_MEM_TEXT,    /* tokenizer tables, templates, text being built */
    SL_MEM_FORMAT,  /* parsed headers of model files */
    SL_MEM_WEIGHTS, /* weights held outside mapped files */
    SL_MEM_STATE,   /* states of sequences and checkpoints: borders, tapes, KV, conv rows */
    SL_MEM_SCRATCH, /* arenas of plans */
    SL_MEM_TAG_COUNT,
    SL_MEM_TAG_ROOM = 16 /* tags that sl_mem_stats has room for */
} sl_mem_tag;
const char *sl_mem_tag_name(sl_mem_tag tag);

typedef struct sl_mem_stats {
    size_t bytes[SL_MEM_TAG_ROOM]; /* live bytes by purpose, of the whole process */
    size_t blocks;                 /* live blocks */
    uint64_t requests;             /* allocation requests since the process started */
} sl_mem_stats;
sl_mem_stats sl_mem_get_stats(void);

/* Messages for people that are not results. Silent by default. */
typedef enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARNING, SL_LOG_INFO, SL_LOG_DEBUG } sl_log_level;
typedef void (*sl_log_callback)(void *context, sl_log_level level, const char *message);

/* One callback for the process; NULL = silent. Set it before other threads use the library. */
void sl_log_set_callback(sl_log_callback callback, void *context, sl_log_level most_verbose);

/* ---- engine ---- */

typedef struct sl_engine sl_engine;

/* How much of a model is opened. */
typedef enum sl_open_level {
    SL_OPEN_ALL,    /* everything */
    SL_OPEN_TEXT,   /* tokenizer and chat template, no weights: no states can be made */
    SL_OPEN_HEADERS /* what sl_engine_model_info, _info_json and _memory_plan need */
} sl_open_level;

typedef struct sl_engine_params {
    unsigned n_threads;     /* 0 = one per physical core this process may use */
    uint32_t max_rows;      /* rows of one run: the size of a prefill piece; 0 = 256 on a CPU, 4,096
                             * on a CUDA device */
    bool kv_f32;            /* attention cache in float32 instead of float16: other bits */
    uint32_t rewind_window; /* tokens that can be taken back without recomputing, at most a chunk */
    size_t checkpoint_budget;    /* bytes that all checkpoints together may hold; 0 = none */
    uint32_t checkpoint_spacing; /* a regular checkpoint every so many tokens, where a run ends; 0 =
                                  * 512 on a CPU, 4,096 on a CUDA device */
    sl_open_level level;
    const char *isa; /* instruction-set level of the CPU kernels: scalar, avx2, avx512, avx512vnni,
                      * amx, neon; NULL = the best one. Speed only: the bits are the same */
    const char
        *device; /* "cpu" (also NULL), "cuda:0", or "auto": the first CUDA device, else the CPU */
    bool gdn_serial; /* experimental, for measuring only: gated delta layers by the token-serial
                      * rule, on the CPU. Other bits, which may depend on isa; no checkpoints and
                      * no state files, and a rewind evaluates from the start */
    uint64_t reserved[3];
} sl_engine_params;

sl_engine_params sl_engine_params_default(void); /* 0 but a window of 16 and 256 MiB */

/* path: a GGUF file (of a split one, the first part) or a Hugging Face folder. params may be NULL.
 * Errors: SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_UNSUPPORTED (another architecture, a type that is not
 * known), SL_ERR_ARGUMENT (params), SL_ERR_MEMORY. A tokenizer that cannot be used is no error
 * here: see sl_engine_tokenizer. */
sl_status sl_engine_open(const char *path, const sl_engine_params *params, sl_engine **out,
                         sl_error *err);
void sl_engine_close(sl_engine *engine);

uint32_t sl_engine_vocab(const sl_engine *engine); /* logits of one position */

/* Strings are the engine's. */
typedef struct sl_model_info {
    const char *path, *container; /* "gguf" or "safetensors" */
    const char *arch;             /* "qwen35", as in GGUF files */
    const char *name;             /* the model's own name; "" when the file has none */
    const char *main_type;        /* the element type that holds most of the bytes: "Q8_0" */
    uint64_t n_parameters, n_weight_bytes;
    uint32_t n_layers, n_gdn_layers, n_attention_layers;
    uint32_t hidden, vocab, context_length;
    uint32_t n_heads, n_kv_heads, head_dim;  /* attention */
    uint32_t gdn_key_heads, gdn_value_heads; /* gated delta layers */
    uint32_t gdn_dim;                        /* of keys and values */
    uint32_t ffn;                            /* 0 for mixtures of experts */
    uint32_t n_experts, n_experts_used;      /* 0 for dense models */
    bool has_draft_head; /* a multi-token prediction block; without weights: as announced */
    bool has_tokenizer, has_template;
    bool
        value_heads_tiled; /* value head h goes with key head h mod gdn_key_heads, else h / ratio */
    bool kv_f32;
    unsigned n_threads; /* as resolved; 0 without weights */
    const char *isa;    /* as resolved; "" without weights; "cuda" on a CUDA device */
    uint32_t max_rows;
    const char *device; /* "cpu", "cuda:0"; "" without weights */
    uint64_t reserved[7];
} sl_model_info;
void sl_engine_model_info(const sl_engine *engine, sl_model_info *out);

/* Bytes by part, of the device that computes. Of the weights only vectors are read; nothing large
 * is allocated. What of the file was rearranged is not kept in memory besides: once a model is
 * open, its weights take weights_mapped + weights_owned + weights_packed. */
typedef struct sl_memory_plan {
    size_t weights;        /* all tensors, as they lie in the file */
    size_t weights_owned;  /* vectors and converted matrices held outside the file, about */
    size_t state_fixed;    /* borders, tapes, conv rows of one state */
    size_t state_context;  /* KV of one state at the given context length */
    size_t scratch;        /* arenas of the plans, buffers of a device for one sequence */
    size_t weights_mapped; /* matrices that are read where they lie in the file */
    size_t weights_packed; /* matrices rearranged for the kernels of the device and level */
    uint64_t reserved[1];
} sl_memory_plan;

/* Errors: SL_ERR_FORMAT, SL_ERR_UNSUPPORTED (tensors that do not fit the configuration),
 * SL_ERR_ARGUMENT (no such instruction-set level here). */
sl_status sl_engine_memory_plan(const sl_engine *engine, uint32_t context, sl_memory_plan *out,
                                sl_error *err);

enum { SL_INFO_TENSORS = 1 /* every tensor, not the sums by type alone */ };

/* What is in the file and what running it takes, as a JSON object: path, container, architecture,
 * parameters, config, metadata, types, tensors, context, memory. flags: SL_INFO_... or 0. Errors:
 * those of sl_engine_memory_plan. */
sl_status sl_engine_info_json(const sl_engine *engine, uint32_t context, unsigned flags,
                              char **json, size_t *n_bytes, sl_error *err);

/* 128 bits that tell model files apart: over hyper-parameters, tensor names, types, shapes and
 * samples of every tensor. Computed once, on the first call. SL_ERR_IO when the file was lost. */
enum { SL_FINGERPRINT_BYTES = 16 };
sl_status sl_engine_fingerprint(sl_engine *engine, uint8_t out[SL_FINGERPRINT_BYTES],
                                sl_error *err);

/* Checkpoints held now and their bytes. */
typedef struct sl_checkpoint_stats {
    size_t n_checkpoints, bytes, budget;
} sl_checkpoint_stats;
sl_checkpoint_stats sl_engine_checkpoint_stats(const sl_engine *engine);

/* ---- tokens ---- */

typedef enum sl_token_kind {
    SL_TOKEN_NORMAL,
    SL_TOKEN_CONTROL,      /* <|im_start|>: matched in trusted text only, hidden in answers */
    SL_TOKEN_USER_DEFINED, /* <think>, <tool_call>: matched in trusted text, shown */
    SL_TOKEN_UNUSED,       /* padding rows of the embedding; never produced, never emitted */
    SL_TOKEN_INVALID       /* a kind this family does not have */
} sl_token_kind;

/* Byte-level BPE. Never changes: any number of threads may use it. */
typedef struct sl_tokenizer sl_tokenizer;

/* *out is borrowed from the engine. Fails with the reason why the model's tokenizer cannot be
 * used, SL_ERR_FORMAT or SL_ERR_UNSUPPORTED. */
sl_status sl_engine_tokenizer(const sl_engine *engine, const sl_tokenizer **out, sl_error *err);

/* Tokens that end an answer: the file's end tokens and <|im_end|>, <|endoftext|> where they exist.
 */
bool sl_engine_is_stop(const sl_engine *engine, int32_t token);

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

/* Text that came from a user never becomes an added token: mark it untrusted, and inside the
 * marked range "<|im_end|>" is ten ordinary characters. */
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

/* ---- chat messages to tokens ---- */

/* Texts are JSON. An empty `tools` means none, as when no tools are passed. */
typedef struct sl_chat {
    sl_str messages;    /* array of {"role", "content", ...}, OpenAI form */
    sl_str tools;       /* array of tools, OpenAI form */
    sl_str variables;   /* object of further template variables: {"enable_thinking": false} */
    bool no_reply;      /* do not end with the beginning of the assistant's reply */
    bool trust_content; /* control tokens in messages and tools count (Hugging Face) */
    int64_t now;        /* seconds since the epoch, for templates that print the date */
    uint64_t reserved[4];
} sl_chat;

/* The text that a prompt was made of, and which parts of it came from messages and tools. Release
 * with sl_rendered_free. */
typedef struct sl_rendered {
    char *text; /* NUL-terminated */
    size_t n_bytes;
    sl_range *untrusted;
    size_t n_untrusted;
    size_t n_replaced; /* invalid UTF-8 sequences that were read as U+FFFD */
} sl_rendered;
void sl_rendered_free(sl_rendered *rendered);

/* Normalises the messages (roles, content parts, tool calls as text), renders the model's chat
 * template and appends its tokens to *ids. rendered may be NULL. Errors: SL_ERR_ARGUMENT naming
 * messages[index].field or saying what the template refused; SL_ERR_FORMAT or SL_ERR_UNSUPPORTED
 * when the model has no template that can be used; SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_engine_render(const sl_engine *engine, const sl_chat *chat, sl_ids *ids,
                           sl_rendered *rendered, sl_error *err);

/* text[0..n) as a JSON string with its quotes, for writing messages: U+FFFD for invalid UTF-8.
 * *json is NUL-terminated. Errors: SL_ERR_MEMORY, SL_ERR_LIMIT. */
sl_status sl_json_quote(const char *text, size_t n, char **json, size_t *n_bytes, sl_error *err);

/* ---- tokens to text ---- */

/* Ids to text as they come, never a part of a character. */
typedef struct sl_detokenizer sl_detokenizer;

/* hide_control: control tokens give no text. The tokenizer must outlive it. */
sl_status sl_detokenizer_create(const sl_tokenizer *tokenizer, bool hide_control,
                                sl_detokenizer **out, sl_error *err);
void sl_detokenizer_free(sl_detokenizer *detokenizer);

/* *text: what is certain after this token: whole characters, U+FFFD for bytes that can never become
 * valid; often empty. Ids that are unused or out of range give none. */
sl_status sl_detokenizer_push(sl_detokenizer *detokenizer, int32_t id, sl_str *text, sl_error *err);

/* The end: U+FFFD for an unfinished character. It can be used again. */
sl_status sl_detokenizer_finish(sl_detokenizer *detokenizer, sl_str *text, sl_error *err);

/* ---- stop strings ---- */

/* Text in, text out, until one of the strings stands there: holds back an end that may yet become a
 * stop string, and never leaks a part of one. The first to be complete ends the text, and of
 * several that are complete with the same byte the longest; everything from its first byte on is
 * dropped. The result does not depend on how the text is cut into pieces. */
typedef struct sl_stop_filter sl_stop_filter;

enum { SL_MAX_STOPS = 64, SL_MAX_STOP_BYTES = 4096 };

/* Copies the strings. SL_ERR_ARGUMENT for an empty one, SL_ERR_LIMIT for too many or too long a
 * one, by its number; n may be 0. */
sl_status sl_stop_filter_create(const sl_str *strings, size_t n, sl_stop_filter **out,
                                sl_error *err);
void sl_stop_filter_free(sl_stop_filter *filter);

/* *certain: what can be let through after this piece; nothing once a stop string was found. */
sl_status sl_stop_filter_push(sl_stop_filter *filter, const char *text, size_t n, sl_str *certain,
                              sl_error *err);

/* The text ends here: what was held back, unless a stop string was found. Begins anew. */
sl_status sl_stop_filter_finish(sl_stop_filter *filter, sl_str *certain, sl_error *err);

/* The number of the stop string that ended the text, or -1. */
int sl_stop_filter_found(const sl_stop_filter *filter);

/* ---- state ---- */

typedef struct sl_state sl_state;

/* A state of at most `context` tokens. All its memory is taken here, and that of the regular
 * checkpoints which evaluating it will bring, as far as they fit the budget: evaluating allocates
 * nothing, from the first token to the last. What may allocate later: sl_state_checkpoint until the
 * budget is full, the first call that keeps so many rows of logits, the first writes of a fork, and
 * writing anew, after a rewind or a sync, what forks or checkpoints still hold of the former
 * tokens. Errors: SL_ERR_ARGUMENT (context 0 or above the model's, an engine without weights),
 * SL_ERR_MEMORY. */
sl_status sl_state_create(sl_engine *engine, uint32_t context, sl_state **out, sl_error *err);
void sl_state_free(sl_state *state);

/* Forgets all tokens; also makes a state usable again after a failed evaluation. */
void sl_state_reset(sl_state *state);

uint32_t sl_state_context(const sl_state *state);
uint32_t sl_state_length(const sl_state *state);       /* tokens evaluated so far */
const int32_t *sl_state_tokens(const sl_state *state); /* valid until the state changes */

/* A second state with the same content; both go on independently, and neither changes a bit of the
 * other. Costs pointers: blocks are shared until one side writes into a partly filled one. */
sl_status sl_state_fork(const sl_state *state, sl_state **out, sl_error *err);

/* What a rewind or a sync found. */
typedef enum sl_reuse_source {
    SL_REUSE_NOTHING,   /* began from the empty state */
    SL_REUSE_LIVE,      /* the state already was a prefix */
    SL_REUSE_WINDOW,    /* taken back inside the rewind window */
    SL_REUSE_CHECKPOINT /* restored from a checkpoint */
} sl_reuse_source;

typedef struct sl_reuse_report {
    sl_reuse_source source;
    uint32_t matched;    /* tokens that the state and the wanted ones had in common */
    uint32_t reused;     /* tokens that need not be evaluated (again) */
    uint32_t recomputed; /* tokens that this call evaluated again (sl_state_rewind) */
    uint32_t checkpoint; /* position of the checkpoint used, with SL_REUSE_CHECKPOINT */
    const char *why;     /* why not more was reused: a clause, static; "" when all was */
    uint64_t reserved[2];
} sl_reuse_report;

/* Takes the state back to its first `length` tokens, exactly. Free within the rewind window;
 * further back from the nearest checkpoint, evaluating the tokens since again. report may be NULL.
 * Errors: SL_ERR_ARGUMENT (length above the present one, a failed state, one that is just being
 * evaluated), and those of evaluating. */
sl_status sl_state_rewind(sl_state *state, uint32_t length, sl_reuse_report *report, sl_error *err);

/* Makes the state the longest prefix of tokens[0..n) that can be had without evaluating: what it
 * is, a rewind inside the window, or a checkpoint (of any sequence of the engine). At least the
 * last token is left to evaluate, so that its logits can be had. A failed state is reset first. */
sl_status sl_state_sync(sl_state *state, const int32_t *tokens, size_t n, sl_reuse_report *report,
                        sl_error *err);

/* Why a checkpoint is taken; the order says nothing. */
typedef enum sl_anchor {
    SL_ANCHOR_REGULAR, /* by spacing, taken by the engine itself */
    SL_ANCHOR_SYSTEM,  /* end of system text and tools */
    SL_ANCHOR_TURN,    /* before a user's turn */
    SL_ANCHOR_REPLY,   /* before a reply starts: survives templates that drop its reasoning */
    SL_ANCHOR_TOOL,    /* after a tool result */
    SL_ANCHOR_FORK,    /* a point where sequences were seen to part */
    SL_ANCHOR_COUNT
} sl_anchor;

/* Keeps the state's present position under the engine's byte budget, which is never exceeded: the
 * least useful others go first. Keeps nothing when the budget is too small. Errors: SL_ERR_ARGUMENT
 * (a failed state, an unknown anchor), SL_ERR_MEMORY. */
sl_status sl_state_checkpoint(sl_state *state, sl_anchor anchor, sl_error *err);

/* Bytes of blocks that only this state refers to, and of those that it shares. */
typedef struct sl_state_bytes {
    size_t own, shared;
} sl_state_bytes;
sl_state_bytes sl_state_memory(const sl_state *state);

/* Writes the state, and n bytes of the caller's own (a conversation, sampler settings; may be
 * NULL), to path: complete or not at all, on the disk when the call returns. Errors:
 * SL_ERR_ARGUMENT (a failed state), SL_ERR_UNSUPPORTED (gdn_serial), SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_state_save(sl_state *state, const char *path, const void *own, size_t n,
                        sl_error *err);

/* Reads a state into a new one of at least `context` tokens (0 = the length it was saved with plus
 * nothing). Everything is verified before anything is made. *own (may be NULL) receives the
 * caller's bytes, NUL-terminated, to be sl_free'd. Errors: SL_ERR_FORMAT (not a state file,
 * damaged: names section and offset), SL_ERR_UNSUPPORTED (a newer version or an unknown feature, by
 * name; another model, arithmetic mode or chunk constant; gdn_serial), SL_ERR_CONTEXT, SL_ERR_IO,
 * SL_ERR_MEMORY. */
sl_status sl_state_load(sl_engine *engine, const char *path, uint32_t context, sl_state **out,
                        char **own, size_t *n, sl_error *err);

/* ---- batch ---- */

/* n_tokens to append to a state. */
typedef struct sl_eval_item {
    sl_state *state;
    const int32_t *tokens;
    size_t n_tokens;
    bool all_logits;
    bool keep_logits; /* the engine keeps those of the last token: see sl_state_sample */
    float *logits; /* NULL, or [n_tokens][vocab] when all_logits, else [vocab] of the last token */
    float *hidden; /* NULL, or [n_tokens][hidden], the hidden states after the final norm */
    uint64_t reserved[2];
} sl_eval_item;

typedef struct sl_eval_options {
    uint32_t max_rows; /* 0 = the engine's; a smaller one makes smaller prefill pieces */
    /* After each piece; return true to stop (SL_ERR_CANCELLED; what is done stays in the states).
     * done and total count rows of the whole call. */
    bool (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
    uint64_t reserved[4];
} sl_eval_options;

/* Evaluates the tokens of all items together: prompts, single tokens and rows to verify, in any
 * mixture. States may join and leave from call to call. options may be NULL. Everything is checked
 * before anything is computed: SL_ERR_ARGUMENT (token out of range, a state named twice or of
 * another engine), SL_ERR_CONTEXT with both counts. Afterwards: SL_ERR_NUMERIC names layer and
 * position, SL_ERR_IO when the model file was lost. Such an error makes the states it concerns
 * unusable until sl_state_reset or sl_state_sync. */
sl_status sl_engine_eval(sl_engine *engine, const sl_eval_item *items, size_t n_items,
                         const sl_eval_options *options, sl_error *err);

/* The logits of the state's last token, which sl_engine_eval kept (keep_logits). Borrowed until the
 * engine's next evaluation or call of this function. SL_ERR_ARGUMENT when the last evaluation was
 * not of this state, kept none, or the state has changed since; SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_state_logits(sl_state *state, const float **logits, sl_error *err);

/* ---- sampler ---- */

enum {
    SL_MAX_LOGIT_BIAS = 1024,
    SL_DRY_MAX_WINDOW = 65536 /* tokens that loop breaking looks back */
};

typedef struct sl_logit_bias {
    int32_t id;
    float bias; /* finite */
} sl_logit_bias;

/* The settings, in the order in which they work: masks, logit bias, repetition penalty, presence
 * and frequency penalty, loop breaking, temperature, top_k, typical_p, top_p, min_p, draw. Every
 * filter leaves at least one token. Members left 0 are off, apart from top_p, for which 1 is off.
 */
typedef struct sl_sampling {
    float temperature; /* 0 = greedy; the filters and the seed then have no effect */
    uint32_t top_k;    /* 0 = off */
    float top_p;       /* 0 to 1, 1 = off */
    float min_p;       /* 0 to 1, 0 = off */
    uint64_t seed;
    float typical_p;             /* 0 to 1, 0 and 1 = off */
    float presence_penalty;      /* of tokens in the output; -100 to 100, 0 = off */
    float frequency_penalty;     /* of tokens in the output; -100 to 100, 0 = off */
    float repetition_penalty;    /* of tokens in prompt and output; 0 to 100, 0 and 1 = off */
    uint32_t penalty_window;     /* the three penalties see the last n tokens, 0 = all */
    float dry_multiplier;        /* 0 to 100, 0 = no loop breaking ("DRY") */
    float dry_base;              /* 1 to 100; 0 = 1.75 */
    uint32_t dry_allowed_length; /* 0 = 2 */
    uint32_t dry_window;         /* up to SL_DRY_MAX_WINDOW, 0 = that many */
    const sl_logit_bias *bias;   /* [n_bias], borrowed as long as the settings are in use */
    size_t n_bias;               /* up to SL_MAX_LOGIT_BIAS */
    uint64_t reserved[4];
} sl_sampling;

/* Greedy, everything else off, seed 0. */
sl_sampling sl_sampling_default(void);

/* Setting by setting what the model's file recommends, else what its makers recommend for the
 * family (temperature 1, top_k 20, top_p 0.95, the rest off); seed 0. In a GGUF file that is
 * general.sampling.temp, top_k, top_p, min_p, penalty_repeat, penalty_last_n (the window of all
 * penalties, -1 = all); in a folder generation_config.json: temperature, top_k, top_p, min_p,
 * typical_p, repetition_penalty, presence_penalty, frequency_penalty, and do_sample, which makes
 * the temperature 0 when it is false. */
sl_sampling sl_engine_sampling(const sl_engine *engine);

/* SL_ERR_ARGUMENT naming the setting that is NaN, infinite or out of its range, with the range. */
sl_status sl_sampling_check(const sl_sampling *sampling, sl_error *err);

/* Release with sl_sampler_destroy, before the engine. */
typedef struct sl_sampler sl_sampler;

/* For the logits of this engine: never emits padding tokens, and loop breaking knows what separates
 * the parts of a text. Errors: those of sl_sampling_check, SL_ERR_MEMORY. */
sl_status sl_engine_sampler(const sl_engine *engine, const sl_sampling *sampling, sl_sampler **out,
                            sl_error *err);

/* For up to n_vocab logits of any origin, about 32 bytes each; the settings are
 * sl_sampling_default(). */
sl_status sl_sampler_create(size_t n_vocab, sl_sampler **out, sl_error *err);
void sl_sampler_destroy(sl_sampler *sampler);

/* Checks the settings and takes them; the old ones stay on failure. */
sl_status sl_sampler_set(sl_sampler *sampler, const sl_sampling *sampling, sl_error *err);

/* Sets of tokens: bit (id mod 32) of word id / 32, for every id below the n of later calls.
 * Borrowed until replaced; NULL is the empty set.
 * Banned tokens are never emitted, such as the padding of a vocabulary. Breakers are the tokens at
 * which loop breaking ends: what may come again and again. */
void sl_sampler_set_banned(sl_sampler *sampler, const uint32_t *banned);
void sl_sampler_set_breakers(sl_sampler *sampler, const uint32_t *breakers);

/* A set for sl_sampler_set_breakers: the tokens whose bytes contain one of the texts, and all
 * control and user-defined tokens. n_vocab: ids it has bits for. NULL when memory is short. */
uint32_t *sl_breakers_create(const sl_tokenizer *tokenizer, const sl_str *texts, size_t n,
                             size_t n_vocab);

/* The tokens of a sequence up to the one to be chosen. Borrowed for one call. */
typedef struct sl_history {
    const int32_t *tokens;
    size_t n_tokens;
    size_t n_prompt; /* the first n_prompt are the prompt, what follows is output */
} sl_history;

typedef struct sl_sample_context {
    sl_history history; /* may be empty where no setting needs it */
    uint64_t position;  /* absolute, of the token to be chosen: what the draw depends on */
    /* What a grammar allows at this position, a set as above; NULL allows everything. */
    const uint32_t *allowed;
    /* Not NULL: the token that has to come, whatever masks and settings say. The logits are checked
     * all the same. */
    const int32_t *forced;
    uint64_t reserved[2];
} sl_sample_context;

/* The next token from n logits, which are not changed. SL_ERR_NUMERIC names token and position of a
 * NaN or +inf, whether banned or not, and the position when no token is left. */
sl_status sl_sample_next(sl_sampler *sampler, const float *logits, size_t n,
                         const sl_sample_context *context, int32_t *token, sl_error *err);

/* The same from the logits that were kept of the state's last token (keep_logits), as long as
 * sl_state_logits would give them. On a device this is the quick way: as a rule the choice is made
 * from a short list of the likeliest tokens, and the logits stay where they are. */
sl_status sl_state_sample(sl_state *state, sl_sampler *sampler, const sl_sample_context *context,
                          int32_t *token, sl_error *err);

/* The same for settings that do not look at the history; SL_ERR_ARGUMENT for others. */
sl_status sl_sample(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                    int32_t *token, sl_error *err);

/* What the last token was drawn from: the tokens that were left, in order, with their
 * probabilities. One token with probability 1 after a greedy or forced choice. */
typedef struct sl_candidate {
    int32_t id;
    double p;
} sl_candidate;
size_t sl_sampler_n_candidates(const sl_sampler *sampler);
sl_candidate sl_sampler_candidate(const sl_sampler *sampler, size_t i);

/* Log probabilities of the RAW distribution, before any mask or setting, at temperature 1. Never
 * above 0; -inf for a logit of -inf. */
typedef struct sl_logprob {
    int32_t id;
    double logprob;
} sl_logprob;

/* *logprob: of `token`, which may be any below n. top[0..*n_top): the likeliest tokens in order, at
 * most max_top, without those that cannot come; max_top may be 0 and top NULL then. The logits are
 * those of a position and refused as in sl_sample_next. Forgets the candidates of the last draw. */
sl_status sl_sampler_logprobs(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                              int32_t token, double *logprob, sl_logprob *top, size_t max_top,
                              size_t *n_top, sl_error *err);

/* ---- thinking budget ---- */

/* A limit on thinking: after so many thinking tokens of a turn the thinking is brought to its end,
 * at the next line break, or at the latest after some tokens of grace. The end is written by
 * forcing tokens, so that the model reads the same close of thinking that it would have written. A
 * second block of thinking goes on counting where the first ended.
 *
 *   sl_think_budget_begin         after the prompt
 *   before every token:           sl_think_budget_forced says what must come, for
 *                                 sl_sample_context.forced
 *   after every token:            sl_think_budget_push */
enum { SL_THINK_DEFAULT_GRACE = 64, SL_THINK_MAX_END = 16 };

/* The same for all turns of a model and request. */
typedef struct sl_think_rules {
    uint32_t budget;               /* thinking tokens of a turn */
    uint32_t grace;                /* more tokens to wait for a line break */
    int32_t open_id, close_id;     /* <think> and </think> */
    int32_t end[SL_THINK_MAX_END]; /* what is forced: the tokens of "\n</think>\n\n" */
    size_t n_end;
    size_t n_line; /* the first n_line of them break the line; left out where a line just ended */
} sl_think_rules;

/* The rules for a model's tokens. SL_ERR_UNSUPPORTED when its vocabulary has no <think> and
 * </think>. */
sl_status sl_think_rules_create(const sl_tokenizer *tokenizer, uint32_t budget, uint32_t grace,
                                sl_think_rules *out, sl_error *err);

/* Plain data and a function of the tokens pushed alone: copy it to fork a sequence or to keep it
 * with a saved one, and with speculation push the tokens that were accepted. */
typedef struct sl_think_budget {
    bool thinking;       /* the next token is one of thinking, or ends it */
    bool line_ended;     /* the text so far ends with a line break */
    uint32_t n_thinking; /* thinking tokens of the turn, without the tags */
    uint32_t n_grace;    /* those of them that came after the budget was used up */
    uint32_t next_end;   /* while forcing: index into end, plus 1; else 0 */
    uint32_t n_forced;   /* tokens that were forced in this turn */
} sl_think_budget;

/* thinking: the prompt ends inside of a block. prompt_end: the last bytes of the prompt. */
sl_think_budget sl_think_budget_begin(const sl_think_rules *rules, bool thinking,
                                      sl_str prompt_end);

/* The token that has to come next, or -1. */
int32_t sl_think_budget_forced(const sl_think_budget *budget, const sl_think_rules *rules);

/* Takes in a token and its bytes. A token other than the forced one ends the forcing; the rules
 * then apply as to any other. */
void sl_think_budget_push(sl_think_budget *budget, const sl_think_rules *rules, int32_t token,
                          sl_str bytes);

/* ---- output parser ---- */

/* Takes the text of an answer apart as it comes: thinking, content and tool calls, in the XML form
 * of the 3.5 models and later and in the JSON form. The input is valid UTF-8 in pieces of any size,
 * with special tokens as their text and without stop tokens. What comes out does not depend on how
 * the input was cut; only the number of events does. Nothing but framing is dropped: text that
 * cannot be read as a call comes back byte for byte, as thinking or content. Arguments are typed by
 * the JSON schemas of the tools. */
typedef struct sl_outparse sl_outparse;

typedef enum sl_outparse_kind {
    SL_OUTPARSE_THINKING,       /* text */
    SL_OUTPARSE_CONTENT,        /* text */
    SL_OUTPARSE_CALL_BEGIN,     /* index, name */
    SL_OUTPARSE_CALL_ARGUMENTS, /* index, text: the next piece of one JSON object */
    SL_OUTPARSE_CALL_END        /* index, flags */
} sl_outparse_kind;

/* Of one call (SL_OUTPARSE_CALL_END), and of the whole answer: those of its calls and more. */
typedef enum sl_outparse_flags {
    SL_OUTPARSE_CALL_REPAIRED = 1 << 0, /* not quite in the form taught */
    SL_OUTPARSE_CALL_CUT = 1 << 1,      /* the answer ended inside; the arguments are completed */
    SL_OUTPARSE_CALL_UNKNOWN = 1 << 2,  /* no such function; only when tools were given */
    SL_OUTPARSE_CALL_UNTYPED = 1 << 3,  /* an argument does not fit its type and is a string */
    SL_OUTPARSE_CALL_TEXT = 1 << 4,     /* text inside the call follows it as content */
    SL_OUTPARSE_CALL_IN_THINKING = 1 << 5,
    SL_OUTPARSE_CALL_BROKEN = 1 << 6,  /* answer only: the start of a call became text */
    SL_OUTPARSE_STRAY_THINK = 1 << 7,  /* answer only: a think tag was kept as text */
    SL_OUTPARSE_THINKING_OPEN = 1 << 8 /* answer only: the thinking never ended */
} sl_outparse_flags;

/* "repaired", "cut", ... for one flag. */
const char *sl_outparse_flag_name(sl_outparse_flags flag);

/* name and text are valid during the callback; text is never empty. Events of one call follow each
 * other without any other between them. */
typedef struct sl_outparse_event {
    sl_outparse_kind kind;
    size_t index; /* of the call in the answer, from 0 */
    sl_str name;
    sl_str text;
    unsigned flags;
} sl_outparse_event;

/* A status other than SL_OK ends the push and is what it returns. */
typedef sl_status (*sl_outparse_fn)(void *user, const sl_outparse_event *event, sl_error *err);

typedef struct sl_outparse_params {
    sl_str tools;          /* JSON array of tools, OpenAI form; empty: none are known */
    size_t max_call_bytes; /* of the text of one call; 0 = 16 MiB */
    bool starts_in_thinking;
    bool ignore_calls;             /* all calls are text */
    bool ignore_calls_in_thinking; /* those in thinking are */
    uint64_t reserved[2];
} sl_outparse_params;

/* params may be NULL. Errors: SL_ERR_FORMAT (tools are not JSON), SL_ERR_ARGUMENT (no array),
 * SL_ERR_MEMORY. */
sl_status sl_outparse_create(const sl_outparse_params *params, sl_outparse_fn fn, void *user,
                             sl_outparse **out, sl_error *err);
void sl_outparse_free(sl_outparse *parser);

/* Errors: SL_ERR_MEMORY, and what the callback returned. The parser can only be freed after one. */
sl_status sl_outparse_push(sl_outparse *parser, const char *text, size_t n, sl_error *err);

/* The end of the answer: gives out what was held and closes open calls. Nothing can be pushed
 * after it. */
sl_status sl_outparse_finish(sl_outparse *parser, sl_error *err);

/* What was seen so far. */
unsigned sl_outparse_flags_of(const sl_outparse *parser);
size_t sl_outparse_n_calls(const sl_outparse *parser);

/* ---- structured output ---- */

/* Text that is held to a form: a grammar says which texts are whole, and at every step which tokens
 * may come. docs/GRAMMAR.md says what is understood and what it means.
 *
 *   sl_grammar          a grammar or a JSON schema, compiled. Never changes: any number of threads
 *                       may use it.
 *   sl_constraint_vocab the tokens of a vocabulary by their bytes. Never changes either.
 *   sl_constraint       a place in a text of the grammar: what was written so far, as far as it
 *                       matters for what may follow. Forks of one share what was found out about
 *                       the grammar; they belong to one thread at a time, all together.
 *
 * Bytes are the alphabet, so a character may be cut over tokens. Control tokens never fit; stop
 * tokens fit exactly where the text may end. Every text that the masks let through can be brought
 * to its end.
 *
 * When the form begins is up to the caller: a model that thinks first is left alone until its
 * thinking has ended (sl_generate does so). */
typedef struct sl_grammar sl_grammar;

/* GBNF, with a rule "root". Errors: SL_ERR_FORMAT with line and column, SL_ERR_UNSUPPORTED (left
 * recursion, a grammar without any text, by name of the rule), SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_grammar_from_gbnf(sl_str text, sl_grammar **out, sl_error *err);

/* JSON texts of a JSON schema, 2020-12. Errors: SL_ERR_FORMAT (not JSON, not a schema, by JSON
 * pointer), SL_ERR_UNSUPPORTED naming keyword and JSON pointer, SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_grammar_from_json_schema(sl_str schema, sl_grammar **out, sl_error *err);

/* Any JSON object. */
sl_status sl_grammar_json_object(sl_grammar **out, sl_error *err);

/* Calls of tools (a JSON array, OpenAI form) in the XML form that sl_outparse reads, as tool_choice
 * "required", or of the function `name` alone: between one call and max_calls, 0 = any number. In
 * sl_generate the calls come as such. Errors: those of sl_grammar_from_json_schema behind the name
 * of the tool, SL_ERR_ARGUMENT (no array, no such function). */
sl_status sl_grammar_from_tools(sl_str tools, const char *name, size_t max_calls, sl_grammar **out,
                                sl_error *err);
void sl_grammar_free(sl_grammar *grammar);

typedef struct sl_constraint_vocab sl_constraint_vocab;

/* For masks of n_vocab tokens (the logits' number, which may exceed the tokenizer's). Tokens
 * without bytes and control tokens never fit. Nothing is borrowed afterwards. Errors: SL_ERR_LIMIT
 * (a token of more than 4,096 bytes), SL_ERR_MEMORY. */
sl_status sl_constraint_vocab_create(const sl_tokenizer *tokenizer, size_t n_vocab,
                                     const int32_t *stops, size_t n_stops,
                                     sl_constraint_vocab **out, sl_error *err);
void sl_constraint_vocab_free(sl_constraint_vocab *vocab);

/* That of an engine's logits and stop tokens: made at the first call, the engine's. Errors: those,
 * and those of sl_engine_tokenizer. */
sl_status sl_engine_constraint_vocab(sl_engine *engine, const sl_constraint_vocab **out,
                                     sl_error *err);

typedef struct sl_constraint sl_constraint;

/* The beginning of a text. Grammar and vocabulary must outlive it and its forks. */
sl_status sl_constraint_create(const sl_grammar *grammar, const sl_constraint_vocab *vocab,
                               sl_constraint **out, sl_error *err);
sl_status sl_constraint_fork(const sl_constraint *constraint, sl_constraint **out, sl_error *err);
void sl_constraint_free(sl_constraint *constraint);

/* Goes back to the beginning. */
void sl_constraint_reset(sl_constraint *constraint);

/* Goes to the place of another fork of the same constraint; SL_ERR_ARGUMENT for other ones. */
sl_status sl_constraint_assign(sl_constraint *constraint, const sl_constraint *from, sl_error *err);

/* Whether the same texts may follow here and there, as far as their kept state tells: forks that
 * took the same tokens are equal. */
bool sl_constraint_equal(const sl_constraint *a, const sl_constraint *b);

/* The tokens that may come next, for sl_sample_context.allowed: a set of n_vocab bits, all words of
 * 32 whole, borrowed until the next call for this constraint or a fork of it. Empty after the end.
 * Errors: SL_ERR_LIMIT (a grammar that needs too many states), SL_ERR_MEMORY. */
sl_status sl_constraint_allowed(sl_constraint *constraint, const uint32_t **allowed, sl_error *err);

/* Takes a token in. SL_ERR_ARGUMENT for one that does not fit, and the place stays as it was; so
 * also for SL_ERR_LIMIT and SL_ERR_MEMORY. */
sl_status sl_constraint_accept(sl_constraint *constraint, int32_t token, sl_error *err);

/* The same for text: all of it, or SL_ERR_ARGUMENT with the offset of the byte that does not fit.
 */
sl_status sl_constraint_accept_text(sl_constraint *constraint, sl_str text, sl_error *err);

/* The text may end here; nothing but the end may come (also after a stop token). */
bool sl_constraint_may_end(const sl_constraint *constraint);
bool sl_constraint_is_done(const sl_constraint *constraint);

/* The bytes that have to come, one after the other, as long as there is one possibility only;
 * *n <= capacity. Worth looking at where tokens can be had cheaper than by sampling them. Errors:
 * SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_constraint_forced(sl_constraint *constraint, char *bytes, size_t capacity, size_t *n,
                               sl_error *err);

/* ---- one answer ---- */

typedef enum sl_finish {
    SL_FINISH_STOP,     /* the model ended its answer, or a stop string did */
    SL_FINISH_LENGTH,   /* max_tokens, or the context is full */
    SL_FINISH_CANCELLED /* the callback asked for it */
} sl_finish;
const char *sl_finish_name(sl_finish finish); /* "stop", "length", "cancelled" */

typedef enum sl_event_kind {
    SL_EVENT_PROMPT, /* done of total tokens of the prompt are evaluated: first 0, then by pieces */
    SL_EVENT_TOKEN,  /* token was chosen; logprob and top when asked for */
    SL_EVENT_OUTPUT  /* output: a piece of thinking or content, or part of a call */
} sl_event_kind;

typedef struct sl_event {
    sl_event_kind kind;
    size_t done, total;
    int32_t token;
    double logprob; /* of the raw distribution */
    const sl_logprob *top;
    size_t n_top;
    const sl_outparse_event *output;
} sl_event;

/* Returns true to cancel: the answer ends before the next evaluation. Text that is certain by then
 * still comes. */
typedef bool (*sl_event_fn)(void *user, const sl_event *event);

/* A checkpoint to keep on the way through a prompt, after its first `position` tokens. */
typedef struct sl_prompt_mark {
    uint32_t position;
    sl_anchor anchor;
} sl_prompt_mark;

/* Marks for the prompt that sl_engine_render made of a conversation: where later conversations will
 * part from it, whatever the template does with earlier turns.
 *   SL_ANCHOR_SYSTEM  after system text and tools: where any other conversation with them begins
 *   SL_ANCHOR_TURN    before the last message: what stays when something else is said instead
 *   SL_ANCHOR_REPLY   before the reply: what stays in the next turn's prompt, in which a template
 *                     may drop the thinking of this reply
 * With them as sl_generate_params.marks, a state or a new one comes back to these places without
 * evaluating anything (sl_state_sync). Found by rendering the conversations that would follow:
 * costs about as much as rendering this one three times. *n_marks: how many were written to marks,
 * in ascending order; a place that the template does not have gives none. prompt need not be of
 * this conversation alone, but must begin with it. Errors: those of sl_engine_render, but none of
 * the template's. */
enum { SL_MAX_PROMPT_MARKS = 3 };
sl_status sl_engine_prompt_marks(const sl_engine *engine, const sl_chat *chat,
                                 const int32_t *prompt, size_t n_prompt,
                                 sl_prompt_mark marks[SL_MAX_PROMPT_MARKS], size_t *n_marks,
                                 sl_error *err);

typedef struct sl_generate_params {
    sl_sampling sampling;
    uint64_t max_tokens; /* 0 = until the context is full */
    const sl_str *stops; /* [n_stops]: end the content before one of them */
    size_t n_stops;
    bool limit_thinking; /* by the two that follow, see sl_think_rules */
    uint32_t think_budget, think_grace;
    sl_str tools;                /* what the prompt was rendered with: types the arguments */
    bool ignore_calls;           /* calls stay text */
    bool raw;                    /* all text is content: no thinking, no calls */
    bool logprobs;               /* of the tokens chosen */
    uint32_t n_top;              /* and of the likeliest ones, up to SL_MAX_TOP */
    const sl_prompt_mark *marks; /* [n_marks], ascending positions; others are passed over. See
                                  * sl_engine_prompt_marks */
    size_t n_marks;
    const uint32_t *breakers; /* of loop breaking, see sl_sampler_set_breakers; NULL = the usual */
    uint32_t max_rows;        /* of a piece of the prompt, 0 = the engine's */
    /* Not NULL: the form of the answer, from the constraint's place on; it moves along with the
     * tokens. Thinking is left free, but cannot be the end; then the answer begins as the model was
     * taught, with the line breaks behind the thinking. Made for the engine's vocabulary
     * (sl_engine_constraint_vocab). An answer that ends by SL_FINISH_STOP without a stop string is
     * a whole text of the grammar. */
    sl_constraint *constraint;
    uint64_t reserved[3];
} sl_generate_params;

enum { SL_MAX_TOP = 64 };

/* Samples as the model recommends, until the context is full; grace of 64. */
sl_generate_params sl_generate_params_default(const sl_engine *engine);

typedef struct sl_generate_result {
    sl_finish finish;
    int stop;              /* number of the stop string that ended the answer, or -1 */
    sl_reuse_report reuse; /* what the state and the checkpoints had of the prompt */
    size_t n_tokens;       /* chosen, an end token included */
    size_t n_steps;        /* of them evaluated, one by one after the prompt */
    size_t n_forced;       /* to end the thinking */
    size_t n_calls;
    unsigned flags; /* sl_outparse_flags */
    uint64_t prompt_ns, answer_ns;
    uint64_t reserved[4];
} sl_generate_result;

/* Brings the state to the prompt, evaluating what it and the checkpoints do not have, and then
 * chooses and evaluates tokens until something ends the answer. The state then holds the prompt and
 * what was evaluated of the answer: all of it but the last token. fn may be NULL. After an error
 * the events so far and *result are good, and the state is usable unless evaluating failed. Errors:
 * SL_ERR_ARGUMENT (params, an empty prompt), SL_ERR_CONTEXT (a prompt longer than the state's
 * context), SL_ERR_FORMAT and SL_ERR_UNSUPPORTED (tools, tokenizer), and those of evaluating and
 * sampling. */
sl_status sl_generate(sl_state *state, const int32_t *prompt, size_t n_prompt,
                      const sl_generate_params *params, sl_event_fn fn, void *user,
                      sl_generate_result *result, sl_error *err);

/* ---- several answers at once ---- */

/* An answer in progress: what sl_generate does, one step at a time and beside others. Its tokens
 * are those of an answer by itself, whatever steps it shares with whom (the contract above). */
typedef struct sl_completion sl_completion;

/* Brings the state to as much of the prompt as can be had without evaluating. state, prompt, user,
 * and what params points to are borrowed until sl_completion_free; the state may be used for
 * nothing else until then. Errors: those of sl_generate but of evaluating. */
sl_status sl_completion_create(sl_state *state, const int32_t *prompt, size_t n_prompt,
                               const sl_generate_params *params, sl_event_fn fn, void *user,
                               sl_completion **out, sl_error *err);
void sl_completion_free(sl_completion *answer);

/* Ends it with the next step, before anything is evaluated for it. From the thread of the steps, as
 * everything here; callbacks may also return true. */
void sl_completion_cancel(sl_completion *answer);
bool sl_completion_ended(const sl_completion *answer);

/* How the answer stands, or ended. The status is SL_OK until an error ended it, which is put into
 * *err: that of evaluating, sampling or of its text. */
sl_status sl_completion_result(const sl_completion *answer, sl_generate_result *result,
                               sl_error *err);

/* One evaluation for all answers that have not ended: a token for each that writes, and up to
 * prompt_rows tokens (0 = the engine's max_rows) of the prompts of those that read, in the order
 * given; one for whom no row is left waits. Then each that can chooses its next token, and tells
 * its events. Answers may come and go between steps. An error of one answer ends that answer alone.
 * An error that is returned left all of them as they were: SL_ERR_ARGUMENT (too many, another
 * engine's, one state twice), SL_ERR_MEMORY (fewer at a time may fit). */
sl_status sl_engine_step(sl_engine *engine, sl_completion *const *answers, size_t n,
                         uint32_t prompt_rows, sl_error *err);

/* ---- the experimental part: may change or go with any version ---- */

#ifdef SL_EXPERIMENTAL

/* Called after each operation that has a name ("L3.mixer"), with the rows of its value. */
typedef void (*sl_tap_fn)(void *context, const char *name, const float *rows, uint32_t n_rows,
                          uint32_t n_cols);

/* Shows layer values of the following evaluations: per piece, rows in order of the items. NULL ends
 * it. Value heads of gated delta layers come in the order of the file, see sl_model_info. */
void sl_engine_set_tap(sl_engine *engine, sl_tap_fn tap, void *context);

/* The multi-token prediction head over n rows of one state, teacher-forced: row i is fed the token
 * after position first + i and the hidden state at position first + i (from sl_eval_item.hidden)
 * and gives the logits [n][vocab] for the position after that token. Rows must be evaluated in
 * order from 0, of positions that the state has; they may be evaluated again from any of them on,
 * which forgets the later ones. A rewind, a fork, a checkpoint or a file keeps the rows that depend
 * on its tokens only. Errors: SL_ERR_ARGUMENT otherwise. */
sl_status sl_engine_eval_mtp(sl_engine *engine, sl_state *state, const int32_t *next_tokens,
                             const float *hidden, uint32_t first, size_t n, float *logits,
                             sl_error *err);

/* Named arrays in a safetensors file: layer values and logits, to be kept and compared. */
typedef enum sl_array_type { SL_ARRAY_F32, SL_ARRAY_I32, SL_ARRAY_OTHER } sl_array_type;

enum { SL_ARRAY_DIMS = 4 };

typedef struct sl_array {
    const char *name;
    sl_array_type type;
    uint32_t n_dims;
    size_t shape[SL_ARRAY_DIMS]; /* outermost first */
    const void *data;            /* all elements, contiguous; unaligned when read from a file */
} sl_array;

/* An entry of the file's own "__metadata__". */
typedef struct sl_array_note {
    const char *key, *text;
} sl_array_note;

/* Writes path, which appears complete or not at all. Arrays lie in the order given. Errors:
 * SL_ERR_IO naming the path, SL_ERR_ARGUMENT (a name twice, a size that does not fit, another
 * type), SL_ERR_MEMORY. */
sl_status sl_arrays_write(const char *path, const sl_array *arrays, size_t n,
                          const sl_array_note *notes, size_t n_notes, sl_error *err);

/* A file that is read; names and data live as long as it. Arrays of other types or with more
 * dimensions are SL_ARRAY_OTHER without shape. Errors: SL_ERR_IO, SL_ERR_FORMAT naming array and
 * field. */
typedef struct sl_arrays sl_arrays;
sl_status sl_arrays_open(const char *path, sl_arrays **out, sl_error *err);
void sl_arrays_close(sl_arrays *arrays);
size_t sl_arrays_count(const sl_arrays *arrays);
sl_array sl_arrays_at(const sl_arrays *arrays, size_t i);

/* SL_ERR_IO when part of the file went away while it was read. */
sl_status sl_arrays_check(const sl_arrays *arrays, sl_error *err);

/* The listing of the main plan for a run of n_rows at position pos, NUL-terminated. */
sl_status sl_engine_dump_plan(const sl_engine *engine, uint32_t n_rows, uint32_t pos, char **text,
                              size_t *n_bytes, sl_error *err);

/* What the evaluations since sl_engine_profile_start took, one entry for each op of the main plan
 * in its order (sl_engine_dump_plan), with what the plan says that they had to move and compute. */
typedef struct sl_profile_op {
    const char *part; /* "embedding", "gated delta", "attention", "feed-forward", "head" */
    const char *op;   /* "project", "gdn", "attention", ... */
    const char *name; /* of what is projected to: "qkv"; else "" */
    const char *type; /* of its matrix: "Q8_0"; "" without one */
    int layer;        /* -1 outside of the layers */
    uint64_t calls;
    uint64_t wall_ns;
    uint64_t busy_ns;    /* of all threads together */
    uint64_t longest_ns; /* of the busiest thread of each piece of parallel work, added up */
    double weight_bytes, activation_bytes, state_bytes; /* read and written, wherever from */
    double memory_bytes; /* of weights and states what must come from memory, once a run */
    double int8_ops;     /* products of quantised matrices; a multiply-add counts two */
    double float_ops;
    uint64_t reserved[4];
} sl_profile_op;

/* Forgets what was recorded and records from now on, which costs two looks at the clock for every
 * op and thread. SL_ERR_ARGUMENT for an engine without weights, SL_ERR_MEMORY. */
sl_status sl_engine_profile_start(sl_engine *engine, sl_error *err);

/* Ends recording; what was recorded can still be read. */
void sl_engine_profile_stop(sl_engine *engine);

/* *ops: to be released with sl_free; strings are the engine's. SL_ERR_ARGUMENT when nothing was
 * started, SL_ERR_LIMIT after more than half a million runs, SL_ERR_MEMORY. */
sl_status sl_engine_profile_ops(const sl_engine *engine, sl_profile_op **ops, size_t *n,
                                sl_error *err);

/* The instruction-set level that an engine opened with sl_engine_params.isa = wanted uses here;
 * NULL or "auto": the best that processor and operating system allow. *out is static. Errors:
 * SL_ERR_ARGUMENT (no such level), SL_ERR_UNSUPPORTED (not on this machine). */
sl_status sl_cpu_level(const char *wanted, const char **out, sl_error *err);

/* What this machine can do, measured with loops that do nothing else: what shares of a ceiling are
 * quoted against. */
typedef struct sl_ceilings {
    double read_gbs;   /* streaming reads from memory, all threads together, 1e9 bytes a second */
    double read_gbs_1; /* of one thread alone */
    double int8_tops;  /* int8 products with int32 sums, 1e12 a second; a multiply-add counts two */
    double f32_tflops; /* the same of floats */
    double amx_tops;   /* int8 on tile registers; 0 when there are none, or none allowed */
    unsigned n_threads;
    const char *int8_loop, *f32_loop; /* the instruction: "vpdpbusd zmm", "fma zmm" */
    size_t read_bytes; /* of the buffer that was read: a small one is read from caches in part */
} sl_ceilings;

/* n_threads 0: one per physical core this process may use. Takes a second or two and up to 1 GiB.
 * Asks the operating system for the tile registers of the process where there are any. Errors:
 * SL_ERR_ARGUMENT (threads), SL_ERR_MEMORY. */
sl_status sl_measure_ceilings(unsigned n_threads, sl_ceilings *out, sl_error *err);

/* The same of what an engine computes on, with its number of threads; of a CUDA device, whose
 * int8_tops and f32_tflops are those of its tensor cores. SL_ERR_ARGUMENT for an engine without
 * weights. */
sl_status sl_engine_measure_ceilings(sl_engine *engine, sl_ceilings *out, sl_error *err);

/* A CUDA device, 0 being the first. Errors: SL_ERR_UNSUPPORTED (a build without CUDA, no driver, no
 * such device, too old a device). */
typedef struct sl_device_info {
    char name[128];
    int capability_major, capability_minor, n_multiprocessors;
    size_t memory_total, memory_free;
} sl_device_info;
sl_status sl_cuda_device_info(int device, sl_device_info *out, sl_error *err);

/* ---- models of random weights, and what runs cost ---- */

/* A model in one of the family's shapes with random weights, made in memory: for measuring. It has
 * no tokenizer, is the same for the same members, and its activations and logits are finite and of
 * the usual size. */
typedef struct sl_synthetic {
    const char *shape; /* "0.8b", "2b", ...: see sl_synthetic_shape_name */
    const char *type;  /* "q8_0", "q4_k_m", ...: see sl_synthetic_type_name */
    uint32_t n_layers; /* only the first n; 0 = all */
    uint64_t seed;
    uint64_t reserved[4];
} sl_synthetic;

/* The names that there are, in order; NULL past the last. */
const char *sl_synthetic_shape_name(size_t i);
const char *sl_synthetic_type_name(size_t i);

/* sl_engine_open for such a model. With SL_OPEN_HEADERS no memory is taken for its matrices.
 * Errors: SL_ERR_ARGUMENT (names, layers), SL_ERR_MEMORY. */
sl_status sl_engine_open_synthetic(const sl_synthetic *model, const sl_engine_params *params,
                                   sl_engine **out, sl_error *err);

/* The same weights as a GGUF file that other programs can load too, with a vocabulary of single
 * bytes and unused tokens; complete or not at all. progress may be NULL; it is called with bytes
 * written and stops the saving by returning true. Errors: those, SL_ERR_IO, SL_ERR_CANCELLED. */
sl_status sl_synthetic_save(const sl_synthetic *model, const char *path,
                            bool (*progress)(void *context, size_t done, size_t total),
                            void *progress_context, sl_error *err);

/* A run of the main plan: so many sequences, each with n_rows rows from position pos on. */
typedef struct sl_run_shape {
    uint32_t n_sequences, n_rows, pos;
    uint32_t n_logits; /* rows of all sequences whose logits are computed */
    uint64_t reserved[2];
} sl_run_shape;

/* What it has to read and compute at least, as the plan says. A multiplication with its addition is
 * one in macs and two in flops. */
typedef struct sl_run_cost {
    double weight_bytes; /* each weight that is used, once */
    double state_bytes;  /* recurrent states, tapes and KV */
    double int8_macs;    /* of quantised matrices */
    double float_flops;  /* everything else */
    uint64_t reserved[4];
} sl_run_cost;

/* n_rows may exceed what the engine evaluates in one piece: the pieces are then counted one by one.
 * At every level of opening. Errors: SL_ERR_ARGUMENT (no rows), SL_ERR_MEMORY. */
sl_status sl_engine_run_cost(const sl_engine *engine, const sl_run_shape *run, sl_run_cost *out,
                             sl_error *err);

#endif

#ifdef __cplusplus
}
#endif
#endif
