/* The tag recogniser of the answer parser: <think>, <tool_call>, <function=NAME>, <parameter=NAME>
 * and their close tags. It tolerates spaces before '>' and around names, quoted names and the form
 * name="NAME". It refuses names that are empty, longer than SL_OUTPARSE_MAX_NAME or hold '<' or
 * '>', and tags longer than SL_OUTPARSE_MAX_TAG. A '<' occurs only at the start of a tag, so text
 * never has to be scanned twice. */
#include "text/outparse_tag.h"

enum {
    PHASE_WORD,      /* behind '<' */
    PHASE_TAIL,      /* white space before '>' */
    PHASE_GAP,       /* white space behind the word: '=' or name= */
    PHASE_ATTRIBUTE, /* inside name */
    PHASE_EQUALS,    /* behind it */
    PHASE_NAME_BEGIN,
    PHASE_NAME,
    PHASE_QUOTED
};

static const struct {
    const char *word;
    sl_tag_kind kind;
} words[] = {
    {"think", SL_TAG_THINK},
    {"/think", SL_TAG_THINK_END},
    {"tool_call", SL_TAG_CALL},
    {"/tool_call", SL_TAG_CALL_END},
    {"/function", SL_TAG_FUNCTION_END},
    {"/parameter", SL_TAG_PARAMETER_END},
    {"function", SL_TAG_FUNCTION},
    {"parameter", SL_TAG_PARAMETER},
};

void sl_tag_begin(sl_tag *tag)
{
    tag->active = true;
    tag->plain = true;
    tag->phase = PHASE_WORD;
    tag->bytes[0] = '<';
    tag->n_bytes = 1;
    tag->n_name = tag->name_at = tag->n_attribute = 0;
}

static bool has_name(sl_tag_kind kind)
{
    return kind == SL_TAG_FUNCTION || kind == SL_TAG_PARAMETER;
}

/* Is the word so far, with c behind it, the beginning of one of ours? */
static bool extends_word(const sl_tag *tag, char c)
{
    const char *word = tag->bytes + 1;
    size_t n = tag->n_bytes - 1;
    for (size_t i = 0; i < SL_COUNTOF(words); i++)
        if (c != '\0' && strncmp(words[i].word, word, n) == 0 && words[i].word[n] == c)
            return true;
    return false;
}

static bool finish_word(sl_tag *tag)
{
    sl_str word = {tag->bytes + 1, tag->n_bytes - 1};
    for (size_t i = 0; i < SL_COUNTOF(words); i++) {
        if (sl_str_is(word, words[i].word)) {
            tag->kind = words[i].kind;
            return true;
        }
    }
    return false;
}

static sl_tag_result word_end(sl_tag *tag, char c)
{
    if (!finish_word(tag))
        return SL_TAG_NONE;
    if (sl_outparse_is_space(c)) {
        tag->plain = false;
        tag->phase = has_name(tag->kind) ? PHASE_GAP : PHASE_TAIL;
        return SL_TAG_MORE;
    }
    if (has_name(tag->kind) ? c != '=' : c != '>')
        return SL_TAG_NONE;
    tag->phase = PHASE_NAME_BEGIN;
    return c == '>' ? SL_TAG_DONE : SL_TAG_MORE;
}

static sl_tag_result gap(sl_tag *tag, char c)
{
    if (sl_outparse_is_space(c))
        return SL_TAG_MORE;
    if (c == '=') {
        tag->phase = PHASE_NAME_BEGIN;
        return SL_TAG_MORE;
    }
    if (tag->phase == PHASE_GAP && c == 'n') {
        tag->phase = PHASE_ATTRIBUTE;
        tag->n_attribute = 1;
        return SL_TAG_MORE;
    }
    return SL_TAG_NONE;
}

static sl_tag_result attribute(sl_tag *tag, char c)
{
    static const char name[] = "name";
    if (c != name[tag->n_attribute])
        return SL_TAG_NONE;
    if (++tag->n_attribute == sizeof name - 1)
        tag->phase = PHASE_EQUALS;
    return SL_TAG_MORE;
}

static bool add_to_name(sl_tag *tag)
{
    return ++tag->n_name <= SL_OUTPARSE_MAX_NAME;
}

static sl_tag_result name_begin(sl_tag *tag, char c)
{
    if (c == ' ' || c == '\t') {
        tag->plain = false;
        return SL_TAG_MORE;
    }
    if (c == '"' || c == '\'') {
        tag->plain = false;
        tag->quote = c;
        tag->name_at = tag->n_bytes + 1;
        tag->phase = PHASE_QUOTED;
        return SL_TAG_MORE;
    }
    if (c == '<' || c == '>' || (unsigned char)c < ' ')
        return SL_TAG_NONE;
    tag->name_at = tag->n_bytes;
    tag->n_name = 1;
    tag->phase = PHASE_NAME;
    return SL_TAG_MORE;
}

static sl_tag_result name(sl_tag *tag, char c)
{
    if (c == '>' || c == '\n' || c == '\r') {
        while (sl_outparse_is_space(tag->bytes[tag->name_at + tag->n_name - 1])) {
            tag->plain = false;
            tag->n_name--; /* ends: a name begins with something else */
        }
        tag->phase = PHASE_TAIL;
        tag->plain = tag->plain && c == '>';
        return c == '>' ? SL_TAG_DONE : SL_TAG_MORE;
    }
    if (c == '<' || ((unsigned char)c < ' ' && c != '\t'))
        return SL_TAG_NONE;
    return add_to_name(tag) ? SL_TAG_MORE : SL_TAG_NONE;
}

static sl_tag_result quoted(sl_tag *tag, char c)
{
    if (c == tag->quote) {
        tag->phase = PHASE_TAIL;
        return tag->n_name > 0 ? SL_TAG_MORE : SL_TAG_NONE;
    }
    if (c == '<' || c == '>' || (unsigned char)c < ' ')
        return SL_TAG_NONE;
    return add_to_name(tag) ? SL_TAG_MORE : SL_TAG_NONE;
}

static sl_tag_result advance(sl_tag *tag, char c)
{
    switch (tag->phase) {
    case PHASE_WORD:
        return extends_word(tag, c) ? SL_TAG_MORE : word_end(tag, c);
    case PHASE_GAP:
    case PHASE_EQUALS:
        return gap(tag, c);
    case PHASE_ATTRIBUTE:
        return attribute(tag, c);
    case PHASE_NAME_BEGIN:
        return name_begin(tag, c);
    case PHASE_NAME:
        return name(tag, c);
    case PHASE_QUOTED:
        return quoted(tag, c);
    default:
        return c == '>' ? SL_TAG_DONE : sl_outparse_is_space(c) ? SL_TAG_MORE : SL_TAG_NONE;
    }
}

sl_tag_result sl_tag_push(sl_tag *tag, char c)
{
    sl_tag_result result = tag->n_bytes < sizeof tag->bytes ? advance(tag, c) : SL_TAG_NONE;
    if (result != SL_TAG_NONE)
        tag->bytes[tag->n_bytes++] = c;
    tag->active = result == SL_TAG_MORE;
    return result;
}
