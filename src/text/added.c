/* Looking forward would need the rest of the text to know which token is longest; after each of
 * them the search would start again, which is quadratic for tokens like "a" and "aaa...b".
 * Backwards, the state at a place already knows everything that begins there. */
#include "text/added.h"

struct sl_added_node {
    uint32_t fail;              /* the longest proper suffix that is a node too */
    uint32_t depth;             /* bytes from the root */
    int32_t control, user;      /* the longest token of each kind that is a suffix, or -1 */
    uint32_t n_control, n_user; /* their lengths, 0 = none */
};

struct sl_added_edge {
    uint32_t parent, byte;
    uint32_t child; /* 0 = empty slot */
};

static sl_added_edge *find_edge(const sl_added *added, uint32_t parent, unsigned char byte)
{
    uint64_t hash = ((uint64_t)parent << 8 | byte) * 0x9E3779B97F4A7C15u;
    for (size_t i = (size_t)(hash >> 32);; i++) {
        sl_added_edge *edge = &added->edges[i & (added->n_edges - 1)];
        if (edge->child == 0 || (edge->parent == parent && edge->byte == byte))
            return edge;
    }
}

/* The state after `byte`. Each node tried in vain makes the state shorter, and a byte lengthens it
 * by one, so over a text there are at most two steps a byte. */
static uint32_t step(const sl_added *added, uint32_t node, unsigned char byte, uint64_t *n_steps)
{
    for (; node != 0; node = added->nodes[node].fail) {
        ++*n_steps;
        uint32_t child = find_edge(added, node, byte)->child;
        if (child != 0)
            return child;
    }
    ++*n_steps;
    return added->first[byte];
}

/* The child of `parent`, made when it is missing. Nodes of the parent's depth are all there, so the
 * new node's suffix is known. */
static uint32_t child_of(sl_added *added, uint32_t parent, unsigned char byte)
{
    uint64_t n_steps = 0;
    sl_added_edge *edge = find_edge(added, parent, byte);
    if (edge->child != 0)
        return edge->child;
    uint32_t fail = parent == 0 ? 0 : step(added, added->nodes[parent].fail, byte, &n_steps);
    uint32_t child = added->n_nodes++;
    *edge = (sl_added_edge){parent, byte, child};
    added->nodes[child] = added->nodes[fail];
    added->nodes[child].fail = fail;
    added->nodes[child].depth = added->nodes[parent].depth + 1;
    if (parent == 0)
        added->first[byte] = child;
    return child;
}

static void end_token(sl_added_node *node, sl_token_kind kind, int32_t id)
{
    if (kind == SL_TOKEN_CONTROL) {
        node->control = id;
        node->n_control = node->depth;
    } else {
        node->user = id;
        node->n_user = node->depth;
    }
}

/* A token on its way into the automaton. */
typedef struct growing {
    int32_t id;
    uint32_t node;
} growing;

/* Enters the tokens side by side, one byte of each at a time. */
static void build(sl_added *added, const sl_vocab *vocab, growing *list, size_t n)
{
    for (uint32_t depth = 1; n > 0; depth++) {
        size_t n_left = 0;
        for (size_t i = 0; i < n; i++) {
            growing g = list[i];
            sl_str bytes = sl_vocab_bytes(vocab, (size_t)g.id);
            unsigned char byte = (unsigned char)bytes.data[bytes.n_bytes - depth];
            g.node = child_of(added, g.node, byte);
            if (bytes.n_bytes == depth)
                end_token(&added->nodes[g.node], (sl_token_kind)vocab->kind[g.id], g.id);
            else
                list[n_left++] = g;
        }
        n = n_left;
    }
}

sl_status sl_added_init(sl_added *added, const sl_vocab *vocab, sl_error *err)
{
    *added = (sl_added){.n_nodes = 1, .n_edges = 1};
    size_t n_added = 0, n_bytes = 0;
    for (size_t i = 0; i < vocab->n_tokens; i++) {
        if (!sl_vocab_is_added(vocab, i))
            continue;
        n_added++;
        n_bytes += sl_vocab_bytes(vocab, i).n_bytes;
    }
    if (n_bytes > SL_ADDED_MAX_BYTES)
        return sl_fail(err, SL_ERR_LIMIT, "%zu added tokens have %zu bytes (at most %d)", n_added,
                       n_bytes, SL_ADDED_MAX_BYTES);
    while (added->n_edges < 2 * (n_bytes + 1))
        added->n_edges *= 2;
    added->nodes = sl_alloc_array(SL_MEM_TEXT, n_bytes + 1, sizeof *added->nodes);
    added->edges = sl_alloc_array(SL_MEM_TEXT, added->n_edges, sizeof *added->edges);
    growing *list = sl_alloc_array(SL_MEM_TEXT, n_added, sizeof *list);
    if (!added->nodes || !added->edges || !list) {
        sl_free(list);
        sl_added_free(added);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu added tokens", n_added);
    }
    added->nodes[0] = (sl_added_node){.control = -1, .user = -1};
    size_t n = 0;
    for (size_t i = 0; i < vocab->n_tokens; i++)
        if (sl_vocab_is_added(vocab, i))
            list[n++] = (growing){.id = (int32_t)i};
    build(added, vocab, list, n);
    sl_free(list);
    return SL_OK;
}

void sl_added_free(sl_added *added)
{
    sl_free(added->nodes);
    sl_free(added->edges);
    *added = (sl_added){0};
}

static sl_status push_match(sl_added_matches *matches, size_t pos, int32_t id, sl_error *err)
{
    if (matches->n == matches->capacity) {
        size_t capacity = sl_max_size(64, matches->capacity + matches->capacity / 2), bytes;
        sl_added_match *list = NULL;
        if (sl_size_mul(capacity, sizeof *list, &bytes))
            list = sl_realloc(SL_MEM_TEXT, matches->list, bytes);
        if (!list)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu added tokens in a text",
                           capacity);
        matches->list = list;
        matches->capacity = capacity;
    }
    matches->list[matches->n++] = (sl_added_match){pos, id};
    return SL_OK;
}

sl_status sl_added_find(const sl_added *added, const char *text, size_t begin, size_t end,
                        bool control, bool user_defined, sl_added_matches *matches, sl_error *err)
{
    matches->n = 0;
    if (!control && !user_defined)
        return SL_OK;
    uint32_t state = 0;
    for (size_t pos = end; pos-- > begin;) {
        state = step(added, state, (unsigned char)text[pos], &matches->n_steps);
        const sl_added_node *node = &added->nodes[state];
        uint32_t n_control = control ? node->n_control : 0;
        uint32_t n_user = user_defined ? node->n_user : 0;
        if (n_control > 0 || n_user > 0)
            SL_TRY(push_match(matches, pos, n_control > n_user ? node->control : node->user, err));
    }
    return SL_OK;
}
