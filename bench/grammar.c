/* What structured output costs: compiling a schema, the first mask of a place and a mask that is
 * known, with the vocabulary of the family.
 * usage: grammar TOKENIZER.json [TOKENS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "text/tokenizer.h"

enum { ROWS = 248320, MAX_STEPS = 20000 };

static const struct sample {
    const char *name, *schema; /* schema NULL: any JSON object */
} samples[] = {
    {"any object", NULL},
    {"flat record",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
     "\"integer\",\"minimum\":0,\"maximum\":150},\"mail\":{\"type\":\"string\",\"format\":"
     "\"email\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":5}},"
     "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}"},
    {"lengths and patterns",
     "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"minLength\":5,"
     "\"maxLength\":80},\"slug\":{\"type\":\"string\",\"pattern\":\"^[a-z0-9]+(-[a-z0-9]+)*$\"},"
     "\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"text\":{\"type\":\"string\","
     "\"maxLength\":5000}},\"required\":[\"title\",\"slug\",\"when\",\"text\"],"
     "\"additionalProperties\":false}"},
    {"recursive tree",
     "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"number\"},"
     "\"label\":{\"enum\":[\"red\",\"green\",\"blue\"]},\"children\":{\"type\":\"array\","
     "\"items\":{\"$ref\":\"#/$defs/node\"}}},\"required\":[\"value\",\"label\",\"children\"],"
     "\"additionalProperties\":false}},\"$ref\":\"#/$defs/node\"}"},
};

static char *read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    char *data = malloc((size_t)64 << 20);
    *n = file && data ? fread(data, 1, (size_t)64 << 20, file) : 0;
    if (file)
        fclose(file);
    return data;
}

static sl_status open_vocab(const char *path, sl_constraint_vocab **out, sl_error *err)
{
    size_t n;
    json_t *json;
    sl_tokenizer *tokenizer;
    char *text = read_file(path, &n);
    SL_TRY(sl_json_parse(text, n, path, sl_json_limits_default(), &json, err));
    SL_TRY(sl_tokenizer_create_json(json, NULL, ROWS, path, &tokenizer, err));
    const int32_t stop = sl_tokenizer_find(tokenizer, "<|im_end|>");
    const uint64_t start = sl_clock_ns();
    SL_TRY(sl_constraint_vocab_create(tokenizer, ROWS, &stop, 1, out, err));
    printf("vocabulary of %d: %.1f ms\n", ROWS, (double)(sl_clock_ns() - start) / 1e6);
    sl_tokenizer_free(tokenizer);
    json_decref(json);
    free(text);
    return SL_OK;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

/* A random one of the tokens that fit. */
static int32_t draw(const uint32_t *allowed, uint64_t *random)
{
    for (int tries = 0; tries < 300; tries++) {
        const uint32_t id = (uint32_t)(next_random(random) >> 33) % ROWS;
        if (allowed[id / 32] >> (id % 32) & 1)
            return (int32_t)id;
    }
    const uint32_t begin = (uint32_t)(next_random(random) >> 33) % ROWS;
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint32_t id = (begin + i) % ROWS;
        if (allowed[id / 32] >> (id % 32) & 1)
            return (int32_t)id;
    }
    return -1;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void tell(const char *what, double *us, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += us[i];
    qsort(us, n, sizeof *us, compare);
    printf("  %-22s %6zu masks  mean %9.2f  median %9.2f  p99 %9.2f  most %9.2f us\n", what, n,
           sum / (double)n, us[n / 2], us[n - 1 - n / 100], us[n - 1]);
}

/* Random texts, one after the other, until `steps` masks were asked for. */
static sl_status walk(sl_constraint *constraint, size_t steps, double *us, double *accept_us,
                      sl_error *err)
{
    uint64_t random = 88172645463325252u;
    sl_constraint_reset(constraint);
    *accept_us = 0;
    for (size_t i = 0; i < steps; i++) {
        const uint32_t *allowed;
        uint64_t start = sl_clock_ns();
        SL_TRY(sl_constraint_allowed(constraint, &allowed, err));
        us[i] = (double)(sl_clock_ns() - start) / 1e3;
        const int32_t token = draw(allowed, &random);
        start = sl_clock_ns();
        SL_TRY(sl_constraint_accept(constraint, token, err));
        *accept_us += (double)(sl_clock_ns() - start) / 1e3 / (double)steps;
        if (sl_constraint_is_done(constraint))
            sl_constraint_reset(constraint);
    }
    return SL_OK;
}

static sl_status measure(const struct sample *sample, const sl_constraint_vocab *vocab,
                         size_t steps, sl_error *err)
{
    static double us[MAX_STEPS];
    sl_grammar *grammar;
    sl_constraint *constraint;
    double accept_us;
    uint64_t start = sl_clock_ns();
    if (sample->schema)
        SL_TRY(sl_grammar_from_json_schema((sl_str){sample->schema, strlen(sample->schema)},
                                           &grammar, err));
    else
        SL_TRY(sl_grammar_json_object(&grammar, err));
    const double compiled = (double)(sl_clock_ns() - start) / 1e3;
    start = sl_clock_ns();
    SL_TRY(sl_constraint_create(grammar, vocab, &constraint, err));
    printf("%s: compiled in %.0f us, constraint made in %.0f us\n", sample->name, compiled,
           (double)(sl_clock_ns() - start) / 1e3);
    SL_TRY(walk(constraint, steps, us, &accept_us, err));
    tell("the first time", us, steps);
    SL_TRY(walk(constraint, steps, us, &accept_us, err));
    tell("again", us, steps);
    printf("  taking a token in: %.2f us; memory %.1f MB\n", accept_us,
           (double)sl_mem_get_stats().bytes[SL_MEM_TEXT] / 1e6);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    return SL_OK;
}

int main(int argc, char **argv)
{
    sl_error err;
    sl_constraint_vocab *vocab;
    const size_t steps = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2000;
    if (argc < 2 || steps == 0 || steps > MAX_STEPS) {
        fprintf(stderr, "usage: grammar TOKENIZER.json [TOKENS]\n");
        return 2;
    }
    sl_status status = open_vocab(argv[1], &vocab, &err);
    for (size_t i = 0; i < SL_COUNTOF(samples) && status == SL_OK; i++)
        status = measure(&samples[i], vocab, steps, &err);
    if (status != SL_OK) {
        fprintf(stderr, "grammar: %s\n", err.message);
        return 1;
    }
    sl_constraint_vocab_free(vocab);
    return 0;
}
