/* Owns how automata are put together, and the limits on nodes and groups. */
#include "grammar/nfa.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

void sl_nfa_init(sl_nfa *nfa, uint32_t limit)
{
    *nfa = (sl_nfa){.limit = limit};
}

void sl_nfa_free(sl_nfa *nfa)
{
    sl_free(nfa->nodes);
    sl_nfa_init(nfa, nfa->limit);
}

static sl_status make_room(sl_nfa *nfa, size_t n_more, sl_error *err)
{
    if (n_more > nfa->limit - nfa->n)
        return sl_fail(err, SL_ERR_LIMIT, "it takes more than %u automaton nodes", nfa->limit);
    if (n_more <= nfa->room - nfa->n)
        return SL_OK;
    const size_t room =
        sl_min_size(nfa->limit, sl_max_size(nfa->n + n_more, 2 * (size_t)nfa->room));
    sl_nfa_node *nodes = sl_realloc(SL_MEM_TEXT, nfa->nodes, room * sizeof *nodes);
    if (!nodes)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu automaton nodes", room);
    nfa->nodes = nodes;
    nfa->room = (uint32_t)room;
    return SL_OK;
}

sl_status sl_nfa_add(sl_nfa *nfa, sl_nfa_node node, uint32_t *id, sl_error *err)
{
    SL_TRY(make_room(nfa, 1, err));
    *id = nfa->n;
    nfa->nodes[nfa->n++] = node;
    return SL_OK;
}

static sl_status add_split(sl_nfa *nfa, uint32_t next, uint32_t other, uint32_t *id, sl_error *err)
{
    const sl_nfa_node node = {.kind = SL_NFA_SPLIT, .next = next, .other = other};
    return sl_nfa_add(nfa, node, id, err);
}

sl_status sl_nfa_empty(sl_nfa *nfa, sl_frag *out, sl_error *err)
{
    uint32_t id;
    SL_TRY(add_split(nfa, SL_NFA_NONE, SL_NFA_NONE, &id, err));
    *out = (sl_frag){id, id, id};
    return SL_OK;
}

/* A node and the exit behind it. */
static sl_status add_step(sl_nfa *nfa, sl_nfa_node node, sl_frag *out, sl_error *err)
{
    SL_TRY(make_room(nfa, 2, err));
    node.next = nfa->n + 1;
    SL_TRY(sl_nfa_add(nfa, node, &out->entry, err));
    SL_TRY(add_split(nfa, SL_NFA_NONE, SL_NFA_NONE, &out->exit, err));
    out->first = out->entry;
    return SL_OK;
}

sl_status sl_nfa_never(sl_nfa *nfa, sl_frag *out, sl_error *err)
{
    return sl_nfa_range(nfa, 1, 0, out, err);
}

sl_status sl_nfa_range(sl_nfa *nfa, uint32_t low, uint32_t high, sl_frag *out, sl_error *err)
{
    const sl_nfa_node node = {.kind = SL_NFA_RANGE, .other = SL_NFA_NONE, .low = low, .high = high};
    return add_step(nfa, node, out, err);
}

sl_status sl_nfa_call(sl_nfa *nfa, sl_nfa_kind kind, uint32_t which, sl_frag *out, sl_error *err)
{
    return add_step(nfa, (sl_nfa_node){.kind = kind, .other = which}, out, err);
}

sl_status sl_nfa_bytes(sl_nfa *nfa, const char *s, size_t n, sl_frag *out, sl_error *err)
{
    SL_TRY(make_room(nfa, n + 1, err));
    out->first = out->entry = nfa->n;
    for (size_t i = 0; i < n; i++) {
        const uint32_t byte = (unsigned char)s[i];
        uint32_t id;
        const sl_nfa_node node = {.kind = SL_NFA_RANGE,
                                  .next = nfa->n + 1,
                                  .other = SL_NFA_NONE,
                                  .low = byte,
                                  .high = byte};
        SL_TRY(sl_nfa_add(nfa, node, &id, err));
    }
    return add_split(nfa, SL_NFA_NONE, SL_NFA_NONE, &out->exit, err);
}

sl_frag sl_nfa_join(sl_nfa *nfa, sl_frag a, sl_frag b)
{
    nfa->nodes[a.exit].next = b.entry;
    return (sl_frag){a.first, a.entry, b.exit};
}

sl_status sl_nfa_choice(sl_nfa *nfa, sl_frag *choice, sl_error *err)
{
    SL_TRY(sl_nfa_empty(nfa, choice, err));
    choice->entry = SL_NFA_NONE;
    uint32_t id;
    SL_TRY(sl_nfa_add(
        nfa,
        (sl_nfa_node){.kind = SL_NFA_RANGE, .next = choice->exit, .other = SL_NFA_NONE, .low = 1},
        &id, err));
    choice->entry = id; /* never passed */
    return SL_OK;
}

sl_status sl_nfa_choose(sl_nfa *nfa, sl_frag *choice, sl_frag branch, sl_error *err)
{
    nfa->nodes[branch.exit].next = choice->exit;
    return add_split(nfa, choice->entry, branch.entry, &choice->entry, err);
}

/* ---- repetition ---- */

/* A copy of the block [first, end), which is `frag` with its exit still open. */
static sl_status copy_block(sl_nfa *nfa, sl_frag frag, uint32_t end, sl_frag *out, sl_error *err)
{
    const uint32_t by = nfa->n - frag.first;
    SL_TRY(make_room(nfa, end - frag.first, err));
    for (uint32_t i = frag.first; i < end; i++) {
        sl_nfa_node node = nfa->nodes[i];
        uint32_t id;
        if (node.next != SL_NFA_NONE)
            node.next += by;
        if (node.kind == SL_NFA_SPLIT && node.other != SL_NFA_NONE)
            node.other += by;
        SL_TRY(sl_nfa_add(nfa, node, &id, err));
    }
    *out = (sl_frag){frag.first + by, frag.entry + by, frag.exit + by};
    return SL_OK;
}

/* frag any number of times. */
static sl_status repeat_forever(sl_nfa *nfa, sl_frag *frag, sl_error *err)
{
    uint32_t exit, again;
    SL_TRY(add_split(nfa, SL_NFA_NONE, SL_NFA_NONE, &exit, err));
    SL_TRY(add_split(nfa, frag->entry, exit, &again, err));
    nfa->nodes[frag->exit].next = again;
    frag->entry = again;
    frag->exit = exit;
    return SL_OK;
}

/* Copies first, while the block is as it was built; then the joints. */
sl_status sl_nfa_repeat(sl_nfa *nfa, sl_frag *frag, uint32_t low, uint32_t high, sl_error *err)
{
    const uint32_t end = nfa->n;
    const bool endless = high == SL_NFA_INF;
    const uint32_t n = endless ? (low > 0 ? low : 1) : high;
    if (n == 0)
        return sl_nfa_empty(nfa, frag, err); /* what was built stays unreachable */
    uint32_t exit, next;
    size_t needed;
    if (!sl_size_mul(end - frag->first + 2, n, &needed) || needed > nfa->limit)
        return sl_fail(err, SL_ERR_LIMIT,
                       "a repetition of %u times takes more than %u automaton nodes", n,
                       nfa->limit);
    if (n == 1 && endless && low == 0)
        return repeat_forever(nfa, frag, err);
    const sl_frag model = *frag;
    /* The last copy comes first, so that each can be joined to the one behind it. */
    SL_TRY(add_split(nfa, SL_NFA_NONE, SL_NFA_NONE, &exit, err));
    next = exit;
    for (uint32_t i = n; i > 0; i--) {
        sl_frag copy = model;
        if (i > 1)
            SL_TRY(copy_block(nfa, model, end, &copy, err));
        if (i == n && endless) {
            uint32_t again;
            SL_TRY(add_split(nfa, copy.entry, exit, &again, err));
            nfa->nodes[copy.exit].next = again;
        } else {
            nfa->nodes[copy.exit].next = next;
        }
        next = copy.entry;
        if (i > low)
            SL_TRY(add_split(nfa, copy.entry, exit, &next, err));
    }
    *frag = (sl_frag){model.first, next, exit};
    return SL_OK;
}

/* ---- code points ---- */

sl_status sl_nfa_codes(sl_nfa *nfa, const sl_code_range *ranges, size_t n, sl_frag *out,
                       sl_error *err)
{
    SL_TRY(sl_nfa_choice(nfa, out, err));
    for (size_t i = 0; i < n; i++) {
        sl_frag range;
        SL_TRY(sl_nfa_range(nfa, ranges[i].low, ranges[i].high, &range, err));
        SL_TRY(sl_nfa_choose(nfa, out, range, err));
    }
    return SL_OK;
}

/* low .. high have the same number of bytes, and all bytes behind the first that differs run over
 * all of 80 .. BF. */
static sl_status add_sequence(sl_nfa *nfa, uint32_t low, uint32_t high, sl_frag *choice,
                              sl_error *err)
{
    char first[4], last[4];
    const size_t n = sl_utf8_encode(low, first);
    sl_utf8_encode(high, last);
    sl_frag sequence;
    for (size_t i = 0; i < n; i++) {
        sl_frag byte;
        SL_TRY(sl_nfa_range(nfa, (unsigned char)first[i], (unsigned char)last[i], &byte, err));
        sequence = i == 0 ? byte : sl_nfa_join(nfa, sequence, byte);
    }
    return sl_nfa_choose(nfa, choice, sequence, err);
}

/* Cuts low .. high, of n bytes each, where a sequence of byte ranges cannot go on. */
static sl_status add_same_length(sl_nfa *nfa, uint32_t low, uint32_t high, unsigned n,
                                 sl_frag *choice, sl_error *err)
{
    while (low <= high) {
        uint32_t last = high;
        for (unsigned i = 1; i < n; i++) {
            const uint32_t mask = (1u << (6 * i)) - 1; /* of the last i bytes */
            if ((low & ~mask) == (last & ~mask))
                break; /* they differ in these bytes only: the cut of the level below is right */
            if (low & mask)
                last = low | mask;
            else if ((last & mask) != mask)
                last = (last & ~mask) - 1;
        }
        SL_TRY(add_sequence(nfa, low, last, choice, err));
        low = last + 1;
    }
    return SL_OK;
}

sl_status sl_nfa_utf8(sl_nfa *nfa, const sl_code_range *ranges, size_t n, sl_frag *out,
                      sl_error *err)
{
    static const sl_code_range lengths[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    static const unsigned n_bytes[] = {1, 2, 3, 3, 4};
    SL_TRY(sl_nfa_choice(nfa, out, err));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < SL_COUNTOF(lengths); j++) {
            const uint32_t low = ranges[i].low > lengths[j].low ? ranges[i].low : lengths[j].low;
            const uint32_t high =
                ranges[i].high < lengths[j].high ? ranges[i].high : lengths[j].high;
            SL_TRY(add_same_length(nfa, low, high, n_bytes[j], out, err));
        }
    }
    return SL_OK;
}

/* ---- expressions with groups ---- */

void sl_nfa_parser_init(sl_nfa_parser *parser, sl_nfa *nfa)
{
    *parser = (sl_nfa_parser){.nfa = nfa};
}

void sl_nfa_parser_free(sl_nfa_parser *parser)
{
    sl_free(parser->groups);
    sl_nfa_parser_init(parser, parser->nfa);
}

sl_status sl_nfa_open(sl_nfa_parser *parser, size_t offset, sl_error *err)
{
    if (parser->n_groups == SL_NFA_MAX_GROUPS)
        return sl_fail(err, SL_ERR_LIMIT, "groups are nested deeper than %d levels",
                       SL_NFA_MAX_GROUPS);
    if (parser->n_groups == parser->room) {
        const size_t room = parser->room > 0 ? 2 * parser->room : 16;
        sl_nfa_group *groups =
            sl_realloc(SL_MEM_TEXT, parser->groups, room * sizeof *parser->groups);
        if (!groups)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu groups", room);
        parser->groups = groups;
        parser->room = room;
    }
    sl_nfa_group group = {.offset = offset};
    SL_TRY(sl_nfa_choice(parser->nfa, &group.choice, err));
    parser->groups[parser->n_groups++] = group;
    return SL_OK;
}

static sl_nfa_group *innermost(const sl_nfa_parser *parser)
{
    return &parser->groups[parser->n_groups - 1];
}

void sl_nfa_settle(sl_nfa_parser *parser)
{
    sl_nfa_group *group = innermost(parser);
    if (!group->has_atom)
        return;
    group->sequence =
        group->has_sequence ? sl_nfa_join(parser->nfa, group->sequence, group->atom) : group->atom;
    group->has_sequence = true;
    group->has_atom = false;
}

void sl_nfa_atom(sl_nfa_parser *parser, sl_frag atom)
{
    sl_nfa_settle(parser);
    innermost(parser)->atom = atom;
    innermost(parser)->has_atom = true;
}

sl_status sl_nfa_bar(sl_nfa_parser *parser, sl_error *err)
{
    sl_nfa_group *group = innermost(parser);
    sl_nfa_settle(parser);
    if (!group->has_sequence)
        SL_TRY(sl_nfa_empty(parser->nfa, &group->sequence, err));
    group->has_sequence = false;
    return sl_nfa_choose(parser->nfa, &group->choice, group->sequence, err);
}

sl_status sl_nfa_close(sl_nfa_parser *parser, sl_frag *out, sl_error *err)
{
    SL_TRY(sl_nfa_bar(parser, err));
    *out = innermost(parser)->choice;
    parser->n_groups--;
    return SL_OK;
}

bool sl_nfa_has_atom(const sl_nfa_parser *parser)
{
    return innermost(parser)->has_atom;
}

sl_status sl_nfa_repeat_atom(sl_nfa_parser *parser, uint32_t low, uint32_t high, sl_error *err)
{
    return sl_nfa_repeat(parser->nfa, &innermost(parser)->atom, low, high, err);
}
