/* Owns the mapped reference file and the prompts it needs. */
#include "references.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"

enum { MAX_PROMPTS = 32, PROMPTS_LIMIT = 64 << 20 };

struct sl_references {
    const char *path; /* borrowed */
    sl_arrays *file;
    json_t *prompt_file; /* owns the names of prompts */
    sl_reference *items;
    size_t n_items;
    const char **skipped;
    size_t n_skipped;
    sl_reference_prompt prompts[MAX_PROMPTS];
    size_t n_prompts;
};

/* ---- names ---- */

/* Reads digits at *s into *n and moves *s behind them. */
static bool read_digits(const char **s, size_t *n)
{
    if (**s < '0' || **s > '9')
        return false;
    char *end;
    *n = (size_t)strtoull(*s, &end, 10);
    *s = end;
    return true;
}

static bool parse_layer_name(const char *name)
{
    size_t layer;
    if (strcmp(name, "embed") == 0 || strcmp(name, "final_norm") == 0)
        return true;
    if (*name++ != 'L')
        return false;
    return read_digits(&name, &layer) && name[0] == '.' && name[1] != '\0';
}

bool sl_reference_parse_name(const char *name, sl_reference_name *out)
{
    *out = (sl_reference_name){0};
    if (strcmp(name, "logits") == 0) {
        out->is_logits = out->last = true;
        return true;
    }
    if (parse_layer_name(name)) {
        out->whole = true;
        return true;
    }
    const size_t n_prompt = strcspn(name, ".");
    if (name[n_prompt] != '.' || n_prompt == 0 || n_prompt >= sizeof out->prompt)
        return false;
    memcpy(out->prompt, name, n_prompt);
    out->is_logits = true;
    const char *rest = name + n_prompt + 1;
    if (strcmp(rest, "all") == 0) {
        out->whole = true;
        return true;
    }
    if (strncmp(rest, "first", 5) == 0) {
        rest += 5;
        return read_digits(&rest, &out->n_rows) && *rest == '\0';
    }
    if (!read_digits(&rest, &out->n_prefix) || strncmp(rest, ".last", 5) != 0)
        return false;
    rest += 5;
    out->last = true;
    return read_digits(&rest, &out->n_rows) && *rest == '\0';
}

/* ---- prompts ---- */

static sl_status read_own_tokens(sl_references *references, size_t n_vocab, sl_error *err)
{
    for (size_t i = 0; i < sl_arrays_count(references->file); i++) {
        const sl_array array = sl_arrays_at(references->file, i);
        if (strcmp(array.name, "tokens") != 0 || array.type != SL_ARRAY_I32)
            continue;
        sl_reference_prompt *prompt = &references->prompts[references->n_prompts++];
        prompt->name = array.name;
        const size_t n = array.n_dims == 1 ? array.shape[0] : 0;
        for (size_t t = 0; t < n; t++) {
            int32_t id;
            memcpy(&id, (const uint8_t *)array.data + t * sizeof id, sizeof id);
            if (id < 0 || (size_t)id >= n_vocab)
                return sl_fail(err, SL_ERR_ARGUMENT,
                               "%s: token %d is not in the model's vocabulary of %zu",
                               references->path, id, n_vocab);
            SL_TRY(sl_ids_push(&prompt->ids, id, err));
        }
    }
    return SL_OK;
}

/* The largest id of a set, or -1 when something in it is not an id. */
static json_int_t largest_id(json_t *set)
{
    json_int_t largest = 0;
    const char *name;
    json_t *ids, *id;
    size_t i;
    if (!json_is_object(set))
        return -1;
    json_object_foreach(set, name, ids)
    {
        json_array_foreach(ids, i, id)
        {
            if (!json_is_integer(id) || json_integer_value(id) < 0)
                return -1;
            if (json_integer_value(id) > largest)
                largest = json_integer_value(id);
        }
    }
    return largest;
}

static json_t *choose_set(json_t *sets, const char *wanted, size_t n_vocab)
{
    json_t *best = NULL;
    json_int_t best_id = -1;
    const char *name;
    json_t *set;
    if (wanted)
        return json_object_get(sets, wanted);
    json_object_foreach(sets, name, set)
    {
        const json_int_t id = largest_id(set);
        if (id > best_id && (size_t)id < n_vocab) {
            best = set;
            best_id = id;
        }
    }
    return best;
}

/* "DIR/prompts.json" for "DIR/golden.safetensors". */
static char *beside(const char *path)
{
    static const char name[] = "prompts.json";
    const char *slash = strrchr(path, '/');
    const size_t n_dir = slash ? (size_t)(slash - path) + 1 : 0;
    char *result = sl_alloc(SL_MEM_GENERAL, n_dir + sizeof name);
    if (result) {
        memcpy(result, path, n_dir);
        memcpy(result + n_dir, name, sizeof name);
    }
    return result;
}

static sl_status add_prompts(sl_references *references, json_t *set, size_t n_vocab,
                             const char *path, sl_error *err)
{
    const char *name;
    json_t *ids, *id;
    size_t i;
    json_object_foreach(set, name, ids)
    {
        if (references->n_prompts == MAX_PROMPTS)
            return sl_fail(err, SL_ERR_LIMIT, "%s: more than %d prompts", path, MAX_PROMPTS);
        sl_reference_prompt *prompt = &references->prompts[references->n_prompts++];
        prompt->name = name;
        json_array_foreach(ids, i, id)
        {
            const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
            if (value < 0 || (size_t)value >= n_vocab)
                return sl_fail(err, SL_ERR_ARGUMENT,
                               "%s: prompt %s holds an id outside the model's vocabulary of %zu",
                               path, name, n_vocab);
            SL_TRY(sl_ids_push(&prompt->ids, (int32_t)value, err));
        }
    }
    return SL_OK;
}

static sl_status read_prompts(sl_references *references, const char *path, const char *set_name,
                              size_t n_vocab, sl_error *err)
{
    char *text = NULL;
    size_t n_bytes;
    SL_TRY(sl_read_file(path, PROMPTS_LIMIT, &text, &n_bytes, err));
    sl_status status =
        sl_json_parse(text, n_bytes, path, sl_json_limits_default(), &references->prompt_file, err);
    sl_free(text);
    SL_TRY(status);
    json_t *set = choose_set(references->prompt_file, set_name, n_vocab);
    if (!json_is_object(set))
        return set_name ? sl_fail(err, SL_ERR_ARGUMENT, "%s: there is no set '%s'", path, set_name)
                        : sl_fail(err, SL_ERR_ARGUMENT,
                                  "%s: no set of prompts fits a vocabulary of %zu", path, n_vocab);
    return add_prompts(references, set, n_vocab, path, err);
}

/* ---- tensors ---- */

static bool find_prompt(const sl_references *references, const char *name, size_t *index)
{
    for (size_t i = 0; i < references->n_prompts; i++) {
        if (strcmp(references->prompts[i].name, name) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

static sl_status place_rows(const sl_references *references, const sl_reference_name *name,
                            size_t n_vocab, sl_reference *item, sl_error *err)
{
    const char *path = references->path;
    const size_t n_ids = references->prompts[item->prompt].ids.n;
    const size_t n_prefix = name->n_prefix > 0 ? name->n_prefix : n_ids;
    const size_t n_rows = name->n_rows > 0 ? name->n_rows : item->n_rows;
    if (n_prefix > n_ids || item->n_rows > n_prefix || item->n_rows != n_rows || n_rows == 0 ||
        (name->whole && n_rows != n_prefix))
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor %s has %zu rows, which do not fit prompt %s of %zu tokens", path,
                       item->name, item->n_rows, references->prompts[item->prompt].name, n_ids);
    if (item->is_logits && item->n_cols != n_vocab)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "%s: tensor %s is of a vocabulary of %zu, the model's has %zu", path,
                       item->name, item->n_cols, n_vocab);
    item->first_row = name->last ? n_prefix - n_rows : 0;
    return SL_OK;
}

static sl_status add_tensor(sl_references *references, const sl_array *tensor, size_t n_vocab,
                            sl_error *err)
{
    sl_reference_name name;
    size_t prompt;
    if (strcmp(tensor->name, "tokens") == 0)
        return SL_OK;
    if (tensor->type != SL_ARRAY_F32 || tensor->n_dims != 2 ||
        !sl_reference_parse_name(tensor->name, &name) ||
        !(name.prompt[0] != '\0'
              ? find_prompt(references, name.prompt, &prompt)
              : find_prompt(references, "tokens", &prompt) ||
                    (!name.is_logits && find_prompt(references, "B", &prompt)))) {
        references->skipped[references->n_skipped++] = tensor->name;
        return SL_OK;
    }
    sl_reference *item = &references->items[references->n_items++];
    *item = (sl_reference){
        .name = tensor->name,
        .prompt = prompt,
        .n_rows = tensor->shape[0],
        .n_cols = tensor->shape[1],
        .is_logits = name.is_logits,
        .data = tensor->data,
    };
    return place_rows(references, &name, n_vocab, item, err);
}

sl_status sl_references_open(const char *path, const char *prompts_path, const char *set,
                             size_t n_vocab, sl_references **out, sl_error *err)
{
    *out = NULL;
    char *default_path = NULL;
    sl_status status = SL_OK;
    sl_references *references = sl_alloc_zero(SL_MEM_GENERAL, sizeof *references);
    if (!references)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    references->path = path;
    SL_CHECK(sl_arrays_open(path, &references->file, err));
    const size_t n = sl_arrays_count(references->file);
    references->items = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *references->items);
    references->skipped = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *references->skipped);
    default_path = beside(path);
    if (!references->items || !references->skipped || !default_path) {
        status = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
        goto done;
    }
    SL_CHECK(read_own_tokens(references, n_vocab, err));
    if (references->n_prompts == 0)
        SL_CHECK(read_prompts(references, prompts_path ? prompts_path : default_path, set, n_vocab,
                              err));
    for (size_t i = 0; i < n; i++) {
        const sl_array array = sl_arrays_at(references->file, i);
        SL_CHECK(add_tensor(references, &array, n_vocab, err));
    }
    if (references->n_items == 0) {
        status = sl_fail(err, SL_ERR_FORMAT, "%s: there is nothing to compare in it", path);
        goto done;
    }
    *out = references;
    references = NULL;
done:
    sl_free(default_path);
    sl_references_close(references);
    return status;
}

void sl_references_close(sl_references *references)
{
    if (!references)
        return;
    for (size_t i = 0; i < references->n_prompts; i++)
        sl_ids_free(&references->prompts[i].ids);
    sl_free(references->items);
    sl_free(references->skipped);
    json_decref(references->prompt_file);
    sl_arrays_close(references->file);
    sl_free(references);
}

/* ---- reading ---- */

size_t sl_references_count(const sl_references *references)
{
    return references->n_items;
}

const sl_reference *sl_references_at(const sl_references *references, size_t i)
{
    return &references->items[i];
}

size_t sl_references_prompt_count(const sl_references *references)
{
    return references->n_prompts;
}

const sl_reference_prompt *sl_references_prompt(const sl_references *references, size_t i)
{
    return &references->prompts[i];
}

size_t sl_references_skipped_count(const sl_references *references)
{
    return references->n_skipped;
}

const char *sl_references_skipped(const sl_references *references, size_t i)
{
    return references->skipped[i];
}

sl_status sl_references_check(const sl_references *references, sl_error *err)
{
    return sl_arrays_check(references->file, err);
}

void sl_reference_row(const sl_reference *reference, size_t i, float *row)
{
    const size_t n_bytes = reference->n_cols * sizeof *row;
    memcpy(row, reference->data + i * n_bytes, n_bytes);
}
