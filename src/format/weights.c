/* Owns the maps and parsed headers of a model on disk and the table of its tensors by name.
 *
 * Accepted: a GGUF file under any name (with its siblings when it is split), a folder with
 * config.json and safetensors (one file, or shards listed by an index). Refused, each with what was
 * found: other files, folders without either, parts that are missing or disagree about how many
 * there are, a tensor that occurs twice, index entries that point outside the folder. */
#include "format/weights.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/filemap.h"
#include "format/safetensors.h"

enum { MAX_PARTS = 1024, TEMPLATE_MAX_BYTES = 4 << 20, SETTINGS_MAX_VALUES = 1 << 16 };

static const char index_file[] = "model.safetensors.index.json";
static const char single_file[] = "model.safetensors";

typedef struct part {
    char *path;
    const char *name; /* the last component of path */
    sl_filemap *map;
    uint8_t *memory;  /* instead of a map, of an adopted block */
    size_t n_present; /* its bytes that are there */
    sl_gguf *gguf;    /* one of the two */
    sl_safetensors *safetensors;
} part;

/* Why a tensor cannot be used. */
typedef struct unusable {
    const char *type; /* NULL when even its name is unknown */
    uint32_t number;  /* ggml type, for that case */
    uint32_t n_dims;  /* when not 0, these are the reason */
} unusable;

struct sl_weights {
    char *path;
    sl_container container;

    size_t n_parts;
    part *parts;

    size_t n_tensors; /* usable ones; n_all - n_tensors unusable ones follow them */
    size_t n_all;
    sl_tensor *tensors;
    unusable *reasons;  /* of tensors with the same index, unusable ones only */
    size_t *by_name;    /* indices of all tensors, ascending by name */
    char *gguf_names;   /* GGUF names, with NULs added; safetensors names live in the header */
    char *template_own; /* a copy: chat_template.jinja, or the key of a GGUF file */
    sl_str template_text;

    json_t *config, *generation_config, *tokenizer, *tokenizer_config;
};

/* ---- paths ---- */

static char *join(const char *folder, const char *name)
{
    size_t n_folder = strlen(folder), n_name = strlen(name);
    while (n_folder > 1 && folder[n_folder - 1] == '/')
        n_folder--;
    char *path = sl_alloc(SL_MEM_FORMAT, n_folder + n_name + 2);
    if (!path)
        return NULL;
    memcpy(path, folder, n_folder);
    path[n_folder] = '/';
    memcpy(path + n_folder + 1, name, n_name + 1);
    return path;
}

static const char *last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);
    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

/* ---- the table of tensors ---- */

static sl_status out_of_memory(const sl_weights *weights, sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its tensor table", weights->path);
}

/* Room for n tensors and n_name_bytes of names. Usable tensors are then added from the front,
 * unusable ones from the back. */
static sl_status alloc_table(sl_weights *weights, size_t n, size_t n_name_bytes, sl_error *err)
{
    weights->tensors = sl_alloc_array(SL_MEM_FORMAT, n, sizeof *weights->tensors);
    weights->reasons = sl_alloc_array(SL_MEM_FORMAT, n, sizeof *weights->reasons);
    weights->by_name = sl_alloc_array(SL_MEM_FORMAT, n, sizeof *weights->by_name);
    weights->gguf_names = sl_alloc(SL_MEM_FORMAT, n_name_bytes);
    if (!weights->tensors || !weights->reasons || !weights->by_name || !weights->gguf_names)
        return out_of_memory(weights, err);
    return SL_OK;
}

/* Merge sort of the indices by name: the table cannot be reached from a qsort callback. */
static void sort_by_name(const sl_tensor *tensors, size_t *index, size_t *scratch, size_t n)
{
    if (n < 2)
        return;
    size_t half = n / 2;
    sort_by_name(tensors, index, scratch, half);
    sort_by_name(tensors, index + half, scratch, n - half);
    memcpy(scratch, index, half * sizeof *index);
    size_t a = 0, b = half;
    for (size_t out = 0; a < half; out++) {
        bool take_b = b < n && strcmp(tensors[index[b]].name, tensors[scratch[a]].name) < 0;
        index[out] = take_b ? index[b++] : scratch[a++];
    }
}

static sl_status build_index(sl_weights *weights, sl_error *err)
{
    for (size_t i = 0; i < weights->n_all; i++)
        weights->by_name[i] = i;
    size_t *scratch = sl_alloc_array(SL_MEM_FORMAT, weights->n_all, sizeof *scratch);
    if (!scratch)
        return out_of_memory(weights, err);
    sort_by_name(weights->tensors, weights->by_name, scratch, weights->n_all);
    sl_free(scratch);
    for (size_t i = 1; i < weights->n_all; i++) {
        const sl_tensor *a = &weights->tensors[weights->by_name[i - 1]];
        const sl_tensor *b = &weights->tensors[weights->by_name[i]];
        if (strcmp(a->name, b->name) == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s occurs twice (%s and %s)",
                           weights->path, a->name, a->file, b->file);
    }
    return SL_OK;
}

/* The position of a name among all tensors, or SIZE_MAX. */
static size_t find_index(const sl_weights *weights, const char *name)
{
    size_t low = 0, high = weights->n_all;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        size_t i = weights->by_name[middle];
        int order = strcmp(weights->tensors[i].name, name);
        if (order == 0)
            return i;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

/* ---- GGUF ---- */

static sl_status open_gguf_part(part *p, sl_error *err)
{
    p->name = last_component(p->path);
    SL_TRY(sl_filemap_open(p->path, &p->map, err));
    return sl_gguf_parse(sl_filemap_data(p->map), sl_filemap_size(p->map), p->path, &p->gguf, err);
}

/* "NAME-00002-of-00003.gguf" gives the length of "NAME", 2 and 3. */
static bool split_name(const char *path, size_t *n_prefix, uint64_t *number, uint64_t *count)
{
    static const char pattern[] = "-#####-of-#####.gguf";
    size_t n = strlen(path), n_pattern = sizeof pattern - 1;
    if (n <= n_pattern)
        return false;
    const char *tail = path + n - n_pattern;
    uint64_t values[2] = {0, 0};
    for (size_t i = 0; i < n_pattern; i++) {
        if (pattern[i] != '#' && tail[i] != pattern[i])
            return false;
        if (pattern[i] == '#') {
            if (tail[i] < '0' || tail[i] > '9')
                return false;
            uint64_t *value = &values[i > 6];
            *value = *value * 10 + (uint64_t)(tail[i] - '0');
        }
    }
    *n_prefix = n - n_pattern;
    *number = values[0];
    *count = values[1];
    return true;
}

/* Checks that the part at index i says so itself, and that the total agrees. */
static sl_status check_part(const sl_weights *weights, size_t i, sl_error *err)
{
    const part *p = &weights->parts[i];
    uint64_t number, count;
    SL_TRY(sl_gguf_get_uint(p->gguf, "split.no", 0, UINT16_MAX, &number, err));
    SL_TRY(sl_gguf_get_uint(p->gguf, "split.count", 0, UINT16_MAX, &count, err));
    if (number != i || count != weights->n_parts)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: split.no is %llu and split.count is %llu, but its name says part %zu "
                       "of %zu",
                       p->path, (unsigned long long)number, (unsigned long long)count, i + 1,
                       weights->n_parts);
    return SL_OK;
}

/* The opened file, weights->parts[0], is one of `count` parts: opens the others beside it. */
static sl_status open_split(sl_weights *weights, uint64_t count, sl_error *err)
{
    uint64_t own_number, name_count;
    size_t n_prefix;
    if (count > MAX_PARTS)
        return sl_fail(err, SL_ERR_LIMIT, "%s: split.count is %llu, at most %d parts are possible",
                       weights->path, (unsigned long long)count, MAX_PARTS);
    if (!split_name(weights->path, &n_prefix, &own_number, &name_count) || name_count != count ||
        own_number < 1 || own_number > count)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: split.count says that it is one of %llu parts; its name must end in "
                       "-00001-of-%05llu.gguf or the like for the others to be found",
                       weights->path, (unsigned long long)count, (unsigned long long)count);

    part *parts = sl_alloc_array(SL_MEM_FORMAT, (size_t)count, sizeof *parts);
    if (!parts)
        return out_of_memory(weights, err);
    parts[own_number - 1] = weights->parts[0];
    sl_free(weights->parts);
    weights->parts = parts;
    weights->n_parts = (size_t)count;

    for (size_t i = 0; i < weights->n_parts; i++) {
        part *p = &parts[i];
        if (!p->path) {
            size_t n = strlen(weights->path) + 1;
            p->path = sl_alloc(SL_MEM_FORMAT, n);
            if (!p->path)
                return out_of_memory(weights, err);
            memcpy(p->path, weights->path, n);
            snprintf(p->path + n_prefix, n - n_prefix, "-%05zu-of-%05zu.gguf", i + 1,
                     weights->n_parts);
            sl_status status = open_gguf_part(p, err);
            if (status != SL_OK)
                return sl_fail_within(err, status, "part %zu of %zu", i + 1, weights->n_parts);
        }
        SL_TRY(check_part(weights, i, err));
    }
    return SL_OK;
}

static const uint8_t *gguf_bytes(const part *p, const sl_gguf_tensor *tensor)
{
    if (p->map)
        return sl_filemap_data(p->map) + tensor->offset;
    return p->memory + (tensor->offset < p->n_present ? tensor->offset : 0);
}

static void add_gguf_tensor(sl_weights *weights, const part *p, const sl_gguf_tensor *from,
                            char *name)
{
    memcpy(name, from->name.data, from->name.n_bytes);
    name[from->name.n_bytes] = '\0';
    size_t i = from->usable ? weights->n_tensors++ : weights->n_all++;
    sl_tensor *tensor = &weights->tensors[i];
    tensor->name = name;
    tensor->n_dims = from->n_dims;
    tensor->file = p->path;
    tensor->offset = from->offset;
    for (size_t d = 0; d < SL_COUNTOF(tensor->ne); d++)
        tensor->ne[d] = from->ne[d];
    if (from->usable) {
        tensor->dtype = from->dtype;
        tensor->data = gguf_bytes(p, from);
        tensor->n_bytes = from->n_bytes;
    } else {
        sl_dtype ignored;
        unusable *reason = &weights->reasons[i];
        reason->number = from->ggml_type;
        sl_dtype_from_ggml(from->ggml_type, &ignored, &reason->type);
    }
}

static sl_status collect_gguf(sl_weights *weights, sl_error *err)
{
    size_t n_all = 0, n_usable = 0, n_name_bytes = 0;
    for (size_t p = 0; p < weights->n_parts; p++) {
        const sl_gguf *gguf = weights->parts[p].gguf;
        for (size_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
            const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
            n_name_bytes += tensor->name.n_bytes + 1;
            n_usable += tensor->usable;
            n_all++;
        }
    }
    if (weights->n_parts > 1) {
        uint64_t expected;
        SL_TRY(sl_gguf_get_uint_or(weights->parts[0].gguf, "split.tensors.count", 0, INT32_MAX,
                                   n_all, &expected, err));
        if (expected != n_all)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: split.tensors.count is %llu, but its %zu parts hold %zu tensors",
                           weights->parts[0].path, (unsigned long long)expected, weights->n_parts,
                           n_all);
    }

    SL_TRY(alloc_table(weights, n_all, n_name_bytes, err));
    weights->n_all = n_usable;
    char *name = weights->gguf_names;
    for (size_t p = 0; p < weights->n_parts; p++) {
        const sl_gguf *gguf = weights->parts[p].gguf;
        for (size_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
            const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
            add_gguf_tensor(weights, &weights->parts[p], tensor, name);
            name += tensor->name.n_bytes + 1;
        }
    }
    return build_index(weights, err);
}

/* What a file without the GGUF magic may be, for the message. */
static sl_status refuse_file(const part *p, sl_error *err)
{
    const uint8_t *data = sl_filemap_data(p->map);
    size_t size = sl_filemap_size(p->map);
    if (ends_with(p->path, ".safetensors") || (size > 9 && data[8] == '{' && data[7] == 0))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s is a safetensors file; give the folder that holds it and config.json",
                       p->path);
    if (size < 4)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s is not a model: it has %zu bytes; a GGUF file or a folder with "
                       "config.json and safetensors is needed",
                       p->path, size);
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s is not a model: it begins with the bytes %02x %02x %02x %02x, not with "
                   "\"GGUF\"; a GGUF file or a folder with config.json and safetensors is needed",
                   p->path, data[0], data[1], data[2], data[3]);
}

/* Compiling looks at a template more than once, so it must not change under way as a mapped file
 * may. One that is too long to compile is not copied to tell so. */
static sl_status copy_template(sl_weights *weights, sl_error *err)
{
    sl_str *text = &weights->template_text;
    SL_TRY(sl_gguf_get_string_or(weights->parts[0].gguf, "tokenizer.chat_template", (sl_str){"", 0},
                                 text, err));
    if (text->n_bytes > TEMPLATE_MAX_BYTES)
        return SL_OK;
    weights->template_own = sl_strndup(SL_MEM_FORMAT, text->data, text->n_bytes);
    if (!weights->template_own)
        return out_of_memory(weights, err);
    text->data = weights->template_own;
    return SL_OK;
}

static sl_status open_gguf(sl_weights *weights, sl_error *err)
{
    weights->container = SL_CONTAINER_GGUF;
    weights->parts = sl_alloc_array(SL_MEM_FORMAT, 1, sizeof *weights->parts);
    if (!weights->parts)
        return out_of_memory(weights, err);
    weights->n_parts = 1;
    part *p = &weights->parts[0];
    p->path = sl_strndup(SL_MEM_FORMAT, weights->path, strlen(weights->path));
    if (!p->path)
        return out_of_memory(weights, err);
    p->name = last_component(p->path);
    SL_TRY(sl_filemap_open(p->path, &p->map, err));
    if (sl_filemap_size(p->map) < 4 || memcmp(sl_filemap_data(p->map), "GGUF", 4) != 0)
        return refuse_file(p, err);
    SL_TRY(sl_gguf_parse(sl_filemap_data(p->map), sl_filemap_size(p->map), p->path, &p->gguf, err));

    uint64_t count;
    SL_TRY(sl_gguf_get_uint_or(p->gguf, "split.count", 0, UINT16_MAX, 1, &count, err));
    if (count > 1)
        SL_TRY(open_split(weights, count, err));
    SL_TRY(collect_gguf(weights, err));
    return copy_template(weights, err);
}

/* ---- folders ---- */

/* False only when nothing has this name: a link without a target (of a download cut short) and a
 * file in a closed folder are there, and opening them tells what is wrong. */
static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Reads folder/name, a JSON object of at most max_values values (SIZE_MAX: the usual limit); *out
 * stays NULL when the file does not exist. */
static sl_status load_json(const sl_weights *weights, const char *name, size_t max_values,
                           json_t **out, sl_error *err)
{
    char *path = join(weights->path, name);
    if (!path)
        return out_of_memory(weights, err);
    char *text = NULL;
    size_t n_bytes = 0;
    sl_status status = SL_OK;
    sl_json_limits limits = sl_json_limits_default();
    limits.max_values = sl_min_size(limits.max_values, max_values);
    if (!exists(path))
        goto done;
    SL_CHECK(sl_read_file(path, limits.max_bytes, &text, &n_bytes, err));
    SL_CHECK(sl_json_parse(text, n_bytes, path, limits, out, err));
    if (!json_is_object(*out))
        status = sl_fail(err, SL_ERR_FORMAT, "%s is not a JSON object", path);

done:
    sl_free(text);
    sl_free(path);
    return status;
}

/* The file a weight_map entry names must lie in the folder itself. */
static bool is_plain_name(const char *name)
{
    return name && name[0] != '\0' && name[0] != '.' && !strpbrk(name, "/\\");
}

/* Gives the files that the index names numbers in order of appearance. */
static sl_status list_shards(const sl_weights *weights, const json_t *map, json_t *numbers,
                             sl_error *err)
{
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = sl_json_is_string(value) ? json_string_value(value) : NULL;
        if (!is_plain_name(name))
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s/%s: weight_map.%s must be the name of a file in the same folder, "
                           "found %s",
                           weights->path, index_file, tensor, name ? name : "no string");
        if (json_object_get(numbers, name))
            continue;
        if (json_object_size(numbers) == MAX_PARTS)
            return sl_fail(err, SL_ERR_LIMIT, "%s/%s: more than %d files", weights->path,
                           index_file, MAX_PARTS);
        if (json_object_set_new(numbers, name, json_true()) != 0)
            return out_of_memory(weights, err);
    }
    if (json_object_size(numbers) == 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s/%s: weight_map is empty", weights->path, index_file);
    return SL_OK;
}

static sl_status open_shard(sl_weights *weights, const char *name, part *p, sl_error *err)
{
    p->path = join(weights->path, name);
    if (!p->path)
        return out_of_memory(weights, err);
    p->name = last_component(p->path);
    SL_TRY(sl_filemap_open(p->path, &p->map, err));
    return sl_safetensors_parse(sl_filemap_data(p->map), sl_filemap_size(p->map), p->path,
                                &p->safetensors, err);
}

/* With an index, a tensor belongs to the model when the index says that it lies in this part. */
static bool belongs(const json_t *map, const part *p, const sl_safetensors_tensor *tensor)
{
    if (!map)
        return true;
    const char *file = json_string_value(json_object_get(map, tensor->name));
    return file && strcmp(file, p->name) == 0;
}

static void add_safetensors_tensor(sl_weights *weights, const part *p,
                                   const sl_safetensors_tensor *from)
{
    size_t i = from->usable ? weights->n_tensors++ : weights->n_all++;
    sl_tensor *tensor = &weights->tensors[i];
    tensor->name = from->name;
    tensor->n_dims = from->n_dims;
    tensor->file = p->path;
    tensor->offset = from->offset;
    for (size_t d = 0; d < SL_COUNTOF(tensor->ne); d++)
        tensor->ne[d] = from->ne[d];
    if (from->usable) {
        tensor->dtype = from->dtype;
        tensor->data = sl_filemap_data(p->map) + from->offset;
        tensor->n_bytes = from->n_bytes;
    } else {
        weights->reasons[i].type = from->type;
        if (from->n_dims > SL_COUNTOF(tensor->ne))
            weights->reasons[i].n_dims = from->n_dims;
    }
}

static sl_status collect_safetensors(sl_weights *weights, const json_t *map, sl_error *err)
{
    size_t n_all = 0, n_usable = 0;
    for (size_t p = 0; p < weights->n_parts; p++) {
        const part *shard = &weights->parts[p];
        for (size_t i = 0; i < sl_safetensors_count(shard->safetensors); i++) {
            const sl_safetensors_tensor *tensor = sl_safetensors_at(shard->safetensors, i);
            if (belongs(map, shard, tensor)) {
                n_all++;
                n_usable += tensor->usable;
            }
        }
    }
    SL_TRY(alloc_table(weights, n_all, 0, err));
    weights->n_all = n_usable;
    for (size_t p = 0; p < weights->n_parts; p++) {
        const part *shard = &weights->parts[p];
        for (size_t i = 0; i < sl_safetensors_count(shard->safetensors); i++) {
            const sl_safetensors_tensor *tensor = sl_safetensors_at(shard->safetensors, i);
            if (belongs(map, shard, tensor))
                add_safetensors_tensor(weights, shard, tensor);
        }
    }
    SL_TRY(build_index(weights, err));

    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        if (find_index(weights, name) == SIZE_MAX)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s/%s: weight_map says that %s lies in %s, which does not hold it",
                           weights->path, index_file, name, json_string_value(file));
    }
    return SL_OK;
}

static sl_status open_safetensors(sl_weights *weights, sl_error *err)
{
    json_t *index = NULL, *names = NULL;
    sl_status status;
    SL_CHECK(load_json(weights, index_file, SIZE_MAX, &index, err));
    const json_t *map = json_object_get(index, "weight_map");
    names = json_object();
    if (!names) {
        status = out_of_memory(weights, err);
        goto done;
    }
    if (index && !json_is_object(map)) {
        status = sl_fail(err, SL_ERR_FORMAT, "%s/%s: weight_map is missing or not an object",
                         weights->path, index_file);
        goto done;
    }
    if (index)
        SL_CHECK(list_shards(weights, map, names, err));
    else if (json_object_set_new(names, single_file, json_true()) != 0) {
        status = out_of_memory(weights, err);
        goto done;
    }

    weights->parts = sl_alloc_array(SL_MEM_FORMAT, json_object_size(names), sizeof *weights->parts);
    if (!weights->parts) {
        status = out_of_memory(weights, err);
        goto done;
    }
    const char *name;
    json_t *ignored;
    json_object_foreach(names, name, ignored)
        SL_CHECK(open_shard(weights, name, &weights->parts[weights->n_parts++], err));
    SL_CHECK(collect_safetensors(weights, map, err));

done:
    json_decref(index);
    json_decref(names);
    return status;
}

/* chat_template.jinja, or the member of tokenizer_config.json. */
static sl_status find_template(sl_weights *weights, sl_error *err)
{
    char *path = join(weights->path, "chat_template.jinja");
    if (!path)
        return out_of_memory(weights, err);
    sl_status status = SL_OK;
    bool own = exists(path);
    if (own) {
        size_t n_bytes;
        status = sl_read_file(path, TEMPLATE_MAX_BYTES, &weights->template_own, &n_bytes, err);
        if (status == SL_OK)
            weights->template_text = (sl_str){weights->template_own, n_bytes};
    }
    sl_free(path);
    if (own)
        return status;

    const json_t *member = json_object_get(weights->tokenizer_config, "chat_template");
    size_t i;
    const json_t *entry;
    json_array_foreach(member, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) {
            member = json_object_get(entry, "template");
            break;
        }
    }
    if (sl_json_is_string(member))
        weights->template_text = (sl_str){json_string_value(member), json_string_length(member)};
    return SL_OK;
}

/* The folder has no config.json: names a file that would have been accepted, if there is one. */
static sl_status refuse_folder(const sl_weights *weights, sl_error *err)
{
    char found[256] = "";
    DIR *folder = opendir(weights->path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (ends_with(entry->d_name, ".gguf") && (!found[0] || strcmp(entry->d_name, found) < 0))
            snprintf(found, sizeof found, "%s", entry->d_name);
    }
    if (folder)
        closedir(folder);
    if (found[0])
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s is a folder without config.json; it holds %s: give that file itself",
                       weights->path, found);
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s is a folder without config.json; a GGUF file or a folder with config.json "
                   "and safetensors is needed",
                   weights->path);
}

static sl_status open_folder(sl_weights *weights, sl_error *err)
{
    weights->container = SL_CONTAINER_HF;
    weights->template_text = (sl_str){"", 0};
    SL_TRY(load_json(weights, "config.json", SETTINGS_MAX_VALUES, &weights->config, err));
    if (!weights->config)
        return refuse_folder(weights, err);
    char *index = join(weights->path, index_file), *single = join(weights->path, single_file);
    bool have_memory = index && single;
    bool have_files = have_memory && (exists(index) || exists(single));
    sl_free(index);
    sl_free(single);
    if (!have_memory)
        return out_of_memory(weights, err);
    if (!have_files)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s holds config.json, but neither %s nor %s",
                       weights->path, index_file, single_file);
    SL_TRY(open_safetensors(weights, err));
    SL_TRY(load_json(weights, "generation_config.json", SETTINGS_MAX_VALUES,
                     &weights->generation_config, err));
    SL_TRY(load_json(weights, "tokenizer.json", SIZE_MAX, &weights->tokenizer, err));
    SL_TRY(load_json(weights, "tokenizer_config.json", SIZE_MAX, &weights->tokenizer_config, err));
    return find_template(weights, err);
}

/* ---- interface ---- */

sl_status sl_weights_open(const char *path, sl_weights **out, sl_error *err)
{
    *out = NULL;
    sl_weights *weights = sl_alloc_zero(SL_MEM_FORMAT, sizeof *weights);
    if (!weights || !(weights->path = sl_strndup(SL_MEM_FORMAT, path, strlen(path)))) {
        sl_free(weights);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory while opening it", path);
    }
    struct stat info;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    sl_status status = is_folder ? open_folder(weights, err) : open_gguf(weights, err);
    /* Zeros in place of lost pages may have looked like a broken file, or like a good one. */
    const sl_status lost = sl_weights_check(weights, err);
    if (lost != SL_OK)
        status = lost;
    if (status != SL_OK) {
        sl_weights_close(weights);
        return status;
    }
    *out = weights;
    return SL_OK;
}

static sl_status adopt(sl_weights *weights, uint8_t *block, size_t n_present, size_t n_bytes,
                       sl_error *err)
{
    weights->container = SL_CONTAINER_GGUF;
    weights->template_text = (sl_str){"", 0};
    weights->parts = sl_alloc_array(SL_MEM_FORMAT, 1, sizeof *weights->parts);
    if (!weights->parts) {
        sl_free(block);
        return out_of_memory(weights, err);
    }
    weights->n_parts = 1;
    part *p = &weights->parts[0];
    p->memory = block;
    p->n_present = n_present;
    p->path = sl_strndup(SL_MEM_FORMAT, weights->path, strlen(weights->path));
    if (!p->path)
        return out_of_memory(weights, err);
    p->name = p->path;
    SL_TRY(sl_gguf_parse(block, n_bytes, p->path, &p->gguf, err));
    return collect_gguf(weights, err);
}

sl_status sl_weights_adopt(const char *path, uint8_t *block, size_t n_present, size_t n_bytes,
                           sl_weights **out, sl_error *err)
{
    *out = NULL;
    sl_weights *weights = sl_alloc_zero(SL_MEM_FORMAT, sizeof *weights);
    if (!weights || !(weights->path = sl_strndup(SL_MEM_FORMAT, path, strlen(path)))) {
        sl_free(weights);
        sl_free(block);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory while opening it", path);
    }
    const sl_status status = adopt(weights, block, n_present, n_bytes, err);
    if (status != SL_OK) {
        sl_weights_close(weights);
        return status;
    }
    *out = weights;
    return SL_OK;
}

void sl_weights_close(sl_weights *weights)
{
    if (!weights)
        return;
    for (size_t i = 0; i < weights->n_parts; i++) {
        sl_gguf_free(weights->parts[i].gguf);
        sl_safetensors_free(weights->parts[i].safetensors);
        sl_filemap_close(weights->parts[i].map);
        sl_free(weights->parts[i].memory);
        sl_free(weights->parts[i].path);
    }
    sl_free(weights->parts);
    sl_free(weights->tensors);
    sl_free(weights->reasons);
    sl_free(weights->by_name);
    sl_free(weights->gguf_names);
    sl_free(weights->template_own);
    json_decref(weights->config);
    json_decref(weights->generation_config);
    json_decref(weights->tokenizer);
    json_decref(weights->tokenizer_config);
    sl_free(weights->path);
    sl_free(weights);
}

sl_container sl_weights_container(const sl_weights *weights)
{
    return weights->container;
}

const char *sl_weights_path(const sl_weights *weights)
{
    return weights->path;
}

size_t sl_weights_count(const sl_weights *weights)
{
    return weights->n_tensors;
}

const sl_tensor *sl_weights_at(const sl_weights *weights, size_t i)
{
    return i < weights->n_tensors ? &weights->tensors[i] : NULL;
}

const sl_tensor *sl_weights_find(const sl_weights *weights, const char *name)
{
    return sl_weights_at(weights, find_index(weights, name));
}

bool sl_weights_has(const sl_weights *weights, const char *name)
{
    return find_index(weights, name) != SIZE_MAX;
}

void sl_weights_why_missing(const sl_weights *weights, const char *name, char *text,
                            size_t capacity)
{
    size_t i = find_index(weights, name);
    if (i == SIZE_MAX) {
        snprintf(text, capacity, "is not in %s", weights->path);
        return;
    }
    if (i < weights->n_tensors) {
        snprintf(text, capacity, "is in %s", weights->tensors[i].file);
        return;
    }
    const unusable *reason = &weights->reasons[i];
    if (reason->n_dims)
        snprintf(text, capacity, "has %u dimensions, which sluice cannot use", reason->n_dims);
    else if (reason->type)
        snprintf(text, capacity, "has type %s, which sluice cannot use", reason->type);
    else
        snprintf(text, capacity, "has the unknown type %u", reason->number);
}

const sl_gguf *sl_weights_gguf(const sl_weights *weights)
{
    return weights->container == SL_CONTAINER_GGUF ? weights->parts[0].gguf : NULL;
}

const json_t *sl_weights_config(const sl_weights *weights)
{
    return weights->config;
}

const json_t *sl_weights_generation_config(const sl_weights *weights)
{
    return weights->generation_config;
}

const json_t *sl_weights_tokenizer(const sl_weights *weights)
{
    return weights->tokenizer;
}

const json_t *sl_weights_tokenizer_config(const sl_weights *weights)
{
    return weights->tokenizer_config;
}

sl_str sl_weights_chat_template(const sl_weights *weights)
{
    return weights->template_text;
}

sl_status sl_weights_check(const sl_weights *weights, sl_error *err)
{
    for (size_t i = 0; i < weights->n_parts; i++) {
        if (weights->parts[i].map) /* parts may be missing while opening */
            SL_TRY(sl_filemap_check(weights->parts[i].map, err));
    }
    return SL_OK;
}

static void release_memory(const part *p, const uint8_t *data, size_t n)
{
    const uintptr_t base = (uintptr_t)p->memory, from = (uintptr_t)data;
    if (from >= base && from - base <= p->n_present && n <= p->n_present - (from - base))
        sl_mem_discard(p->memory + (from - base), n);
}

void sl_weights_release(const sl_weights *weights, const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < weights->n_parts; i++) {
        if (weights->parts[i].map)
            sl_filemap_release(weights->parts[i].map, data, n);
        else if (weights->parts[i].memory)
            release_memory(&weights->parts[i], data, n);
    }
}

bool sl_weights_come_back(const sl_weights *weights)
{
    return weights->n_parts == 0 || !weights->parts[0].memory;
}
