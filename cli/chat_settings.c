/* Owns the texts of changed settings, and which options may change in a chat. */
#include "chat_settings.h"

#include <stdio.h>
#include <string.h>

static sl_status no_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for the settings");
}

static bool may_change(const sl_opt *opt)
{
    const size_t sampling = offsetof(sl_run_options, sampling);
    return (opt->offset >= sampling && opt->offset < sampling + sizeof(sl_sampling_options)) ||
           opt->offset == offsetof(sl_run_options, max_tokens);
}

static const sl_opt *find(const char *name)
{
    for (size_t i = 0; i < SL_N_RUN_OPTS; i++) {
        if (may_change(&sl_run_opts[i]) && strcmp(sl_run_opts[i].name, name) == 0)
            return &sl_run_opts[i];
    }
    return NULL;
}

static sl_status unknown(const char *name, sl_error *err)
{
    const char *names[SL_N_RUN_OPTS];
    size_t n = 0;
    for (size_t i = 0; i < SL_N_RUN_OPTS; i++) {
        if (may_change(&sl_run_opts[i]))
            names[n++] = sl_run_opts[i].name;
    }
    const char *near = sl_nearest_name(name, names, n);
    if (near)
        return sl_fail(err, SL_ERR_ARGUMENT, "there is no setting '%s'; did you mean '%s'?", name,
                       near);
    return sl_fail(err, SL_ERR_ARGUMENT, "there is no setting '%s'; /set lists them", name);
}

/* ---- from options to texts ---- */

/* Zero-initialised options that an sl_run_options begins with. */
static sl_run_options no_options(void)
{
    return (sl_run_options){.think = -1};
}

static sl_status take_given(sl_settings *settings, const sl_opt *opt, const sl_run_options *given,
                            sl_error *err)
{
    char text[32];
    const void *member = (const char *)given + opt->offset;
    const sl_opt_count *count = member;
    const sl_opt_number *number = member;
    const sl_opt_list *list = member;
    switch (opt->type) {
    case SL_OPT_COUNT:
        snprintf(text, sizeof text, "%llu", (unsigned long long)count->value);
        return count->set ? sl_settings_set(settings, opt->name, text, err) : SL_OK;
    case SL_OPT_NUMBER:
        snprintf(text, sizeof text, "%.15g", number->value);
        return number->set ? sl_settings_set(settings, opt->name, text, err) : SL_OK;
    case SL_OPT_LIST:
        for (size_t i = 0; i < list->n; i++)
            SL_TRY(sl_settings_set(settings, opt->name, list->items[i], err));
        return SL_OK;
    default:
        return *(const bool *)member ? sl_settings_set(settings, opt->name, "on", err) : SL_OK;
    }
}

sl_status sl_settings_create(sl_settings *settings, const sl_run_options *given, sl_error *err)
{
    settings->values = json_object();
    if (!settings->values)
        return no_memory(err);
    sl_status status = SL_OK;
    for (size_t i = 0; i < SL_N_RUN_OPTS && status == SL_OK; i++) {
        if (may_change(&sl_run_opts[i]))
            status = take_given(settings, &sl_run_opts[i], given, err);
    }
    if (status != SL_OK)
        sl_settings_free(settings);
    return status;
}

sl_status sl_settings_copy(const sl_settings *from, sl_settings *to, sl_error *err)
{
    to->values = json_deep_copy(from->values);
    return to->values ? SL_OK : no_memory(err);
}

void sl_settings_free(sl_settings *settings)
{
    json_decref(settings->values);
    settings->values = NULL;
}

/* ---- changing ---- */

static sl_status add_text(sl_settings *settings, const sl_opt *opt, const char *text, sl_error *err)
{
    json_t *list = json_object_get(settings->values, opt->name);
    if (opt->type != SL_OPT_LIST)
        return json_object_set_new(settings->values, opt->name, json_string(text)) == 0
                   ? SL_OK
                   : no_memory(err);
    if (json_array_size(list) == SL_OPT_MAX_LIST)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s may be given %d times", opt->name,
                       SL_OPT_MAX_LIST);
    if (!list && json_object_set_new(settings->values, opt->name, list = json_array()) != 0)
        return no_memory(err);
    return json_array_append_new(list, json_string(text)) == 0 ? SL_OK : no_memory(err);
}

sl_status sl_settings_set(sl_settings *settings, const char *name, const char *text, sl_error *err)
{
    const sl_opt *opt = find(name);
    if (!opt)
        return unknown(name, err);
    if (!text) {
        json_object_del(settings->values, name);
        return SL_OK;
    }
    sl_run_options trial = no_options();
    SL_TRY(sl_opt_set(opt, name, text, &trial, err));
    SL_TRY(add_text(settings, opt, text, err));
    if (strcmp(name, "temp") == 0)
        json_object_del(settings->values, "greedy");
    if (trial.sampling.greedy)
        json_object_del(settings->values, "temp");
    return SL_OK;
}

void sl_settings_options(const sl_settings *settings, sl_run_options *out)
{
    *out = no_options();
    for (size_t i = 0; i < SL_N_RUN_OPTS; i++) {
        const sl_opt *opt = &sl_run_opts[i];
        const json_t *value = may_change(opt) ? json_object_get(settings->values, opt->name) : NULL;
        /* The texts were accepted before. */
        if (json_is_string(value))
            (void)sl_opt_set(opt, "--", json_string_value(value), out, NULL);
        for (size_t k = 0; k < json_array_size(value); k++)
            (void)sl_opt_set(opt, "--", json_string_value(json_array_get(value, k)), out, NULL);
    }
}

/* ---- files ---- */

sl_status sl_settings_from_json(const json_t *values, const char *name, sl_settings *out,
                                sl_error *err)
{
    if (!json_is_object(values))
        return sl_fail(err, SL_ERR_FORMAT, "%s holds no settings", name);
    out->values = json_object();
    if (!out->values)
        return no_memory(err);
    const char *key;
    json_t *value;
    sl_status status = SL_OK;
    json_object_foreach((json_t *)(uintptr_t)values, key, value)
    {
        const size_t n = json_is_array(value) ? json_array_size(value) : 1;
        for (size_t i = 0; i < n && status == SL_OK; i++) {
            const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
            if (!json_is_string(text))
                status = sl_fail(err, SL_ERR_FORMAT, "%s: the setting '%s' is no text", name, key);
            else
                status = sl_settings_set(out, key, json_string_value(text), err);
        }
        if (status != SL_OK)
            break;
    }
    if (status != SL_OK)
        sl_settings_free(out);
    return status;
}

/* ---- the list ---- */

static const struct {
    const char *name;
    size_t offset; /* in sl_sampling */
    bool whole;    /* uint32_t, else float */
} chosen_by_model[] = {
    {"temp", offsetof(sl_sampling, temperature), false},
    {"top-k", offsetof(sl_sampling, top_k), true},
    {"top-p", offsetof(sl_sampling, top_p), false},
    {"min-p", offsetof(sl_sampling, min_p), false},
    {"typical", offsetof(sl_sampling, typical_p), false},
    {"presence-penalty", offsetof(sl_sampling, presence_penalty), false},
    {"frequency-penalty", offsetof(sl_sampling, frequency_penalty), false},
    {"repetition-penalty", offsetof(sl_sampling, repetition_penalty), false},
    {"penalty-window", offsetof(sl_sampling, penalty_window), true},
    {"dry-multiplier", offsetof(sl_sampling, dry_multiplier), false},
};

/* The value of a setting that is not set: from the model, or nothing. */
static sl_status append_default(sl_buf *out, const char *name, const sl_sampling *chosen,
                                sl_error *err)
{
    for (size_t i = 0; i < SL_COUNTOF(chosen_by_model); i++) {
        if (strcmp(chosen_by_model[i].name, name) != 0)
            continue;
        const void *member = (const char *)chosen + chosen_by_model[i].offset;
        if (chosen_by_model[i].whole)
            return sl_buf_printf(out, err, "%u (default)", *(const uint32_t *)member);
        return sl_buf_printf(out, err, "%g (default)", (double)*(const float *)member);
    }
    return sl_buf_append_str(out, "not set", err);
}

sl_status sl_settings_list(const sl_settings *settings, const sl_sampling *chosen, sl_buf *out,
                           sl_error *err)
{
    for (size_t i = 0; i < SL_N_RUN_OPTS; i++) {
        const char *name = sl_run_opts[i].name;
        if (!may_change(&sl_run_opts[i]))
            continue;
        const json_t *value = json_object_get(settings->values, name);
        SL_TRY(sl_buf_printf(out, err, "  %-20s ", name));
        if (!value)
            SL_TRY(append_default(out, name, chosen, err));
        else if (json_is_string(value))
            SL_TRY(sl_buf_append_str(out, json_string_value(value), err));
        for (size_t k = 0; k < json_array_size(value); k++) {
            const json_t *text = json_array_get(value, k);
            SL_TRY(sl_buf_append_str(out, k > 0 ? ", " : "", err));
            SL_TRY(
                sl_json_append_string(out, json_string_value(text), json_string_length(text), err));
        }
        SL_TRY(sl_buf_append_char(out, '\n', err));
    }
    return SL_OK;
}
