/* A request as it comes from a socket: its head, and behind it a body in chunks. However it is cut
 * into pieces, the reading is the same; texts lie within the head; and a head that is taken tells
 * the length of its body in one way at most. */
#include <string.h>

#include "fuzz.h"
#include "http_head.h"

enum { MAX_FIELDS = 20 };

static sl_http_limits limits_of(void)
{
    sl_http_limits limits = {.target_bytes = 200, .head_bytes = 2000, .headers = MAX_FIELDS};
    return limits;
}

/* Where the head ends, and how. */
static int scan(const char *bytes, size_t n, size_t piece, size_t *end)
{
    const sl_http_limits limits = limits_of();
    sl_http_scan state = {0};
    for (size_t i = 0; i < n; i += piece) {
        size_t used = 0;
        const int result =
            sl_http_scan_bytes(&state, &limits, bytes + i, sl_min_size(piece, n - i), &used);
        *end = i + used;
        if (result != SL_HTTP_MORE)
            return result;
        sl_fuzz_check(used == sl_min_size(piece, n - i));
    }
    return SL_HTTP_MORE;
}

static void check_within(sl_str text, const char *bytes, size_t n)
{
    sl_fuzz_check(!text.data || (text.data >= bytes && text.data <= bytes + n &&
                                 text.n_bytes <= (size_t)(bytes + n - text.data)));
}

static unsigned count(const sl_http_head *head, const char *name)
{
    unsigned n = 0;
    for (size_t i = 0; i < head->n_fields; i++) {
        const sl_http_head one = {.fields = &head->fields[i], .n_fields = 1};
        n += sl_http_head_find(&one, name).data != NULL;
    }
    return n;
}

static void parse(const char *bytes, size_t n)
{
    const sl_http_limits limits = limits_of();
    sl_http_field fields[MAX_FIELDS];
    sl_http_head head;
    const char *why = NULL;
    const int status = sl_http_head_parse(bytes, n, &limits, fields, &head, &why);
    sl_fuzz_check(status == 0 || status == 400 || status == 414 || status == 417 || status == 431);
    sl_fuzz_check((status != 0) == (why != NULL));
    if (status)
        return;
    check_within(head.method_name, bytes, n);
    check_within(head.path, bytes, n);
    check_within(head.query, bytes, n);
    check_within(head.host, bytes, n);
    const unsigned n_length = count(&head, "Content-Length"),
                   n_coding = count(&head, "transfer-encoding");
    sl_fuzz_check(n_length + n_coding <= 1);
    sl_fuzz_check((head.framing == SL_HTTP_LENGTH) == (n_length == 1));
    sl_fuzz_check((head.framing == SL_HTTP_CHUNKED) == (n_coding == 1));
    sl_fuzz_check(head.minor == 0 || count(&head, "host") == 1);
    sl_fuzz_check(!memchr(bytes, '\0', n));
    for (size_t i = 0; i < head.n_fields; i++) {
        check_within(fields[i].name, bytes, n);
        check_within(fields[i].value, bytes, n);
        sl_fuzz_check(sl_http_is_token(fields[i].name));
    }
    char decoded[256];
    size_t n_decoded = 0;
    if (sl_http_decode(head.query, true, decoded, &n_decoded))
        sl_fuzz_check(n_decoded <= head.query.n_bytes);
}

typedef struct taken {
    int result;
    size_t n_used, n_data;
    uint64_t sum; /* of the data, in its order */
} taken;

static taken take(const char *bytes, size_t n, size_t piece)
{
    sl_http_chunks chunks = {0};
    taken all = {.result = SL_HTTP_MORE, .sum = 1};
    while (all.n_used < n && all.result == SL_HTTP_MORE) {
        /* Pieces end where they would have come to an end on a socket. */
        const size_t left = sl_min_size(piece - all.n_used % piece, n - all.n_used);
        const char *data;
        size_t used = 0, n_data = 0;
        all.result = sl_http_chunks_take(&chunks, bytes + all.n_used, left, &used, &data, &n_data);
        sl_fuzz_check(used > 0 && used <= left && n_data <= used);
        for (size_t i = 0; i < n_data; i++)
            all.sum = all.sum * 31 + (unsigned char)data[i];
        all.n_data += n_data;
        all.n_used += used;
    }
    return all;
}

static void body(const uint8_t *data, size_t n)
{
    char *bytes = sl_fuzz_copy(data, n);
    if (!bytes)
        return;
    size_t end = 0, other_end = 0;
    const int result = scan(bytes, n, n + 1, &end);
    for (size_t piece = 1; piece < 8; piece += 3) {
        sl_fuzz_check(scan(bytes, n, piece, &other_end) == result);
        sl_fuzz_check(result == SL_HTTP_MORE || result > 1 || end == other_end);
    }
    size_t behind = 0;
    if (result == SL_HTTP_END) {
        parse(bytes, end);
        behind = end;
    }
    const taken whole = take(bytes + behind, n - behind, n + 1);
    for (size_t piece = 1; piece < 8; piece += 3) {
        const taken cut = take(bytes + behind, n - behind, piece);
        sl_fuzz_check(cut.result == whole.result && cut.n_data == whole.n_data &&
                      cut.sum == whole.sum);
        sl_fuzz_check(whole.result == 400 || cut.n_used == whole.n_used);
    }
    sl_free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
