/* Owns the grammar of request heads and of chunked bodies (RFC 9112). Refuses every form that is
 * merely tolerated: who sends one is broken, or wants two servers to read two different things. */
#include "http_head.h"

#include <string.h>

#include "base/str.h"
#include "base/utf8.h"

enum { BAD_REQUEST = 400, URI_TOO_LONG = 414, HEAD_TOO_LARGE = 431 };

/* "OPTIONS " and " HTTP/1.1" around a target. */
enum { AROUND_TARGET = 24 };

int sl_http_scan_bytes(sl_http_scan *scan, const sl_http_limits *limits, const char *bytes,
                       size_t n, size_t *used)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (++scan->n_bytes > limits->head_bytes)
            return HEAD_TOO_LARGE;
        if (scan->cr) {
            if (c != '\n')
                return BAD_REQUEST;
            scan->cr = false;
            if (scan->n_line == 0) {
                *used = i + 1;
                return scan->behind_first ? SL_HTTP_END : BAD_REQUEST;
            }
            scan->behind_first = true;
            scan->n_line = 0;
        } else if (c == '\r') {
            scan->cr = true;
        } else if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return BAD_REQUEST;
        } else if (++scan->n_line > limits->target_bytes + AROUND_TARGET && !scan->behind_first) {
            return URI_TOO_LONG;
        }
    }
    *used = n;
    return SL_HTTP_MORE;
}

static bool is_token_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

bool sl_http_is_token(sl_str text)
{
    for (size_t i = 0; i < text.n_bytes; i++) {
        if (!is_token_char(text.data[i]))
            return false;
    }
    return text.n_bytes > 0;
}

static bool same_text(sl_str a, const char *b)
{
    if (a.n_bytes != strlen(b))
        return false;
    for (size_t i = 0; i < a.n_bytes; i++) {
        const int x = a.data[i] >= 'A' && a.data[i] <= 'Z' ? a.data[i] + ('a' - 'A') : a.data[i];
        const int y = b[i] >= 'A' && b[i] <= 'Z' ? b[i] + ('a' - 'A') : b[i];
        if (x != y)
            return false;
    }
    return true;
}

static sl_str trimmed(sl_str text)
{
    while (text.n_bytes > 0 && (text.data[0] == ' ' || text.data[0] == '\t'))
        text.data++, text.n_bytes--;
    while (text.n_bytes > 0 &&
           (text.data[text.n_bytes - 1] == ' ' || text.data[text.n_bytes - 1] == '\t'))
        text.n_bytes--;
    return text;
}

/* Takes what stands before the first `end` off *rest; without one, all of it. */
static sl_str take_until(sl_str *rest, char end)
{
    const char *found = rest->n_bytes > 0 ? memchr(rest->data, end, rest->n_bytes) : NULL;
    const size_t n = found ? (size_t)(found - rest->data) : rest->n_bytes;
    const sl_str taken = {rest->data, n};
    const size_t skip = found ? n + 1 : n;
    rest->data += skip;
    rest->n_bytes -= skip;
    return taken;
}

bool sl_http_list_has(sl_str list, const char *token)
{
    while (list.n_bytes > 0) {
        if (same_text(trimmed(take_until(&list, ',')), token))
            return true;
    }
    return false;
}

sl_str sl_http_head_find(const sl_http_head *head, const char *name)
{
    for (size_t i = 0; i < head->n_fields; i++) {
        if (same_text(head->fields[i].name, name))
            return head->fields[i].value;
    }
    return (sl_str){NULL, 0};
}

static const struct {
    const char *name;
    sl_http_method method;
} methods[] = {
    {"GET", SL_HTTP_GET},     {"POST", SL_HTTP_POST},     {"HEAD", SL_HTTP_HEAD},
    {"PUT", SL_HTTP_PUT},     {"DELETE", SL_HTTP_DELETE}, {"OPTIONS", SL_HTTP_OPTIONS},
    {"PATCH", SL_HTTP_PATCH},
};

static int bad(const char **why, const char *sentence)
{
    *why = sentence;
    return BAD_REQUEST;
}

/* What may stand in a target: visible ASCII. */
static bool is_visible(sl_str text)
{
    for (size_t i = 0; i < text.n_bytes; i++) {
        if (text.data[i] <= ' ' || text.data[i] >= 0x7f)
            return false;
    }
    return text.n_bytes > 0;
}

/* Splits a host from its port. False when it is none: a name or an IPv4 address of letters, digits,
 * '.', '-' and '_', or an IPv6 address in brackets. */
static bool split_host(sl_str text, sl_str *host)
{
    size_t n = 0;
    if (text.n_bytes > 0 && text.data[0] == '[') {
        n = 1;
        while (n < text.n_bytes && text.data[n] != ']') {
            const char c = text.data[n++];
            if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F') &&
                c != ':' && c != '.')
                return false;
        }
        if (n++ == text.n_bytes)
            return false;
    } else {
        while (n < text.n_bytes && text.data[n] != ':') {
            const char c = text.data[n++];
            if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
                c != '.' && c != '-' && c != '_')
                return false;
        }
    }
    *host = (sl_str){text.data, n};
    if (n == 0 || n == text.n_bytes)
        return n > 0;
    if (text.data[n++] != ':' || text.n_bytes - n > 5)
        return false;
    for (; n < text.n_bytes; n++) {
        if (text.data[n] < '0' || text.data[n] > '9')
            return false;
    }
    return true;
}

/* The request target: a path, a whole URL as for a proxy (its authority is put into *authority), or
 * "*" with OPTIONS. */
static int parse_target(sl_str target, sl_http_head *head, sl_str *authority, const char **why)
{
    if (!is_visible(target))
        return bad(why, "The request target holds a byte that must be escaped.");
    if (target.n_bytes == 1 && target.data[0] == '*' && head->method == SL_HTTP_OPTIONS) {
        head->path = target;
        return 0;
    }
    const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < SL_COUNTOF(schemes) && !authority->data; i++) {
        const size_t n = strlen(schemes[i]);
        if (target.n_bytes > n && same_text((sl_str){target.data, n}, schemes[i])) {
            size_t end = n;
            while (end < target.n_bytes && target.data[end] != '/' && target.data[end] != '?')
                end++;
            *authority = (sl_str){target.data + n, end - n};
            target.data += end;
            target.n_bytes -= end;
            if (target.n_bytes == 0 || target.data[0] != '/')
                return bad(why, "The request target has no path.");
        }
    }
    if (target.data[0] != '/')
        return bad(why, "The request target is no path.");
    if (memchr(target.data, '#', target.n_bytes))
        return bad(why, "The request target holds a fragment.");
    head->path = take_until(&target, '?');
    head->query = target;
    return 0;
}

static int parse_request_line(sl_str line, const sl_http_limits *limits, sl_http_head *head,
                              sl_str *authority, const char **why)
{
    head->method_name = take_until(&line, ' ');
    const sl_str target = take_until(&line, ' ');
    if (!sl_http_is_token(head->method_name))
        return bad(why, "The request does not begin with a method.");
    if (sl_str_is(line, "HTTP/1.1"))
        head->minor = 1;
    else if (!sl_str_is(line, "HTTP/1.0"))
        return bad(why, "The request line does not end in HTTP/1.1 or HTTP/1.0.");
    for (size_t i = 0; i < SL_COUNTOF(methods); i++) {
        if (sl_str_is(head->method_name, methods[i].name))
            head->method = methods[i].method;
    }
    if (target.n_bytes > limits->target_bytes) {
        *why = "The request target is too long.";
        return URI_TOO_LONG;
    }
    return parse_target(target, head, authority, why);
}

/* One or more digits, nothing else. */
static bool parse_length(sl_str text, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < text.n_bytes; i++) {
        const char c = text.data[i];
        if (c < '0' || c > '9' || value > (INT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(c - '0');
    }
    *out = value;
    return text.n_bytes > 0;
}

/* How the body is framed: at most one way, and that one plainly. */
static int parse_framing(sl_http_head *head, const char **why)
{
    unsigned n_length = 0, n_coding = 0;
    for (size_t i = 0; i < head->n_fields; i++) {
        const sl_http_field *field = &head->fields[i];
        if (same_text(field->name, "content-length")) {
            n_length++;
            if (!parse_length(field->value, &head->length))
                return bad(why, "Content-Length is not a number of bytes.");
        } else if (same_text(field->name, "transfer-encoding")) {
            n_coding++;
            if (!same_text(field->value, "chunked"))
                return bad(why, "The only Transfer-Encoding that is read is chunked.");
        }
    }
    if (n_length + n_coding > 1)
        return bad(why, "The length of the body is given more than once.");
    if (n_coding && head->minor == 0)
        return bad(why, "HTTP/1.0 has no Transfer-Encoding.");
    head->framing = n_coding ? SL_HTTP_CHUNKED : n_length ? SL_HTTP_LENGTH : SL_HTTP_NO_BODY;
    return 0;
}

static int parse_host(sl_http_head *head, sl_str authority, const char **why)
{
    unsigned n = 0;
    for (size_t i = 0; i < head->n_fields; i++) {
        if (same_text(head->fields[i].name, "host")) {
            n++;
            head->host_port = head->fields[i].value;
        }
    }
    if (n > 1 || (n == 0 && head->minor == 1))
        return bad(why, n ? "There is more than one Host header." : "There is no Host header.");
    if (authority.data)
        head->host_port = authority;
    if (head->host_port.data && !split_host(head->host_port, &head->host))
        return bad(why, "The host is not a name or address with perhaps a port.");
    return 0;
}

static int parse_field(sl_str line, sl_http_field *field, const char **why)
{
    if (line.data[0] == ' ' || line.data[0] == '\t')
        return bad(why, "A header line is folded.");
    if (!memchr(line.data, ':', line.n_bytes))
        return bad(why, "A header line has no colon.");
    field->name = take_until(&line, ':');
    field->value = trimmed(line);
    if (!sl_http_is_token(field->name))
        return bad(why, "The name of a header holds a byte that no name has.");
    return 0;
}

int sl_http_head_parse(const char *bytes, size_t n, const sl_http_limits *limits,
                       sl_http_field *fields, sl_http_head *head, const char **why)
{
    *head = (sl_http_head){.fields = fields};
    sl_str rest = {bytes, n}, authority = {NULL, 0};
    for (bool first = true;; first = false) {
        sl_str line = take_until(&rest, '\n');
        if (line.n_bytes == 0 || line.data[line.n_bytes - 1] != '\r')
            return bad(why, "A line does not end in CR LF.");
        line.n_bytes--;
        if (line.n_bytes == 0 && !first)
            break;
        int status;
        if (first) {
            status = parse_request_line(line, limits, head, &authority, why);
        } else if (head->n_fields == limits->headers) {
            *why = "There are too many headers.";
            status = HEAD_TOO_LARGE;
        } else {
            status = parse_field(line, &fields[head->n_fields++], why);
        }
        if (status)
            return status;
    }
    int status = parse_framing(head, why);
    if (status == 0)
        status = parse_host(head, authority, why);
    if (status)
        return status;
    head->keep_alive = head->minor == 1;
    for (size_t i = 0; i < head->n_fields; i++) {
        if (!same_text(fields[i].name, "connection"))
            continue;
        if (sl_http_list_has(fields[i].value, "close")) {
            head->keep_alive = false;
            break;
        }
        if (sl_http_list_has(fields[i].value, "keep-alive"))
            head->keep_alive = true;
    }
    const sl_str expect = sl_http_head_find(head, "expect");
    if (expect.data && head->minor == 1) {
        if (!same_text(expect, "100-continue")) {
            *why = "The only expectation that is met is 100-continue.";
            return 417;
        }
        head->expects_continue = true;
    }
    return 0;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool sl_http_decode(sl_str text, bool plus, char *out, size_t *n)
{
    size_t written = 0;
    for (size_t i = 0; i < text.n_bytes; i++) {
        char c = text.data[i];
        if (c == '%') {
            const int high = text.n_bytes - i > 2 ? hex_value(text.data[i + 1]) : -1;
            const int low = high >= 0 ? hex_value(text.data[i + 2]) : -1;
            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == '\0')
            return false;
        out[written++] = c;
    }
    *n = written;
    return sl_utf8_valid(out, written, NULL);
}

/* ---- chunked bodies ---- */

enum {
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER_START,
    TRAILER,
    TRAILER_LF,
    LAST_LF
};

/* Of all extensions and trailers of one body. */
enum { MAX_IGNORED = 4096, MAX_DIGITS = 15 };

/* Reads one byte between the data of two chunks. */
static int framing_byte(sl_http_chunks *chunks, char c)
{
    const bool control = ((unsigned char)c < 0x20 && c != '\t') || c == 0x7f;
    switch (chunks->state) {
    case SIZE:
        if (hex_value(c) >= 0 && chunks->digits < MAX_DIGITS) {
            chunks->left = chunks->left * 16 + (uint64_t)hex_value(c);
            chunks->digits++;
            return SL_HTTP_MORE;
        }
        if (chunks->digits == 0 || (c != '\r' && c != ';'))
            return BAD_REQUEST;
        chunks->state = c == ';' ? EXTENSION : SIZE_LF;
        return SL_HTTP_MORE;
    case EXTENSION:
    case TRAILER:
        if (c == '\r') {
            chunks->state = chunks->state == EXTENSION ? SIZE_LF : TRAILER_LF;
            return SL_HTTP_MORE;
        }
        return control || ++chunks->n_extension > MAX_IGNORED ? BAD_REQUEST : SL_HTTP_MORE;
    case SIZE_LF:
        chunks->state = chunks->left > 0 ? DATA : TRAILER_START;
        chunks->digits = 0;
        return c == '\n' ? SL_HTTP_MORE : BAD_REQUEST;
    case DATA_CR:
        chunks->state = DATA_LF;
        return c == '\r' ? SL_HTTP_MORE : BAD_REQUEST;
    case DATA_LF:
        chunks->state = SIZE;
        return c == '\n' ? SL_HTTP_MORE : BAD_REQUEST;
    case TRAILER_START:
        chunks->state = c == '\r' ? LAST_LF : TRAILER;
        return c == '\r' || is_token_char(c) ? SL_HTTP_MORE : BAD_REQUEST;
    case TRAILER_LF:
        chunks->state = TRAILER_START;
        return c == '\n' ? SL_HTTP_MORE : BAD_REQUEST;
    default: /* LAST_LF */
        return c == '\n' ? SL_HTTP_END : BAD_REQUEST;
    }
}

int sl_http_chunks_take(sl_http_chunks *chunks, const char *bytes, size_t n, size_t *used,
                        const char **data, size_t *n_data)
{
    *n_data = 0;
    *data = bytes;
    for (size_t i = 0; i < n; i++) {
        if (chunks->state == DATA) {
            *data = bytes + i;
            *n_data = (size_t)(chunks->left < n - i ? chunks->left : n - i);
            chunks->left -= *n_data;
            if (chunks->left == 0)
                chunks->state = DATA_CR;
            *used = i + *n_data;
            return SL_HTTP_MORE;
        }
        const int result = framing_byte(chunks, bytes[i]);
        if (result != SL_HTTP_MORE) {
            *used = i + 1;
            return result;
        }
    }
    *used = n;
    return SL_HTTP_MORE;
}
