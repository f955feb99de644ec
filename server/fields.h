/* The fields of a request's JSON object, typed and within bounds. Whatever is refused leaves the
 * field's name behind, for the error's `param`. null counts as missing. */
#ifndef SL_SERVER_FIELDS_H
#define SL_SERVER_FIELDS_H

#include "base/json.h"

typedef struct sl_fields {
    const json_t *object;
    const char *param; /* the field read last */
} sl_fields;

/* Reads a request's body, one JSON object, which *body then owns. */
sl_status sl_fields_parse(sl_str text, json_t **body, sl_fields *out, sl_error *err);

/* The member, or NULL; null is NULL too. */
const json_t *sl_field(sl_fields *f, const char *name);
/* Missing ones leave *out as it is. Errors: SL_ERR_ARGUMENT (type, bounds). */
sl_status sl_field_bool(sl_fields *f, const char *name, bool *out, sl_error *err);
sl_status sl_field_uint(sl_fields *f, const char *name, uint64_t low, uint64_t high, uint64_t *out,
                        sl_error *err);
sl_status sl_field_float(sl_fields *f, const char *name, double low, double high, float *out,
                         sl_error *err);
/* *out borrows from the object. */
sl_status sl_field_text(sl_fields *f, const char *name, const char **out, sl_error *err);
sl_status sl_field_object(sl_fields *f, const char *name, const json_t **out, sl_error *err);
sl_status sl_field_array(sl_fields *f, const char *name, const json_t **out, sl_error *err);
/* A wrong type of the field read last. */
sl_status sl_field_refuse(const sl_fields *f, const char *expected, sl_error *err);

#endif
