/* Owns copies of layer values. Their number is bounded by the ops of a plan. */
#include "taps.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

void sl_taps_init(sl_taps *taps, size_t n_rows)
{
    *taps = (sl_taps){.n_rows = n_rows};
}

void sl_taps_free(sl_taps *taps)
{
    for (size_t i = 0; i < taps->n; i++) {
        sl_free(taps->items[i].name);
        sl_free(taps->items[i].values);
    }
    sl_free(taps->items);
    *taps = (sl_taps){0};
}

static sl_tap_values *find(const sl_taps *taps, const char *name)
{
    for (size_t i = 0; i < taps->n; i++) {
        if (strcmp(taps->items[i].name, name) == 0)
            return &taps->items[i];
    }
    return NULL;
}

const sl_tap_values *sl_taps_find(const sl_taps *taps, const char *name)
{
    return find(taps, name);
}

static sl_status add(sl_taps *taps, const char *name, uint32_t n_cols, sl_error *err)
{
    size_t n_values;
    if (!sl_size_mul(taps->n_rows, n_cols, &n_values))
        return sl_fail(err, SL_ERR_LIMIT, "too many values at '%s'", name);
    if (taps->n == taps->capacity) {
        const size_t capacity = taps->capacity > 0 ? 2 * taps->capacity : 64;
        sl_tap_values *items =
            sl_realloc(SL_MEM_GENERAL, taps->items, capacity * sizeof *taps->items);
        if (!items)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for layer values");
        taps->items = items;
        taps->capacity = capacity;
    }
    sl_tap_values item = {
        .name = sl_strndup(SL_MEM_GENERAL, name, strlen(name)),
        .n_cols = n_cols,
        .values = sl_alloc_array(SL_MEM_GENERAL, n_values, sizeof(float)),
    };
    if (!item.name || !item.values) {
        sl_free(item.name);
        sl_free(item.values);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the values of '%s'", name);
    }
    taps->items[taps->n++] = item;
    return SL_OK;
}

void sl_taps_collect(void *context, const char *name, const float *rows, uint32_t n_rows,
                     uint32_t n_cols)
{
    sl_taps *taps = context;
    if (taps->status == SL_OK && !find(taps, name))
        taps->status = add(taps, name, n_cols, &taps->err);
    if (taps->status != SL_OK)
        return;
    sl_tap_values *item = find(taps, name);
    if (item->n_cols != n_cols || n_rows > taps->n_rows - item->n_rows) {
        taps->status =
            sl_fail(&taps->err, SL_ERR_ARGUMENT, "'%s' has more values than tokens", name);
        return;
    }
    memcpy(item->values + item->n_rows * n_cols, rows, (size_t)n_rows * n_cols * sizeof *rows);
    item->n_rows += n_rows;
}

/* ---- the order of value heads ---- */

/* Puts the n_heads groups of `width` values in grouped order: head (key, r) from r * n_keys + key
 * to key * (n_heads / n_keys) + r. */
static void group_heads(float *row, float *scratch, size_t n_heads, size_t n_keys, size_t width)
{
    const size_t ratio = n_heads / n_keys;
    memcpy(scratch, row, n_heads * width * sizeof *row);
    for (size_t head = 0; head < n_heads; head++)
        memcpy(row + head * width, scratch + (head % ratio * n_keys + head / ratio) * width,
               width * sizeof *row);
}

/* Where the value heads lie in a row of this value: behind `offset` columns, `width` each. */
static bool value_heads(const sl_tap_values *item, const sl_model_info *model, size_t *offset,
                        size_t *width)
{
    const char *value = strrchr(item->name, '.');
    *offset = 0;
    *width = model->gdn_dim;
    if (!value)
        return false;
    if (strcmp(value, ".in_proj_qkv") == 0)
        *offset = (size_t)2 * model->gdn_key_heads * model->gdn_dim;
    else if (strcmp(value, ".in_proj_a") == 0 || strcmp(value, ".in_proj_b") == 0)
        *width = 1;
    else if (strcmp(value, ".in_proj_z") != 0)
        return false;
    return item->n_cols == *offset + *width * model->gdn_value_heads;
}

sl_status sl_taps_finish(sl_taps *taps, const sl_model_info *model, sl_error *err)
{
    if (taps->status != SL_OK) {
        if (err)
            *err = taps->err;
        return taps->status;
    }
    if (!model->value_heads_tiled)
        return SL_OK;
    float *scratch = sl_alloc_array(SL_MEM_GENERAL, (size_t)model->gdn_value_heads * model->gdn_dim,
                                    sizeof *scratch);
    if (!scratch)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for layer values");
    for (size_t i = 0; i < taps->n; i++) {
        size_t offset, width;
        const sl_tap_values *item = &taps->items[i];
        if (!value_heads(item, model, &offset, &width))
            continue;
        for (size_t row = 0; row < item->n_rows; row++)
            group_heads(item->values + row * item->n_cols + offset, scratch, model->gdn_value_heads,
                        model->gdn_key_heads, width);
    }
    sl_free(scratch);
    return SL_OK;
}
