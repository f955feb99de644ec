#include "fields.h"

#include <math.h>

sl_status sl_fields_parse(sl_str text, json_t **body, sl_fields *out, sl_error *err)
{
    SL_TRY(
        sl_json_parse(text.data, text.n_bytes, "the request", sl_json_limits_default(), body, err));
    if (!json_is_object(*body))
        return sl_fail(err, SL_ERR_ARGUMENT, "the request is no JSON object");
    out->object = *body;
    return SL_OK;
}

const json_t *sl_field(sl_fields *f, const char *name)
{
    f->param = name;
    const json_t *value = json_object_get(f->object, name);
    return json_is_null(value) ? NULL : value;
}

sl_status sl_field_refuse(const sl_fields *f, const char *expected, sl_error *err)
{
    return sl_fail(err, SL_ERR_ARGUMENT, "%s: expected %s", f->param, expected);
}

sl_status sl_field_bool(sl_fields *f, const char *name, bool *out, sl_error *err)
{
    const json_t *value = sl_field(f, name);
    if (!value)
        return SL_OK;
    if (!json_is_boolean(value))
        return sl_field_refuse(f, "true or false", err);
    *out = json_is_true(value);
    return SL_OK;
}

sl_status sl_field_uint(sl_fields *f, const char *name, uint64_t low, uint64_t high, uint64_t *out,
                        sl_error *err)
{
    const json_t *value = sl_field(f, name);
    if (!value)
        return SL_OK;
    const json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || (uint64_t)n < low || (uint64_t)n > high)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: expected a whole number from %llu to %llu", name,
                       (unsigned long long)low, (unsigned long long)high);
    *out = (uint64_t)n;
    return SL_OK;
}

sl_status sl_field_float(sl_fields *f, const char *name, double low, double high, float *out,
                         sl_error *err)
{
    const json_t *value = sl_field(f, name);
    if (!value)
        return SL_OK;
    const double x = json_number_value(value);
    if (!json_is_number(value) || !isfinite(x) || x < low || x > high)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: expected a number from %g to %g", name, low,
                       high);
    *out = (float)x;
    return SL_OK;
}

sl_status sl_field_text(sl_fields *f, const char *name, const char **out, sl_error *err)
{
    const json_t *value = sl_field(f, name);
    if (!value)
        return SL_OK;
    if (!sl_json_is_string(value))
        return sl_field_refuse(f, "a string", err);
    *out = json_string_value(value);
    return SL_OK;
}

sl_status sl_field_object(sl_fields *f, const char *name, const json_t **out, sl_error *err)
{
    const json_t *value = sl_field(f, name);
    if (!value)
        return SL_OK;
    if (!json_is_object(value))
        return sl_field_refuse(f, "an object", err);
    *out = value;
    return SL_OK;
}

sl_status sl_field_array(sl_fields *f, const char *name, const json_t **out, sl_error *err)
{
    const json_t *value = sl_field(f, name);
    if (!value)
        return SL_OK;
    if (!json_is_array(value))
        return sl_field_refuse(f, "an array", err);
    *out = value;
    return SL_OK;
}
