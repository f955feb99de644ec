#include "ids.h"

#include <stdio.h>
#include <string.h>

#include "opts.h"

sl_status sl_parse_ids(const char *text, size_t n_vocab, sl_ids *ids, sl_error *err)
{
    static const char separators[] = ", \t\r\n[]";
    for (;;) {
        const size_t n_separators = strspn(text, separators);
        const char *comma = memchr(text, ',', n_separators);
        const char *end = text + n_separators;
        if (comma && memchr(comma + 1, ',', (size_t)(end - (comma + 1))))
            return sl_fail(err, SL_ERR_ARGUMENT, "there is no token id between two commas");
        text = end;
        if (*text == '\0')
            return SL_OK;
        const size_t n = strcspn(text, separators);
        char word[16];
        snprintf(word, sizeof word, "%.*s", (int)sl_min_size(n, sizeof word - 1), text);
        uint64_t id;
        if (n >= sizeof word || n_vocab == 0 || !sl_parse_count(word, 0, n_vocab - 1, &id))
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s' is not a token id from 0 to %zu", word,
                           n_vocab - 1);
        SL_TRY(sl_ids_push(ids, (int32_t)id, err));
        text += n;
    }
}
