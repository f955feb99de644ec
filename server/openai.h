/* OpenAI's API: what its parts share. */
#ifndef SL_SERVER_OPENAI_H
#define SL_SERVER_OPENAI_H

#include "call.h"

/* The fields of sampling and length that chat and completions have in common, and those that
 * servers of this field add: top_k, min_p, typical_p, repetition_penalty. */
sl_status sl_openai_read_common(sl_call *call, sl_error *err);

/* Chunks and answers of both: id, object, created, model and fingerprint of an object just
 * opened. */
void sl_openai_write_head(sl_json_out *json, const sl_call *call, const char *prefix,
                          const char *object);
void sl_openai_write_usage(sl_json_out *json, const sl_call *call);
/* "stop", "length", "tool_calls" */
const char *sl_openai_finish(const sl_generate_result *result);
/* One token's place in logprobs.content. */
void sl_openai_write_logprob(sl_json_out *json, const sl_tokenizer *tokenizer,
                             const sl_job_event *event);

extern const sl_call_format sl_openai_chat;

#endif
