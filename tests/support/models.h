/* Small models and reference prompts for tests that need a whole engine. */
#ifndef SL_TESTS_MODELS_H
#define SL_TESTS_MODELS_H

#include "engine/engine.h"
#include "golden.h"

/* Where a reference model lies: "rand-r1" (a Hugging Face folder), "rand-r1-q8_0.gguf",
 * "tiny-q8_0.gguf". The result is static, valid until the next call. */
const char *sl_model_path(const char *name);

/* The demonstration model's Hugging Face folder, or NULL where it is not present. */
const char *sl_tiny_folder(void);

/* Opens an engine or fails the test. */
sl_engine *sl_test_engine(const char *path, unsigned n_threads, bool kv_f32);

/* Token ids of a reference prompt: set "tiny" or "rand", name "A", "B", "R", "M0", "M1". */
typedef struct sl_prompt {
    int32_t ids[1024];
    size_t n;
} sl_prompt;
sl_prompt sl_test_prompt(const char *set, const char *name);

/* Logits [n][vocab] of every position of a prompt, evaluated from an empty state in pieces of
 * max_rows (0 = the engine's). Free with sl_free. */
float *sl_test_logits(sl_engine *engine, const int32_t *tokens, size_t n, uint32_t max_rows);

#endif
