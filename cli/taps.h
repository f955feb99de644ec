/* Collects the values that a plan shows to observers: one float array [rows][columns] per name, in
 * the order in which they first appear. */
#ifndef SL_CLI_TAPS_H
#define SL_CLI_TAPS_H

#include "sluice.h"

typedef struct sl_tap_values {
    char *name;
    uint32_t n_cols;
    size_t n_rows; /* collected so far */
    float *values; /* room for all rows */
} sl_tap_values;

typedef struct sl_taps {
    size_t n_rows; /* of every value, known beforehand */
    sl_tap_values *items;
    size_t n, capacity;
    sl_status status; /* the callback cannot return it */
    sl_error err;
} sl_taps;

void sl_taps_init(sl_taps *taps, size_t n_rows);
void sl_taps_free(sl_taps *taps);

/* An sl_tap_fn; the context is the sl_taps. */
void sl_taps_collect(void *context, const char *name, const float *rows, uint32_t n_rows,
                     uint32_t n_cols);

/* After the evaluation: reports what went wrong in the callback, and brings the value heads of
 * gated delta layers into one order (grouped, as in Hugging Face models), so that a GGUF file and
 * the folder it was made from give the same arrays. */
sl_status sl_taps_finish(sl_taps *taps, const sl_model_info *model, sl_error *err);

/* NULL when nothing of that name was seen. */
const sl_tap_values *sl_taps_find(const sl_taps *taps, const char *name);

#endif
