/* A JSON Schema validator for tests: plain, recursive, and sharing nothing with the grammars made
 * of schemas. Patterns go through the C library's regular expressions. */
#ifndef SL_TESTS_JSON_CHECK_H
#define SL_TESTS_JSON_CHECK_H

#include "base/json.h"

/* Whether value is valid by schema, a part of root. why (at least 256 bytes): what is wrong. */
bool sl_json_check(const json_t *root, const json_t *schema, const json_t *value, char *why);

#endif
