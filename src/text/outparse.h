/* The streaming parser of a model's answer: text in, thinking, content and tool calls out.
 *
 * The input is the text of the answer in pieces of any size (valid UTF-8; special tokens as their
 * text, stop tokens left out). What comes out does not depend on how the input was cut into pieces;
 * only the number of events does. Nothing but framing is dropped: text that cannot be read as a
 * call comes back byte for byte, as thinking or content.
 *
 * THINKING AND CONTENT
 * - The answer begins in thinking when the prompt ended in <think>, else in content. </think> ends
 *   thinking. <think> begins it where an answer can begin: at the start, after a think block or
 *   after a call, with only white space between. There </think> is a doubled or echoed close tag
 *   and is dropped, too. Anywhere else both tags are text (SL_OUTPARSE_STRAY_THINK).
 * - White space is framing beside a tag: on both ends of thinking; newlines after </think>; before
 *   a call; after a call unless text follows. It is held until what follows is known (at most
 *   SL_OUTPARSE_MAX_SPACE bytes, then it counts as text). Several think blocks are parted by a
 *   blank line.
 * - Thinking that is never closed stays thinking (SL_OUTPARSE_THINKING_OPEN).
 *
 * CALLS, in the two forms that the models are taught:
 *     <tool_call>\n<function=NAME>\n<parameter=P>\nVALUE\n</parameter>\n</function>\n</tool_call>
 *     <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
 * A call begins (SL_OUTPARSE_CALL_BEGIN) once it is certain: in the first form at the first tag
 * behind <function=NAME>, in the second when its JSON is complete. Up to then, and when it never
 * gets there, its text is content. Accepted besides:
 * - first form: <function name="NAME">, quotes and spaces around names; <tool_call> missing (not
 *   inside thinking); several functions in one <tool_call>; a JSON object in place of the
 *   parameters; close tags missing or doubled; white space anywhere between tags and before '>'.
 * - second form: "parameters" for "arguments"; arguments as a string that holds the object, null or
 *   missing; the OpenAI object {"function": {"name", "arguments"}}; an array of calls, or several
 *   objects; missing or extra closing brackets before </tool_call>; and see outparse_json.h.
 *   Members of a call that are none of these follow it as content.
 * - a call inside thinking is a call (SL_OUTPARSE_CALL_IN_THINKING), unless switched off; </think>
 *   ends it, wherever it stands;
 * - a function that is not in `tools` is called all the same (SL_OUTPARSE_CALL_UNKNOWN), a missing
 *   required parameter changes nothing: the client answers both with an error the model can read.
 * - text between the parameters, a parameter given a second time and the part past limits follow
 *   the call as content (SL_OUTPARSE_CALL_TEXT).
 * - the text ends, or max_call_bytes are reached, inside a call: the arguments are completed to
 *   valid JSON with what there is (SL_OUTPARSE_CALL_CUT). In the second form this needs complete
 *   arguments; else all of it is content.
 *
 * VALUES of the first form
 * - One newline behind <parameter=P> and one before </parameter> are framing; the rest is verbatim.
 * - A close tag ends the value when a tag of the call (or the end) follows. When other text follows
 *   it is held in doubt: if a </parameter> with a tag behind it follows, everything before that was
 *   the value; if the call ends first, the value ended at the first close tag. A parameter tag
 *   inside a value ends it when it names a parameter of the schema not given yet (without a schema:
 *   any not given yet). Others are part of the value, and so are the close tags that belong to
 *   them. So is a whole call; but when its function is known and the value is not closed behind it,
 *   the value ended before it and it is the next call.
 * - Values are typed by the JSON schema of the function (see outparse_value.h). What is not
 * declared is a string. What does not fit its type is a string (SL_OUTPARSE_CALL_UNTYPED).
 * - Values that can only be strings stream as they come; others are held until they end.
 *
 * Time is linear in the input, nothing recurses. */
#ifndef SL_TEXT_OUTPARSE_H
#define SL_TEXT_OUTPARSE_H

#include "base/json.h"
#include "base/str.h"

enum {
    SL_OUTPARSE_MAX_NAME = 256,        /* bytes of a function or parameter name */
    SL_OUTPARSE_MAX_TAG = 512,         /* bytes of a tag with its white space */
    SL_OUTPARSE_MAX_SPACE = 256,       /* white space held back */
    SL_OUTPARSE_MAX_HELD = 2048,       /* bytes held back before a call of the first form begins */
    SL_OUTPARSE_MAX_PARAMETERS = 1024, /* of one call; further ones count as given twice */
    SL_OUTPARSE_MAX_DEPTH = 64,        /* nesting of JSON values */
    SL_OUTPARSE_MAX_CALL_BYTES = 16 << 20
};

typedef struct sl_outparse_options {
    const json_t *tools; /* OpenAI form (the members of "function" may stand outside); may be NULL;
                          * must not change while the parser lives */
    size_t max_call_bytes; /* of the text of one <tool_call>; 0: SL_OUTPARSE_MAX_CALL_BYTES */
    bool starts_in_thinking;
    bool ignore_calls;             /* all calls are text */
    bool ignore_calls_in_thinking; /* those in thinking are */
} sl_outparse_options;

/* options may be NULL (content, no tools). Errors: SL_ERR_MEMORY; SL_ERR_ARGUMENT when tools is not
 * an array. */
sl_status sl_outparse_new(const sl_outparse_options *options, sl_outparse_fn fn, void *user,
                          sl_outparse **out, sl_error *err);

#endif
