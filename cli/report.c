/* Writes what there is to say about an answer, for people and as JSON. */
#include "report.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "generate.h"
#include "out.h"

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

/* The members text, thinking and tool_calls. */
static void json_answer(sl_json_out *json, const sl_answer *answer)
{
    sl_json_text(json, "text", answer->text.data, answer->text.n_bytes);
    if (answer->thought)
        sl_json_text(json, "thinking", answer->thinking_text.data, answer->thinking_text.n_bytes);
    else
        sl_json_null(json, "thinking");
    sl_json_open(json, "tool_calls", '[');
    for (size_t i = 0; i < json_array_size(answer->calls); i++) {
        static const char *const keys[] = {"name", "arguments"};
        sl_json_open(json, NULL, '{');
        for (size_t k = 0; k < SL_COUNTOF(keys); k++) {
            const json_t *value = json_object_get(json_array_get(answer->calls, i), keys[k]);
            sl_json_text(json, keys[k], json_string_value(value), json_string_length(value));
        }
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
}

int sl_report_json(const sl_report *report)
{
    const sl_generate_result *generated = report->generated;
    const sl_sampling *sampling = report->sampling;
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    json_answer(&json, report->answer);
    sl_json_string(&json, "finish_reason", sl_finish_word(generated->finish));
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
    sl_json_double(&json, "prompt_ms", milliseconds(generated->prompt_ns));
    sl_json_double(&json, "prompt_per_second", per_second(report->n_prompt, generated->prompt_ns));
    sl_json_double(&json, "answer_ms", milliseconds(generated->answer_ns));
    sl_json_double(&json, "answer_per_second",
                   per_second(generated->n_steps, generated->answer_ns));
    sl_json_close(&json, '}');
    sl_json_double(&json, "peak_memory_mib", peak_mib());
    sl_json_close(&json, '}');
    return sl_json_finish(&json);
}

void sl_report_settings(const sl_report *report)
{
    sl_model_info model;
    sl_engine_model_info(report->engine, &model);
    sl_err_printf("model     %s, %.1f M parameters, mostly %s, %u threads\n", model.arch,
                  (double)model.n_parameters / 1e6, model.main_type, model.n_threads);
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
    const sl_generate_result *generated = report->generated;
    sl_err_printf("\nload      %.1f ms\n", milliseconds(report->load_ns));
    sl_err_printf("prompt    %zu tokens in %.1f ms, %.1f tokens/s\n", report->n_prompt,
                  milliseconds(generated->prompt_ns),
                  per_second(report->n_prompt, generated->prompt_ns));
    sl_err_printf("answer    %zu tokens in %.1f ms, %.1f tokens/s (%s)\n", generated->n_tokens,
                  milliseconds(generated->answer_ns),
                  per_second(generated->n_steps, generated->answer_ns),
                  sl_finish_word(generated->finish));
    sl_err_printf("memory    %.1f MiB at most (%.1f MiB set aside for the context)\n", peak_mib(),
                  (double)report->state_bytes / (1 << 20));
}
