/* Messages as a client sends them: the given ones must stay as they are, and normalising what is
 * normalised must change nothing. */
#include "fuzz.h"
#include "text/chat.h"

static void normalise(const json_t *messages)
{
    sl_error err = {0};
    json_t *once = NULL, *twice = NULL, *before = json_deep_copy(messages);
    if (before && sl_fuzz_ok(sl_chat_normalise(messages, &once, &err), &err)) {
        sl_fuzz_check(json_equal(before, messages));
        sl_fuzz_check(json_is_array(once));
        const sl_status status = sl_chat_normalise(once, &twice, &err);
        sl_fuzz_check(status == SL_OK || status == SL_ERR_MEMORY);
        sl_fuzz_check(status != SL_OK || json_equal(once, twice));
    }
    json_decref(before);
    json_decref(once);
    json_decref(twice);
}

static void body(const uint8_t *data, size_t n)
{
    sl_error err = {0};
    json_t *messages = NULL;
    char *text = sl_fuzz_copy(data, n);
    if (text &&
        sl_fuzz_ok(sl_json_parse(text, n, "messages", sl_json_limits_default(), &messages, &err),
                   &err)) {
        if (json_is_array(messages))
            normalise(messages);
        json_decref(messages);
    }
    sl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
