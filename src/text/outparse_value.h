/* Typing of the parameter values of tool calls. */
#ifndef SL_TEXT_OUTPARSE_VALUE_H
#define SL_TEXT_OUTPARSE_VALUE_H

#include "text/outparse_json.h"

/* What a JSON schema lets a value be. */
typedef enum sl_value_types {
    SL_VALUE_STRING = 1 << 0,
    SL_VALUE_INTEGER = 1 << 1,
    SL_VALUE_NUMBER = 1 << 2,
    SL_VALUE_BOOLEAN = 1 << 3,
    SL_VALUE_NULL = 1 << 4,
    SL_VALUE_ARRAY = 1 << 5,
    SL_VALUE_OBJECT = 1 << 6,
    SL_VALUE_ANY = 1 << 7 /* declared, but nothing is said of its type */
} sl_value_types;

/* The function called `name` in the tools array (may be NULL), or NULL. */
const json_t *sl_outparse_function(const json_t *tools, sl_str name);

/* Its parameter schema: "parameters" or "input_schema"; NULL when it has none with properties. */
const json_t *sl_outparse_schema(const json_t *function);

/* The schema of one parameter, or NULL. */
const json_t *sl_outparse_parameter(const json_t *schema, sl_str name);

/* The types a parameter's schema allows: "type" (a name or a list, also as in Python: str, int,
 * float, bool, dict, list), "enum", "const", "nullable", "properties", "items", and through
 * anyOf, oneOf, allOf and $ref into `root`. NULL (not declared) is a string. */
unsigned sl_outparse_types(const json_t *root, const json_t *parameter);

/* Appends the JSON value that the text of a parameter stands for, the first that fits of:
 *   null       null, None
 *   boolean    true, false, True, False
 *   integer    digits with a sign; 5.0 becomes 5
 *   number     as in JSON, and 5. .5 +5 007
 *   array, object   JSON, as lenient as outparse_json.h
 *   string     the text as it is
 * White space around all but strings is dropped. When a string is allowed too, numbers must be
 * written as in JSON (02134 stays a string); a value of which nothing is declared must be strict
 * JSON throughout to be other than a string. When no string is allowed, quotes around a number,
 * boolean or null are dropped. What fits nothing is a string: *fits is false.
 * *repaired is set when the value was not written as in JSON. */
sl_status sl_outparse_value(unsigned types, sl_str text, sl_lax_json *scratch, sl_buf *out,
                            bool *fits, bool *repaired, sl_error *err);

/* Appends s as the inside of a JSON string; pieces may be cut anywhere. */
sl_status sl_outparse_escape(sl_buf *out, sl_str s, sl_error *err);

#endif
