/* Values as text: str(), repr() and json.dumps() of Python, with the marks of every string kept. */
#include "text/template_run.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"

static sl_status put_plain(tmpl_run *run, const char *text)
{
    return sl_tmpl_put(run, text, strlen(text), false);
}

static sl_status put_int(tmpl_run *run, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return put_plain(run, text);
}

static sl_status put_hex(tmpl_run *run, const char *form, uint32_t code, bool untrusted)
{
    char text[16];
    int n = snprintf(text, sizeof text, form, (unsigned)code);
    return sl_tmpl_put(run, text, (size_t)n, untrusted);
}

/* What str.isprintable says, but for differences between Unicode versions. */
static bool is_printable(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

/* A code point that repr must escape, or a quote or backslash. */
static sl_status put_repr_escape(tmpl_run *run, uint32_t code, bool untrusted)
{
    static const char letters[] = {['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    char pair[2] = {'\\', (char)code};
    if (code < sizeof letters && letters[code] != '\0')
        pair[1] = letters[code];
    else if (code < 0x20 || code >= 0x7F)
        return put_hex(run,
                       code < 0x100     ? "\\x%02x"
                       : code < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                       code, untrusted);
    return sl_tmpl_put(run, pair, 2, untrusted);
}

static sl_status put_str_repr(tmpl_run *run, const tmpl_str *s)
{
    sl_str text = s->s;
    bool apostrophe = text.n_bytes > 0 && memchr(text.data, '\'', text.n_bytes);
    char quote = apostrophe && !memchr(text.data, '"', text.n_bytes) ? '"' : '\'';
    tmpl_mark_cursor cursor = {s, 0};
    size_t begin = 0;
    SL_TRY(sl_tmpl_spend(run, text.n_bytes / 64));
    SL_TRY(sl_tmpl_put(run, &quote, 1, false));
    for (size_t at = 0; at < text.n_bytes;) {
        uint32_t code;
        size_t used = sl_utf8_decode(text.data + at, text.n_bytes - at, &code);
        if (code == (uint32_t)quote || code == '\\' || !is_printable(code)) {
            SL_TRY(sl_tmpl_put_part(run, s, begin, at));
            SL_TRY(put_repr_escape(run, code, sl_tmpl_marked_at(&cursor, at)));
            begin = at + used;
        }
        at += used;
    }
    SL_TRY(sl_tmpl_put_part(run, s, begin, text.n_bytes));
    return sl_tmpl_put(run, &quote, 1, false);
}

static sl_status put_seq_repr(tmpl_run *run, const tmpl_seq *seq, const char *open,
                              const char *close)
{
    SL_TRY(put_plain(run, open));
    for (size_t i = 0; i < seq->n; i++) {
        if (i > 0)
            SL_TRY(put_plain(run, ", "));
        SL_TRY(sl_tmpl_put_repr(run, sl_tmpl_seq_item(seq, i)));
    }
    return put_plain(run, close);
}

static sl_status put_dict_repr(tmpl_run *run, const tmpl_dict *dict)
{
    SL_TRY(put_plain(run, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0)
            SL_TRY(put_plain(run, ", "));
        SL_TRY(sl_tmpl_put_repr(run, dict->entries[i].key));
        SL_TRY(put_plain(run, ": "));
        SL_TRY(sl_tmpl_put_repr(run, dict->entries[i].value));
    }
    return put_plain(run, "}");
}

static sl_status put_range_repr(tmpl_run *run, const tmpl_seq *seq)
{
    SL_TRY(put_plain(run, "range("));
    SL_TRY(put_int(run, seq->start));
    SL_TRY(put_plain(run, ", "));
    SL_TRY(put_int(run, seq->stop));
    if (seq->step != 1) {
        SL_TRY(put_plain(run, ", "));
        SL_TRY(put_int(run, seq->step));
    }
    return put_plain(run, ")");
}

static sl_status put_container_repr(tmpl_run *run, tmpl_value value)
{
    switch ((tmpl_kind)value.kind) {
    case TMPL_LIST:
        return put_seq_repr(run, value.as.seq, "[", "]");
    case TMPL_TUPLE:
        return put_seq_repr(run, value.as.seq, "(", value.as.seq->n == 1 ? ",)" : ")");
    case TMPL_VIEW:
        SL_TRY(put_plain(run, value.as.seq->view));
        return put_seq_repr(run, value.as.seq, "([", "])");
    case TMPL_NAMESPACE:
        SL_TRY(put_plain(run, "<Namespace "));
        SL_TRY(put_dict_repr(run, value.as.attributes));
        return put_plain(run, ">");
    default:
        return put_dict_repr(run, value.as.dict);
    }
}

sl_status sl_tmpl_put_repr(tmpl_run *run, tmpl_value value)
{
    SL_TRY(sl_tmpl_spend(run, 1));
    switch ((tmpl_kind)value.kind) {
    case TMPL_UNDEFINED:
        return put_plain(run, "Undefined");
    case TMPL_NONE:
        return put_plain(run, "None");
    case TMPL_BOOL:
        return put_plain(run, value.as.boolean ? "True" : "False");
    case TMPL_INT:
        return put_int(run, value.as.integer);
    case TMPL_BIG_INT:
        return sl_tmpl_put(run, value.as.digits->data, value.as.digits->n_bytes, false);
    case TMPL_FLOAT:
        return sl_tmpl_put_float(run, value.as.real, -1);
    case TMPL_STRING:
        if (!value.as.string->markup)
            return put_str_repr(run, value.as.string);
        SL_TRY(put_plain(run, "Markup("));
        SL_TRY(put_str_repr(run, value.as.string));
        return put_plain(run, ")");
    case TMPL_RANGE:
        return put_range_repr(run, value.as.seq);
    case TMPL_LIST:
    case TMPL_TUPLE:
    case TMPL_VIEW:
    case TMPL_NAMESPACE:
    case TMPL_DICT:
        SL_TRY(sl_tmpl_enter(run));
        SL_TRY(put_container_repr(run, value));
        tmpl_leave(run);
        return SL_OK;
    case TMPL_FUNCTION:
        if (value.as.function->macro) {
            sl_str name = value.as.function->macro->as.macro.signature.name;
            SL_TRY(put_plain(run, "<Macro '"));
            SL_TRY(sl_tmpl_put(run, name.data, name.n_bytes, false));
            return put_plain(run, "'>");
        }
        /* fall through */
    default: /* Python would print an address */
        return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED, "%s cannot be printed",
                            sl_tmpl_kind_name((tmpl_kind)value.kind));
    }
}

sl_status sl_tmpl_put_value(tmpl_run *run, tmpl_value value)
{
    if (value.kind == TMPL_STRING)
        return sl_tmpl_put_str(run, value.as.string);
    if (value.kind == TMPL_UNDEFINED && value.lack == TMPL_LACK_UNSAFE)
        return sl_tmpl_undefined_error(run, value);
    return value.kind == TMPL_UNDEFINED ? SL_OK : sl_tmpl_put_repr(run, value);
}

sl_status sl_tmpl_to_str(tmpl_run *run, tmpl_value value, tmpl_str **out)
{
    if (value.kind != TMPL_STRING) {
        tmpl_capture capture = sl_tmpl_capture(run);
        SL_TRY(sl_tmpl_put_value(run, value));
        SL_TRY(sl_tmpl_captured(run, capture, &value));
    }
    *out = value.as.string;
    return SL_OK;
}

/* ---- tojson ---- */

typedef struct dumper {
    tmpl_run *run;
    bool ascii, sorted;
    const tmpl_str *indent; /* one level; NULL: all on one line */
    tmpl_str blanks;        /* what indent points to when it was given as a number */
    const tmpl_str *item_separator, *key_separator;
    size_t level;
} dumper;

static sl_status dump(dumper *d, tmpl_value value);

static sl_status put_json_escape(tmpl_run *run, uint32_t code, bool untrusted)
{
    static const char letters[] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r',
                                   ['\t'] = 't', ['"'] = '"',  ['\\'] = '\\'};
    if (code < sizeof letters && letters[code] != '\0') {
        char pair[2] = {'\\', letters[code]};
        return sl_tmpl_put(run, pair, 2, untrusted);
    }
    if (code < 0x10000)
        return put_hex(run, "\\u%04x", code, untrusted);
    SL_TRY(put_hex(run, "\\u%04x", 0xD800 + ((code - 0x10000) >> 10), untrusted));
    return put_hex(run, "\\u%04x", 0xDC00 + ((code - 0x10000) & 0x3FF), untrusted);
}

static sl_status dump_str(const dumper *d, const tmpl_str *s)
{
    tmpl_run *run = d->run;
    tmpl_mark_cursor cursor = {s, 0};
    size_t begin = 0;
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 128));
    SL_TRY(put_plain(run, "\""));
    for (size_t at = 0; at < s->s.n_bytes;) {
        uint32_t code;
        size_t used = sl_utf8_decode(s->s.data + at, s->s.n_bytes - at, &code);
        if (code < 0x20 || code == '"' || code == '\\' || (d->ascii && code >= 0x7F)) {
            SL_TRY(sl_tmpl_put_part(run, s, begin, at));
            SL_TRY(put_json_escape(run, code, sl_tmpl_marked_at(&cursor, at)));
            begin = at + used;
        }
        at += used;
    }
    SL_TRY(sl_tmpl_put_part(run, s, begin, s->s.n_bytes));
    return put_plain(run, "\"");
}

static sl_status dump_newline(const dumper *d)
{
    if (!d->indent)
        return SL_OK;
    SL_TRY(put_plain(d->run, "\n"));
    for (size_t i = 0; i < d->level; i++)
        SL_TRY(sl_tmpl_put_str(d->run, d->indent));
    return SL_OK;
}

static sl_status dump_seq(dumper *d, const tmpl_seq *seq)
{
    if (seq->n == 0)
        return put_plain(d->run, "[]");
    SL_TRY(put_plain(d->run, "["));
    d->level++;
    for (size_t i = 0; i < seq->n; i++) {
        if (i > 0)
            SL_TRY(sl_tmpl_put_str(d->run, d->item_separator));
        SL_TRY(dump_newline(d));
        SL_TRY(dump(d, seq->items[i]));
    }
    d->level--;
    SL_TRY(dump_newline(d));
    return put_plain(d->run, "]");
}

static sl_status dump_key(dumper *d, tmpl_value key)
{
    switch ((tmpl_kind)key.kind) {
    case TMPL_STRING:
        return dump_str(d, key.as.string);
    case TMPL_NONE:
    case TMPL_BOOL:
    case TMPL_INT:
    case TMPL_BIG_INT:
    case TMPL_FLOAT:
        SL_TRY(put_plain(d->run, "\""));
        SL_TRY(dump(d, key));
        return put_plain(d->run, "\"");
    default:
        return sl_tmpl_fail(d->run, SL_ERR_ARGUMENT, "%s as a key in JSON",
                            sl_tmpl_kind_name((tmpl_kind)key.kind));
    }
}

static sl_status dump_entries(dumper *d, const tmpl_dict *dict)
{
    SL_TRY(put_plain(d->run, "{"));
    d->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0)
            SL_TRY(sl_tmpl_put_str(d->run, d->item_separator));
        SL_TRY(dump_newline(d));
        SL_TRY(dump_key(d, dict->entries[i].key));
        SL_TRY(sl_tmpl_put_str(d->run, d->key_separator));
        SL_TRY(dump(d, dict->entries[i].value));
    }
    d->level--;
    SL_TRY(dump_newline(d));
    return put_plain(d->run, "}");
}

static sl_status dump_dict(dumper *d, const tmpl_dict *dict)
{
    if (dict->n == 0)
        return put_plain(d->run, "{}");
    if (!d->sorted)
        return dump_entries(d, dict);
    tmpl_dict ordered = *dict;
    SL_TRY(sl_tmpl_new(d->run, dict->n, sizeof *ordered.entries, &ordered.entries));
    memcpy(ordered.entries, dict->entries, dict->n * sizeof *ordered.entries);
    SL_TRY(sl_tmpl_sort(d->run, ordered.entries, ordered.n, false));
    return dump_entries(d, &ordered);
}

static sl_status dump(dumper *d, tmpl_value value)
{
    tmpl_run *run = d->run;
    SL_TRY(sl_tmpl_spend(run, 1));
    switch ((tmpl_kind)value.kind) {
    case TMPL_NONE:
        return put_plain(run, "null");
    case TMPL_BOOL:
        return put_plain(run, value.as.boolean ? "true" : "false");
    case TMPL_INT:
        return put_int(run, value.as.integer);
    case TMPL_BIG_INT:
        return sl_tmpl_put(run, value.as.digits->data, value.as.digits->n_bytes, false);
    case TMPL_FLOAT:
        if (value.as.real != value.as.real)
            return put_plain(run, "NaN");
        if (value.as.real - value.as.real != 0)
            return put_plain(run, value.as.real < 0 ? "-Infinity" : "Infinity");
        return sl_tmpl_put_float(run, value.as.real, -1);
    case TMPL_STRING:
        return dump_str(d, value.as.string);
    case TMPL_LIST:
    case TMPL_TUPLE:
        SL_TRY(sl_tmpl_enter(run));
        SL_TRY(dump_seq(d, value.as.seq));
        tmpl_leave(run);
        return SL_OK;
    case TMPL_DICT:
        SL_TRY(sl_tmpl_enter(run));
        SL_TRY(dump_dict(d, value.as.dict));
        tmpl_leave(run);
        return SL_OK;
    default:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s cannot be written as JSON",
                            sl_tmpl_kind_name((tmpl_kind)value.kind));
    }
}

/* separators=(item, key) */
static sl_status read_separators(dumper *d, tmpl_value pair)
{
    const tmpl_value *items;
    size_t n;
    SL_TRY(sl_tmpl_items(d->run, pair, &items, &n));
    if (n != 2 || items[0].kind != TMPL_STRING || items[1].kind != TMPL_STRING)
        return sl_tmpl_fail(d->run, SL_ERR_ARGUMENT, "tojson: separators must be two strings");
    d->item_separator = items[0].as.string;
    d->key_separator = items[1].as.string;
    return SL_OK;
}

static sl_status read_indent(dumper *d, tmpl_value indent)
{
    static const char blanks[] = "                                ";
    int64_t width = 0;
    if (indent.kind == TMPL_STRING) {
        d->indent = indent.as.string;
        return SL_OK;
    }
    if (!sl_tmpl_as_int(indent, &width) || width >= (int64_t)sizeof blanks)
        return sl_tmpl_fail(d->run, SL_ERR_ARGUMENT,
                            "tojson: indent must be a string or a number up to %zu",
                            sizeof blanks - 1);
    d->blanks.s = (sl_str){blanks, width < 0 ? 0 : (size_t)width};
    d->indent = &d->blanks;
    return SL_OK;
}

/* As transformers defines it: json.dumps(x, ensure_ascii, indent, separators, sort_keys). */
sl_status sl_tmpl_filter_tojson(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    static const tmpl_str comma_blank = {.s = {", ", 2}}, comma = {.s = {",", 1}},
                          colon = {.s = {": ", 2}};
    dumper d = {.run = run,
                .ascii = sl_tmpl_truth(args[0]),
                .sorted = sl_tmpl_truth(args[3]),
                .item_separator = &comma_blank,
                .key_separator = &colon};
    if (args[1].kind != TMPL_MISSING && args[1].kind != TMPL_NONE) {
        d.item_separator = &comma;
        SL_TRY(read_indent(&d, args[1]));
    }
    if (args[2].kind != TMPL_MISSING && args[2].kind != TMPL_NONE)
        SL_TRY(read_separators(&d, args[2]));
    tmpl_capture capture = sl_tmpl_capture(run);
    SL_TRY(dump(&d, self));
    return sl_tmpl_captured(run, capture, out);
}
