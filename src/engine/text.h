/* The text side of a loaded model: tokenizer, chat template, stop tokens, from whatever container
 * the model came in. Usable without loading the weights (`sluice tokenize`). */
#ifndef SL_ENGINE_TEXT_H
#define SL_ENGINE_TEXT_H

#include "format/weights.h"
#include "model/config.h"
#include "text/template.h"

typedef struct sl_text sl_text;

/* Errors: SL_ERR_FORMAT / SL_ERR_UNSUPPORTED naming key or file. A missing or unusable template is
 * no error here; sl_text_render reports it. */
sl_status sl_text_open(const sl_weights *weights, const sl_config *config, sl_text **out,
                       sl_error *err);
void sl_text_close(sl_text *text);

const sl_tokenizer *sl_text_tokenizer(const sl_text *text);

/* Tokens that end an answer: the file's end tokens and <|im_end|>, <|endoftext|> where they exist.
 */
bool sl_text_is_stop(const sl_text *text, int32_t token);

/* False when rendering would say why not. */
bool sl_text_has_template(const sl_text *text);

/* The tokens at which loop breaking ends by default (engine/breakers.h), as a set. */
const uint32_t *sl_text_breakers(const sl_text *text);

/* One bit per row of the vocabulary, as sl_sampler_set_banned takes them: tokens that must never be
 * sampled (padding rows). */
const uint32_t *sl_text_banned(const sl_text *text);

/* Normalises the messages, renders the template, encodes the result. prompt (may be NULL) receives
 * the rendered text. n_replaced counts invalid UTF-8 sequences that were read as U+FFFD. */
sl_status sl_text_render(const sl_text *text, const sl_template_input *input, sl_ids *ids,
                         sl_marked_text *prompt, size_t *n_replaced, sl_error *err);

#endif
