/* Writes what there is to say about an answer, for people and as JSON. */
#include "report.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "model.h"
#include "out.h"
#include "text/outparse.h"

/* To three decimals: more is noise. */
static double rounded(double value)
{
    return (double)(uint64_t)(value * 1000 + 0.5) / 1000;
}

static double per_second(size_t n, uint64_t ns)
{
    return ns > 0 ? rounded((double)n * 1e9 / (double)ns) : 0;
}

static double milliseconds(uint64_t ns)
{
    return rounded((double)ns / 1e6);
}

/* 0.95 for 0.95f. */
static double as_written(float value)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)value);
    return strtod(text, NULL);
}

static double peak_mib(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? rounded((double)usage.ru_maxrss / 1024) : 0;
}

/* Settings that are 0 unless asked for or recommended by the file. */
static const struct setting {
    const char *key, *name;
    size_t offset;
} settings[] = {
    {"typical_p", "typical", offsetof(sl_sampling, typical_p)},
    {"presence_penalty", "presence penalty", offsetof(sl_sampling, presence_penalty)},
    {"frequency_penalty", "frequency penalty", offsetof(sl_sampling, frequency_penalty)},
    {"repetition_penalty", "repetition penalty", offsetof(sl_sampling, repetition_penalty)},
    {"dry_multiplier", "loop breaking", offsetof(sl_sampling, dry_multiplier)},
};

static float value_of(const sl_sampling *sampling, const struct setting *setting)
{
    return *(const float *)((const char *)sampling + setting->offset);
}

/* Puts thinking and text together again as the model wrote them, and takes the calls out. */
static sl_status take_calls(const sl_report *report, json_t **parts, sl_error *err)
{
    const sl_answer *answer = report->answer;
    const sl_buf *thinking = &answer->thinking_text, *text = &answer->text;
    const sl_outparse_options options = {.tools = report->tools,
                                         .starts_in_thinking = answer->thought};
    sl_buf whole;
    sl_buf_init(&whole, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_status status;
    SL_CHECK(sl_buf_append(&whole, thinking->data, thinking->n_bytes, err));
    if (answer->thought && !answer->thinking)
        SL_CHECK(sl_buf_append_str(&whole, "</think>", err));
    SL_CHECK(sl_buf_append(&whole, text->data, text->n_bytes, err));
    status = sl_outparse_all(whole.data, whole.n_bytes, &options, parts, err);

done:
    sl_buf_free(&whole);
    return status;
}

static void json_member(sl_json_out *json, const json_t *object, const char *key, const char *name)
{
    const json_t *value = json_object_get(object, key);
    sl_json_text(json, name, json_string_value(value), json_string_length(value));
}

/* The members text, thinking and tool_calls. */
static sl_status json_answer(sl_json_out *json, const sl_report *report, sl_error *err)
{
    const sl_answer *answer = report->answer;
    json_t *parts = NULL;
    if (report->tools) {
        SL_TRY(take_calls(report, &parts, err));
        json_member(json, parts, "content", "text");
    } else {
        sl_json_text(json, "text", answer->text.data, answer->text.n_bytes);
    }
    if (!answer->thought)
        sl_json_null(json, "thinking");
    else if (parts)
        json_member(json, parts, "reasoning_content", "thinking");
    else
        sl_json_text(json, "thinking", answer->thinking_text.data, answer->thinking_text.n_bytes);
    const json_t *calls = json_object_get(parts, "tool_calls");
    sl_json_open(json, "tool_calls", '[');
    for (size_t i = 0; i < json_array_size(calls); i++) {
        sl_json_open(json, NULL, '{');
        json_member(json, json_array_get(calls, i), "name", "name");
        json_member(json, json_array_get(calls, i), "arguments", "arguments");
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
    json_decref(parts);
    return SL_OK;
}

int sl_report_json(const sl_report *report)
{
    const sl_generated *generated = report->generated;
    const sl_sampling *sampling = report->sampling;
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_error err;
    if (json_answer(&json, report, &err) != SL_OK) {
        sl_json_out_free(&json);
        return sl_fail_with(&err);
    }
    sl_json_string(&json, "finish_reason", sl_finish_name(generated->finish));
    sl_json_uint(&json, "prompt_tokens", report->n_prompt);
    sl_json_uint(&json, "completion_tokens", generated->n_tokens);
    sl_json_uint(&json, "context", report->context);
    sl_json_open(&json, "sampling", '{');
    sl_json_double(&json, "temperature", as_written(sampling->temperature));
    sl_json_uint(&json, "top_k", sampling->top_k);
    sl_json_double(&json, "top_p", as_written(sampling->top_p));
    sl_json_double(&json, "min_p", as_written(sampling->min_p));
    for (size_t i = 0; i < SL_COUNTOF(settings); i++)
        sl_json_double(&json, settings[i].key, as_written(value_of(sampling, &settings[i])));
    sl_json_uint(&json, "penalty_window", sampling->penalty_window);
    sl_json_uint(&json, "seed", sampling->seed);
    sl_json_close(&json, '}');
    sl_json_open(&json, "timings", '{');
    sl_json_double(&json, "load_ms", milliseconds(report->load_ns));
    sl_json_double(&json, "prompt_ms", milliseconds(generated->prefill_ns));
    sl_json_double(&json, "prompt_per_second", per_second(report->n_prompt, generated->prefill_ns));
    sl_json_double(&json, "answer_ms", milliseconds(generated->decode_ns));
    sl_json_double(&json, "answer_per_second",
                   per_second(generated->n_steps, generated->decode_ns));
    sl_json_close(&json, '}');
    sl_json_double(&json, "peak_memory_mib", peak_mib());
    sl_json_close(&json, '}');
    return sl_json_finish(&json);
}

void sl_report_settings(const sl_report *report)
{
    const sl_weights *weights = sl_engine_weights(report->engine);
    sl_err_printf("model     %s, %.1f M parameters, mostly %s, %u threads\n",
                  sl_arch_name(sl_engine_config(report->engine)->arch),
                  (double)sl_model_parameters(weights) / 1e6,
                  sl_dtype_get(sl_model_main_type(weights))->name,
                  sl_engine_get_params(report->engine)->n_threads);
    const sl_sampling *sampling = report->sampling;
    if (sampling->temperature > 0)
        sl_err_printf("sampling  temperature %g, top-k %u, top-p %g, min-p %g, seed %llu\n",
                      (double)sampling->temperature, sampling->top_k, (double)sampling->top_p,
                      (double)sampling->min_p, (unsigned long long)sampling->seed);
    else
        sl_err_printf("sampling  greedy\n");
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        if (value_of(sampling, &settings[i]) != 0)
            sl_err_printf("          %s %g\n", settings[i].name,
                          (double)value_of(sampling, &settings[i]));
    }
    sl_err_printf("context   %u tokens\n", report->context);
}

void sl_report_times(const sl_report *report)
{
    const sl_generated *generated = report->generated;
    sl_err_printf("\nload      %.1f ms\n", milliseconds(report->load_ns));
    sl_err_printf("prompt    %zu tokens in %.1f ms, %.1f tokens/s\n", report->n_prompt,
                  milliseconds(generated->prefill_ns),
                  per_second(report->n_prompt, generated->prefill_ns));
    sl_err_printf("answer    %zu tokens in %.1f ms, %.1f tokens/s (%s)\n", generated->n_tokens,
                  milliseconds(generated->decode_ns),
                  per_second(generated->n_steps, generated->decode_ns),
                  sl_finish_name(generated->finish));
    sl_err_printf("memory    %.1f MiB at most (%.1f MiB set aside for the context)\n", peak_mib(),
                  (double)generated->state_bytes / (1 << 20));
}
