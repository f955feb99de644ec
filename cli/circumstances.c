#include "circumstances.h"

#include <time.h>

#include "base/cpus.h"

const char *sl_time_shown(int64_t seconds, char text[SL_TIME_BYTES])
{
    const time_t when = (time_t)seconds;
    struct tm parts;
    if (!gmtime_r(&when, &parts) ||
        strftime(text, SL_TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        text[0] = '\0';
    return text;
}

void sl_json_program(sl_json_out *json, const char *program, int64_t seconds)
{
    char text[SL_TIME_BYTES];
    sl_json_string(json, "program", program);
    sl_json_string(json, "version", sl_version());
    sl_json_string(json, "time", sl_time_shown(seconds, text));
}

void sl_json_model(sl_json_out *json, const sl_model_info *model, bool random_weights)
{
    sl_json_open(json, "model", '{');
    sl_json_string(json, "path", model->path);
    sl_json_string(json, "name", model->name);
    sl_json_bool(json, "random_weights", random_weights);
    sl_json_string(json, "type", model->main_type);
    sl_json_uint(json, "parameters", model->n_parameters);
    sl_json_uint(json, "weight_bytes", model->n_weight_bytes);
    sl_json_uint(json, "layers", model->n_layers);
    sl_json_close(json, '}');
}

void sl_json_machine(sl_json_out *json, const sl_machine *machine, const sl_machine_notes *doubts)
{
    sl_json_open(json, "machine", '{');
    sl_json_string(json, "cpu", machine->cpu);
    sl_json_uint(json, "processors", machine->n_online);
    sl_json_uint(json, "usable", sl_cpus_usable());
    if (machine->load < 0)
        sl_json_null(json, "load");
    else
        sl_json_double(json, "load", machine->load);
    sl_json_string(json, "governor", machine->governor);
    sl_json_bool(json, "battery", machine->on_battery);
    sl_json_open(json, "doubts", '[');
    for (size_t i = 0; i < doubts->n; i++)
        sl_json_string(json, NULL, doubts->texts[i]);
    sl_json_close(json, ']');
    sl_json_close(json, '}');
}

void sl_json_computing(sl_json_out *json, const sl_model_info *model)
{
    sl_json_uint(json, "threads", model->n_threads);
    sl_json_string(json, "isa", model->isa);
    sl_json_string(json, "device", model->device);
    sl_json_string(json, "kv", model->kv_f32 ? "f32" : "f16");
    sl_json_uint(json, "prefill_chunk", model->max_rows);
}

sl_status sl_append_doubts(const sl_machine_notes *doubts, sl_buf *out, sl_error *err)
{
    for (size_t i = 0; i < doubts->n; i++)
        SL_TRY(sl_buf_printf(out, err, "doubtful  %s\n", doubts->texts[i]));
    return SL_OK;
}
