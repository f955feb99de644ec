/* Recognises the tags of an answer, byte by byte. */
#ifndef SL_TEXT_OUTPARSE_TAG_H
#define SL_TEXT_OUTPARSE_TAG_H

#include "base/str.h"
#include "text/outparse.h"

typedef enum sl_tag_kind {
    SL_TAG_THINK,
    SL_TAG_THINK_END,
    SL_TAG_CALL,
    SL_TAG_CALL_END,
    SL_TAG_FUNCTION_END,
    SL_TAG_PARAMETER_END,
    SL_TAG_FUNCTION, /* with a name */
    SL_TAG_PARAMETER /* with a name */
} sl_tag_kind;

typedef enum sl_tag_result { SL_TAG_MORE, SL_TAG_DONE, SL_TAG_NONE } sl_tag_result;

/* Zero-initialise. Between sl_tag_begin and a result other than SL_TAG_MORE it holds the bytes of
 * what may become a tag. */
typedef struct sl_tag {
    sl_tag_kind kind; /* once known */
    bool active;
    bool plain; /* written as taught: no extra spaces, no quotes, no name attribute */
    unsigned char phase;
    char quote;
    size_t n_bytes, n_name, name_at, n_attribute;
    char bytes[SL_OUTPARSE_MAX_TAG]; /* as they came, from '<' */
} sl_tag;

/* Takes the '<'. */
void sl_tag_begin(sl_tag *tag);

/* SL_TAG_DONE: kind and name are known, the byte belonged to the tag. SL_TAG_NONE: the bytes before
 * this one are text, and it has not been taken. Both make the tag inactive and leave its bytes. */
sl_tag_result sl_tag_push(sl_tag *tag, char c);

static inline sl_str sl_tag_text(const sl_tag *tag)
{
    return (sl_str){tag->bytes, tag->n_bytes};
}

static inline sl_str sl_tag_name(const sl_tag *tag)
{
    return (sl_str){tag->bytes + tag->name_at, tag->n_name};
}

static inline bool sl_outparse_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

#endif
