/* What the files of the answer parser share; no other file includes it.
 *
 *   outparse.c        the public functions, thinking and content, events
 *   outparse_xml.c    calls with <function=NAME> and <parameter=NAME>
 *   outparse_block.c  calls as JSON
 *
 * Bytes come in as runs without a tag (sl_op_text) and as whole tags (sl_op_tag), so that no state
 * ever sees how the input was cut. */
#ifndef SL_TEXT_OUTPARSE_PRIVATE_H
#define SL_TEXT_OUTPARSE_PRIVATE_H

#include "text/outparse_tag.h"
#include "text/outparse_value.h"

typedef enum op_state {
    OP_TEXT,       /* thinking or content */
    OP_OPENED,     /* behind <tool_call> */
    OP_FUNCTION,   /* behind <function=NAME>: not yet certain */
    OP_BODY,       /* in a call of the first form, between its tags */
    OP_VALUE,      /* in a parameter's value */
    OP_JSON,       /* in the JSON of a call */
    OP_JSON_AFTER, /* behind it, in its <tool_call> */
    OP_FINISHED
} op_state;

/* What lies between the last thing seen and the text to come, as long as only white space came. */
typedef enum op_gap { OP_GAP_NONE, OP_GAP_START, OP_GAP_THOUGHT, OP_GAP_CALL } op_gap;

typedef enum op_sink {
    OP_SINK_STRING, /* streams into the arguments */
    OP_SINK_TYPED,  /* gathers in `value` */
    OP_SINK_STRAY   /* a parameter given twice: text */
} op_sink;

/* The value being read. When a close tag is not followed by a tag, the value is in doubt: `held`
 * (of the parser) has everything from that first candidate for its end on. */
typedef struct op_value {
    op_sink sink;
    unsigned types;
    bool begun;   /* its first byte was seen */
    bool newline; /* the last byte was a newline, not yet passed on */
    bool in_doubt;
    bool behind_tag;    /* only white space since the tag `last_kind` at held[last_at] */
    bool last_belongs;  /* that tag closes a tag inside the value */
    bool any_belongs;   /* such a tag was seen since doubt began */
    size_t n_open;      /* parameter tags inside the value that are not closed */
    bool function_open; /* a function behind a <tool_call> inside the value is not closed */
    sl_tag_kind first_kind, last_kind;
    size_t last_at;
} op_value;

struct sl_outparse {
    sl_outparse_options options;
    json_t *own_tools; /* made from text by sl_outparse_create, or NULL */
    sl_outparse_fn fn;
    void *user;
    unsigned flags;
    size_t n_calls;

    sl_tag tag; /* being read */
    op_state state;
    bool is_thinking;
    op_gap gap;
    bool thought, part_thoughts; /* thinking was given out; a blank line goes before the next */
    bool strict;  /* reading again what was held in doubt: the first close tag ends a value */
    sl_buf space; /* white space held back */
    sl_buf held;  /* text that may have to be given back or read again */

    sl_buf out; /* the event being gathered */
    sl_outparse_kind out_kind;

    /* the call */
    size_t n_call_bytes; /* since its first tag */
    bool in_block;       /* its <tool_call> was seen */
    char name[SL_OUTPARSE_MAX_NAME];
    size_t n_name;
    unsigned call_flags;
    const json_t *schema; /* of its parameters, or NULL */
    size_t n_parameters;
    sl_buf seen;  /* their names, each in front of a '>' */
    sl_buf stray; /* text inside the call, given out behind it */
    op_value value;
    sl_buf text;      /* of a typed value */
    bool json_object; /* the JSON is the arguments only */
    sl_lax_json json;
};

/* White space at the beginning of s[0..n). */
static inline size_t sl_op_n_spaces(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && sl_outparse_is_space(s[i]))
        i++;
    return i;
}

/* ---- outparse.c ---- */

/* A run of bytes and a tag, for whatever state the parser is in. */
sl_status sl_op_text(sl_outparse *p, const char *s, size_t n, sl_error *err);
sl_status sl_op_tag(sl_outparse *p, const sl_tag *tag, sl_error *err);

/* Reads s[0..n) again from where the parser stands, in strict manner. */
sl_status sl_op_again(sl_outparse *p, const char *s, size_t n, sl_error *err);

/* Text of the state OP_TEXT that holds no tag: thinking or content. */
sl_status sl_op_plain(sl_outparse *p, const char *s, size_t n, sl_error *err);

/* What was held turns out to be text; the parser is in OP_TEXT then. */
sl_status sl_op_give_back(sl_outparse *p, sl_error *err);

/* How much of s[0..n) goes into one event, between characters. */
size_t sl_op_part(const char *s, size_t n);
/* Makes `out` the event of this kind, with room for a part. */
sl_status sl_op_room(sl_outparse *p, sl_outparse_kind kind, sl_error *err);

sl_status sl_op_call_begin(sl_outparse *p, sl_str name, sl_error *err);
sl_status sl_op_call_arguments(sl_outparse *p, sl_str piece, sl_error *err);
/* Closes the call, gives out the text found inside it; OP_TEXT behind a call. */
sl_status sl_op_call_end(sl_outparse *p, sl_error *err);

/* ---- outparse_xml.c ---- */

/* OP_FUNCTION for the function of this tag. `held` has everything from <tool_call> up to it. */
sl_status sl_op_function(sl_outparse *p, const sl_tag *tag, sl_error *err);
sl_status sl_op_function_text(sl_outparse *p, const char *s, size_t n, size_t *used, sl_error *err);
sl_status sl_op_function_tag(sl_outparse *p, const sl_tag *tag, sl_error *err);
sl_status sl_op_body_text(sl_outparse *p, const char *s, size_t n, sl_error *err);
sl_status sl_op_body_tag(sl_outparse *p, const sl_tag *tag, sl_error *err);
sl_status sl_op_value_text(sl_outparse *p, const char *s, size_t n, sl_error *err);
sl_status sl_op_value_tag(sl_outparse *p, const sl_tag *tag, sl_error *err);

/* The text ends, or the call became too long, in one of the states above. */
sl_status sl_op_xml_end(sl_outparse *p, sl_error *err);

/* ---- outparse_block.c ---- */

void sl_op_json_begin(sl_outparse *p, bool arguments_only);
sl_status sl_op_json_text(sl_outparse *p, const char *s, size_t n, size_t *used, sl_error *err);
sl_status sl_op_json_tag(sl_outparse *p, const sl_tag *tag, sl_error *err);
sl_status sl_op_json_after_text(sl_outparse *p, const char *s, size_t n, size_t *used,
                                sl_error *err);
sl_status sl_op_json_after_tag(sl_outparse *p, const sl_tag *tag, sl_error *err);
sl_status sl_op_json_end(sl_outparse *p, sl_error *err);

#endif
