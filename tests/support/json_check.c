#include "json_check.h"

#include <locale.h>
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static bool wrong(char *why, const char *keyword)
{
    snprintf(why, 256, "%s", keyword);
    return false;
}

static double number_of(const json_t *value)
{
    const char *digits = sl_json_big_int(value, NULL);
    return digits ? strtod(digits, NULL) : json_number_value(value);
}

static bool is_number(const json_t *value)
{
    return json_is_number(value) || sl_json_big_int(value, NULL);
}

static bool is_integer(const json_t *value)
{
    return is_number(value) && floor(number_of(value)) == number_of(value);
}

static bool has_type(const char *type, const json_t *value)
{
    return (strcmp(type, "null") == 0 && json_is_null(value)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(value)) ||
           (strcmp(type, "integer") == 0 && is_integer(value)) ||
           (strcmp(type, "number") == 0 && is_number(value)) ||
           (strcmp(type, "string") == 0 && sl_json_is_string(value)) ||
           (strcmp(type, "array") == 0 && json_is_array(value)) ||
           (strcmp(type, "object") == 0 && json_is_object(value));
}

static size_t count_codes(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (s[i] & 0xC0) != 0x80;
    return count;
}

/* From ECMA-262 to POSIX, for what the test data has. */
static void translate(const char *from, char *to)
{
    bool in_class = false;
    for (; *from; from++) {
        if (from[0] == '\\' && strchr("dws", from[1])) {
            static const char *const sets[] = {"0-9", "A-Za-z0-9_", " \t\n\r\f\v"};
            const char *set = sets[strchr("dws", *++from) - "dws"];
            to += sprintf(to, in_class ? "%s" : "[%s]", set);
        } else if (from[0] == '\\' && from[1] == 'n') {
            *to++ = '\n';
            from++;
        } else if (from[0] == '\\' && from[1] == '-') {
            *to++ = *++from;
        } else if (from[0] == '\\' && in_class) {
            *to++ = *++from;
        } else if (strncmp(from, "(?:", 3) == 0) {
            *to++ = '(';
            from += 2;
        } else {
            in_class = in_class ? *from != ']' : *from == '[';
            *to++ = *from;
            if (*from == '\\')
                *to++ = *++from;
        }
    }
    *to = '\0';
}

static bool matches(const char *pattern, const char *text)
{
    char posix[4096];
    regex_t regex;
    static bool set;
    if (!set)
        setlocale(LC_CTYPE, "C.UTF-8");
    set = true;
    translate(pattern, posix);
    if (regcomp(&regex, posix, REG_EXTENDED | REG_NOSUB) != 0) {
        fprintf(stderr, "not a POSIX expression: %s\n", posix);
        abort();
    }
    const bool found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

static bool check_format(const char *format, const char *text)
{
    int y, m, d, n = 0;
    if (strcmp(format, "date") == 0 || strcmp(format, "date-time") == 0) {
        static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        if (sscanf(text, "%4d-%2d-%2d%n", &y, &m, &d, &n) != 3 || n != 10 || y < 1 || m < 1 ||
            m > 12 || d < 1)
            return false;
        const bool leap = m == 2 && y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
        return d <= days[m - 1] + leap && (strlen(text) == 10) == (strcmp(format, "date") == 0);
    }
    if (strcmp(format, "uuid") == 0)
        return strlen(text) == 36 && text[8] == '-' && text[23] == '-';
    if (strcmp(format, "ipv4") == 0)
        return sscanf(text, "%3d.%3d.%3d.%n", &y, &m, &d, &n) == 3 && y < 256 && m < 256 &&
               d < 256 && atoi(text + n) < 256;
    if (strcmp(format, "email") == 0)
        return strchr(text, '@') && strlen(strchr(text, '@')) > 2 && text[0] != '@';
    return true;
}

static bool check_number(const json_t *schema, double x, char *why)
{
    const json_t *limit;
    if ((limit = json_object_get(schema, "minimum")) && x < number_of(limit))
        return wrong(why, "minimum");
    if ((limit = json_object_get(schema, "maximum")) && x > number_of(limit))
        return wrong(why, "maximum");
    if ((limit = json_object_get(schema, "exclusiveMinimum")) && x <= number_of(limit))
        return wrong(why, "exclusiveMinimum");
    if ((limit = json_object_get(schema, "exclusiveMaximum")) && x >= number_of(limit))
        return wrong(why, "exclusiveMaximum");
    if ((limit = json_object_get(schema, "multipleOf")) && fmod(x, number_of(limit)) != 0)
        return wrong(why, "multipleOf");
    return true;
}

/* Whether a count lies between the two keywords. */
static bool check_count(const json_t *schema, const char *low, const char *high, size_t n,
                        char *why)
{
    const json_t *limit;
    if ((limit = json_object_get(schema, low)) && (double)n < number_of(limit))
        return wrong(why, low);
    if ((limit = json_object_get(schema, high)) && (double)n > number_of(limit))
        return wrong(why, high);
    return true;
}

static bool check_string(const json_t *schema, const json_t *value, char *why)
{
    const char *text = json_string_value(value);
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    if (pattern && !matches(json_string_value(pattern), text))
        return wrong(why, "pattern");
    if (format && !check_format(json_string_value(format), text))
        return wrong(why, "format");
    return check_count(schema, "minLength", "maxLength",
                       count_codes(text, json_string_length(value)), why);
}

static bool check_object(const json_t *root, const json_t *schema, const json_t *value, char *why)
{
    const char *name, *pattern;
    json_t *member, *one;
    size_t i;
    const json_t *others = json_object_get(schema, "additionalProperties");
    json_array_foreach(json_object_get(schema, "required"), i, one)
    {
        if (!json_object_get(value, json_string_value(one)))
            return wrong(why, "required");
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, member)
    {
        const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
        bool known = own != NULL;
        if (own && !sl_json_check(root, own, member, why))
            return false;
        json_object_foreach(json_object_get(schema, "patternProperties"), pattern, one)
        {
            if (!matches(pattern, name))
                continue;
            known = true;
            if (!sl_json_check(root, one, member, why))
                return false;
        }
        if (!known && others && !sl_json_check(root, others, member, why))
            return wrong(why, "additionalProperties");
        json_t *key = json_string(name);
        const json_t *names = json_object_get(schema, "propertyNames");
        const bool good = !names || sl_json_check(root, names, key, why);
        json_decref(key);
        if (!good)
            return false;
    }
    return check_count(schema, "minProperties", "maxProperties", json_object_size(value), why);
}

static bool check_array(const json_t *root, const json_t *schema, const json_t *value, char *why)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *rest = json_object_get(schema, "items");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (item && !sl_json_check(root, item, json_array_get(value, i), why))
            return false;
    }
    return check_count(schema, "minItems", "maxItems", json_array_size(value), why);
}

static const json_t *resolve(const json_t *root, const char *reference)
{
    char part[256];
    const json_t *at = root;
    for (reference++; *reference == '/';) {
        const size_t n = strcspn(++reference, "/");
        snprintf(part, sizeof part, "%.*s", (int)n, reference);
        at = json_object_get(at, part);
        reference += n;
    }
    return at;
}

static bool check_choices(const json_t *root, const json_t *schema, const json_t *value, char *why)
{
    size_t i, n = 0;
    json_t *branch;
    char ignored[256];
    json_array_foreach(json_object_get(schema, "allOf"), i, branch)
    {
        if (!sl_json_check(root, branch, value, why))
            return false;
    }
    json_array_foreach(json_object_get(schema, "anyOf"), i, branch)
    {
        n += sl_json_check(root, branch, value, ignored);
    }
    if (json_object_get(schema, "anyOf") && n == 0)
        return wrong(why, "anyOf");
    n = 0;
    json_array_foreach(json_object_get(schema, "oneOf"), i, branch)
    {
        n += sl_json_check(root, branch, value, ignored);
    }
    return !json_object_get(schema, "oneOf") || n == 1 || wrong(why, "oneOf");
}

static bool check_type(const json_t *schema, const json_t *value, char *why)
{
    const json_t *type = json_object_get(schema, "type");
    bool good = !type || (json_is_true(json_object_get(schema, "nullable")) && json_is_null(value));
    if (json_is_string(type))
        good = good || has_type(json_string_value(type), value);
    for (size_t i = 0; i < json_array_size(type); i++)
        good = good || has_type(json_string_value(json_array_get(type, i)), value);
    return good || wrong(why, "type");
}

bool sl_json_check(const json_t *root, const json_t *schema, const json_t *value, char *why)
{
    size_t i;
    json_t *one;
    if (json_is_boolean(schema))
        return json_is_true(schema) || wrong(why, "false");
    const json_t *reference = json_object_get(schema, "$ref");
    if (reference && !sl_json_check(root, resolve(root, json_string_value(reference)), value, why))
        return false;
    if (!check_type(schema, value, why) || !check_choices(root, schema, value, why))
        return false;
    const json_t *constant = json_object_get(schema, "const");
    if (constant && !json_equal(constant, value))
        return wrong(why, "const");
    bool listed = !json_object_get(schema, "enum");
    json_array_foreach(json_object_get(schema, "enum"), i, one)
    {
        listed = listed || json_equal(one, value);
    }
    if (!listed)
        return wrong(why, "enum");
    if (is_number(value))
        return check_number(schema, number_of(value), why);
    if (json_is_string(value))
        return check_string(schema, value, why);
    if (json_is_array(value))
        return check_array(root, schema, value, why);
    return !json_is_object(value) || check_object(root, schema, value, why);
}
