/* JSON schemas as grammars of JSON texts. Shared by the files schema*.c.
 *
 * Each schema becomes a rule, found by its text, so that equal schemas are one rule and references
 * may go in circles; a list of rules still to be defined takes the place of recursion. Schemas that
 * say several things at once (allOf, a reference with siblings) are first merged into one that says
 * all of it. */
#ifndef SL_GRAMMAR_SCHEMA_H
#define SL_GRAMMAR_SCHEMA_H

#include "base/json.h"
#include "base/str.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"

enum {
    SL_SCHEMA_MAX_DEPTH = 64,      /* of nesting of the schema's JSON */
    SL_SCHEMA_MAX_WORK = 16384,    /* rules that a schema may become */
    SL_SCHEMA_MAX_BRANCHES = 1024, /* of anyOf and oneOf, also after merging */
    SL_SCHEMA_MAX_MERGES = 20000,
    SL_SCHEMA_MAX_ITEMS = 4096,   /* of an array, where they are counted */
    SL_SCHEMA_MAX_KEYS = 64 << 20 /* bytes of the texts of all rules */
};

typedef enum sl_json_type {
    SL_JSON_NULL = 1,
    SL_JSON_BOOLEAN = 2,
    SL_JSON_INTEGER = 4,
    SL_JSON_NUMBER = 8, /* comes with INTEGER */
    SL_JSON_STRING = 16,
    SL_JSON_ARRAY = 32,
    SL_JSON_OBJECT = 64,
    SL_JSON_ANY = 127
} sl_json_type;

/* A schema that is or will be a rule. */
typedef struct sl_schema_item {
    json_t *schema; /* its own reference */
    char *pointer;  /* where it stands, for messages: "#/properties/a" */
    char *key;      /* its text */
    uint32_t rule;
} sl_schema_item;

typedef struct sl_schema {
    json_t *root;
    sl_grammar *grammar;
    sl_schema_item *items;
    size_t n_items, item_room;
    size_t first;    /* of the items that have the present root */
    uint32_t *slots; /* [n_slots], of items by text */
    size_t n_slots;
    size_t n_key_bytes, n_merges, n_looks;
    const sl_schema_item *at;  /* being compiled */
    uint32_t space, character; /* SL_NFA_NONE until made: a rule and a counted text */
    bool no_tags;              /* strings stand between tags: '<' is only written as an escape */
} sl_schema;

/* ---- schema.c ---- */

/* A sentence with the pointer of the schema at hand and a keyword (NULL: none). */
sl_status sl_schema_fail(const sl_schema *s, sl_status status, const char *keyword,
                         const char *what, sl_error *err);
sl_status sl_schema_unsupported(const sl_schema *s, const char *keyword, const char *what,
                                sl_error *err);

/* Makes the rule for white space; to be called once, before any schema is compiled. */
sl_status sl_schema_begin(sl_schema *s, sl_error *err);

/* Defines the rules that were asked for, and those that they ask for, from item `first` on. */
sl_status sl_schema_define(sl_schema *s, size_t first, sl_error *err);

/* Forgets which schema has which rule: the next ones have another root. */
void sl_schema_forget(sl_schema *s);
void sl_schema_free(sl_schema *s);

/* The rule of a schema, which stands at `below` below the one at hand ("properties/a"). */
sl_status sl_schema_rule(sl_schema *s, json_t *schema, const char *below, uint32_t *rule,
                         sl_error *err);

/* frag, and then a text, the rule of a schema, white space. */
sl_status sl_schema_text(sl_schema *s, sl_frag *frag, const char *text, size_t n, sl_error *err);
sl_status sl_schema_call(sl_schema *s, sl_frag *frag, uint32_t rule, sl_error *err);
sl_status sl_schema_space(sl_schema *s, sl_frag *frag, sl_error *err);

/* A keyword that must be a whole number from 0 on; `fallback` when it is missing. */
sl_status sl_schema_count(const sl_schema *s, const json_t *schema, const char *keyword,
                          uint32_t fallback, uint32_t *out, sl_error *err);

/* The type of a value. */
unsigned sl_schema_type_of(const json_t *value);

/* The set of types of a schema that has no references: what it says, or else what its keywords are
 * about. */
sl_status sl_schema_types(const sl_schema *s, const json_t *schema, unsigned *types, sl_error *err);

/* ---- schema_merge.c ---- */

/* What is left of a schema besides what says nothing about values: true when that is only keyword
 * (or nothing, when it is NULL). */
bool sl_schema_is_only(const json_t *schema, const char *keyword);
bool sl_schema_is_annotation(const char *keyword);

/* The target of a reference, borrowed. */
sl_status sl_schema_resolve(const sl_schema *s, const char *reference, json_t **out, sl_error *err);

/* One schema, or several to choose from (anyOf), without $ref, allOf and oneOf at its top, new. */
sl_status sl_schema_flatten(sl_schema *s, json_t *schema, json_t **out, sl_error *err);
sl_status sl_schema_merge(sl_schema *s, const json_t *a, const json_t *b, json_t **out,
                          sl_error *err);

/* ---- by type ---- */

sl_status sl_schema_number(sl_schema *s, const json_t *schema, bool integer, sl_frag *out,
                           sl_error *err);
bool sl_schema_number_fits(const json_t *schema, const json_t *value);
sl_status sl_schema_string(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err);
/* The texts that the keywords about strings leave; *any, and no automaton, when that is all. */
sl_status sl_schema_language(const sl_schema *s, const json_t *schema, bool *any, sl_cdfa *out,
                             sl_error *err);
/* A JSON string of a language, or of any text (NULL), with its quotes. */
sl_status sl_schema_string_of(sl_schema *s, const sl_cdfa *language, sl_frag *out, sl_error *err);
/* The texts of a language as they are, without quotes. */
sl_status sl_schema_raw_text(sl_schema *s, const sl_cdfa *language, sl_frag *out, sl_error *err);
sl_status sl_schema_object(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err);
sl_status sl_schema_array(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err);

#endif
