/* The symbols of a piece are a linked list over its byte positions; rank[i] belongs to the pair
 * that begins at position i. Above the ranks stands a tree of minima with 16 children a node, so
 * the lowest, leftmost rank is found from the top, and a change of one rank climbs only while it
 * changes a minimum. There is nothing stale to skip and nothing grows. A piece of at most 16 bytes,
 * which is most of them, has a tree of one group. */
#include "text/bpe.h"

enum { FAN = 16 };

#define NO_RANK SL_BPE_NO_RANK
#define NONE    UINT32_MAX /* no neighbour */

/* ---- merges ---- */

static size_t pair_home(const sl_bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right;
    key = (key ^ key >> 29) * 0xBF58476D1CE4E5B9u;
    return (size_t)(key >> 32) & (bpe->n_pairs - 1);
}

/* The slot of a pair, or the empty one where it belongs. */
static sl_bpe_pair *find_pair(const sl_bpe *bpe, uint32_t left, uint32_t right)
{
    for (size_t i = pair_home(bpe, left, right);; i = (i + 1) & (bpe->n_pairs - 1)) {
        sl_bpe_pair *pair = &bpe->pairs[i];
        if (pair->rank == NO_RANK || (pair->left == left && pair->right == right))
            return pair;
    }
}

static uint32_t pair_rank(const sl_bpe *bpe, uint32_t left, uint32_t right)
{
    return find_pair(bpe, left, right)->rank;
}

/* Reads merge number `rank` and enters it. bytes has room for its text. */
static sl_status add_merge(sl_bpe *bpe, const sl_vocab *vocab, sl_str text, uint32_t rank,
                           char *bytes, sl_error *err)
{
    const char *space = text.n_bytes > 0 ? memchr(text.data, ' ', text.n_bytes) : NULL;
    size_t n_left_text = space ? (size_t)(space - text.data) : 0;
    size_t n_right_text = space ? text.n_bytes - n_left_text - 1 : 0;
    size_t n_left, n_right;
    if (n_left_text == 0 || n_right_text == 0 ||
        !sl_alphabet_decode(text.data, n_left_text, bytes, &n_left) ||
        !sl_alphabet_decode(space + 1, n_right_text, bytes + n_left, &n_right))
        return sl_fail(err, SL_ERR_FORMAT,
                       "merge %u (\"%.*s\") is not two tokens with a space between them",
                       (unsigned)rank, SL_VOCAB_SHOW(text));
    int32_t left = sl_vocab_find(vocab, false, bytes, n_left);
    int32_t right = sl_vocab_find(vocab, false, bytes + n_left, n_right);
    int32_t merged = sl_vocab_find(vocab, false, bytes, n_left + n_right);
    if (left < 0 || right < 0 || merged < 0)
        return sl_fail(err, SL_ERR_FORMAT, "merge %u (\"%.*s\"): %s is not a normal token",
                       (unsigned)rank, SL_VOCAB_SHOW(text),
                       left < 0    ? "the left part"
                       : right < 0 ? "the right part"
                                   : "the result");
    sl_bpe_pair *pair = find_pair(bpe, (uint32_t)left, (uint32_t)right);
    if (pair->rank != NO_RANK)
        return sl_fail(err, SL_ERR_FORMAT, "merges %u and %u (\"%.*s\") are the same",
                       (unsigned)pair->rank, (unsigned)rank, SL_VOCAB_SHOW(text));
    *pair = (sl_bpe_pair){(uint32_t)left, (uint32_t)right, rank};
    bpe->merged[rank] = (uint32_t)merged;
    return SL_OK;
}

sl_status sl_bpe_init(sl_bpe *bpe, const sl_vocab *vocab, const sl_tokenizer_spec *spec,
                      sl_error *err)
{
    *bpe = (sl_bpe){.n_merges = spec->n_merges, .n_pairs = 1};
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        int32_t id = sl_vocab_find(vocab, false, &c, 1);
        if (id < 0)
            return sl_fail(err, SL_ERR_FORMAT, "no token stands for the byte 0x%02X", byte);
        bpe->byte_id[byte] = (uint32_t)id;
    }
    if (spec->n_merges > SL_VOCAB_MAX_TOKENS)
        return sl_fail(err, SL_ERR_LIMIT, "%zu merges (at most %d)", spec->n_merges,
                       SL_VOCAB_MAX_TOKENS);
    size_t longest = 0;
    for (size_t i = 0; i < spec->n_merges; i++)
        longest = sl_max_size(longest, spec->merges[i].n_bytes);
    while (bpe->n_pairs < 2 * (spec->n_merges + 1))
        bpe->n_pairs *= 2;

    sl_status status = SL_OK;
    char *bytes = sl_alloc(SL_MEM_TEXT, longest);
    bpe->merged = sl_alloc_array(SL_MEM_TEXT, spec->n_merges, sizeof *bpe->merged);
    bpe->pairs = sl_alloc_array(SL_MEM_TEXT, bpe->n_pairs, sizeof *bpe->pairs);
    if (!bytes || !bpe->merged || !bpe->pairs) {
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu merges", spec->n_merges);
        goto done;
    }
    for (size_t i = 0; i < bpe->n_pairs; i++)
        bpe->pairs[i].rank = NO_RANK;
    for (size_t i = 0; i < spec->n_merges; i++)
        SL_CHECK(add_merge(bpe, vocab, spec->merges[i], (uint32_t)i, bytes, err));
done:
    sl_free(bytes);
    if (status != SL_OK)
        sl_bpe_free(bpe);
    return status;
}

void sl_bpe_free(sl_bpe *bpe)
{
    sl_free(bpe->merged);
    sl_free(bpe->pairs);
    *bpe = (sl_bpe){0};
}

/* ---- one piece ---- */

/* level[0] are the ranks, level[k + 1][i] is the least of level[k][16 i .. 16 i + 15], and the top
 * level is one group. Groups are filled up with NO_RANK. */
typedef struct piece {
    uint32_t *id, *prev, *next;
    uint32_t *level[SL_BPE_MAX_LEVELS];
    unsigned n_levels;
    uint64_t n_steps;
} piece;

static uint32_t group_min(const uint32_t *group)
{
    uint32_t least = group[0];
    for (size_t i = 1; i < FAN; i++)
        least = group[i] < least ? group[i] : least;
    return least;
}

static void set_rank(piece *p, size_t i, uint32_t rank)
{
    uint32_t old = p->level[0][i];
    p->level[0][i] = rank;
    for (unsigned k = 1; k < p->n_levels; k++) {
        i /= FAN;
        const uint32_t least = p->level[k][i];
        if (rank >= least && old > least)
            return; /* another one is the least and stays it */
        if (rank >= least) {
            rank = group_min(p->level[k - 1] + i * FAN);
            p->n_steps++;
        }
        p->level[k][i] = rank;
        old = least;
    }
}

/* The leftmost position of the lowest rank; *rank is NO_RANK when nothing is left to merge. */
static uint32_t find_lowest(piece *p, uint32_t *rank)
{
    unsigned k = p->n_levels - 1;
    *rank = group_min(p->level[k]);
    size_t i = 0; /* of a group */
    for (;; k--) {
        const uint32_t *group = p->level[k] + i * FAN;
        size_t child = 0;
        while (group[child] != *rank)
            child++;
        p->n_steps++;
        i = i * FAN + child;
        if (k == 0)
            return (uint32_t)i;
    }
}

void sl_bpe_work_free(sl_bpe_work *work)
{
    sl_free(work->memory);
    *work = (sl_bpe_work){0};
}

/* Lays the arrays of an n-byte piece out in the work memory. Nothing overflows: n is below
 * SL_BPE_MAX_PIECE. */
static sl_status piece_init(piece *p, sl_bpe_work *work, size_t n, sl_error *err)
{
    size_t sizes[SL_BPE_MAX_LEVELS], total;
    *p = (piece){0};
    for (size_t count = n;; count = (count + FAN - 1) / FAN) {
        sizes[p->n_levels++] = (count + FAN - 1) / FAN * FAN;
        if (count <= FAN)
            break;
    }
    total = 3 * n;
    for (unsigned k = 0; k < p->n_levels; k++)
        total += sizes[k];
    if (total > work->capacity) {
        size_t capacity = sl_max_size(total, work->capacity + work->capacity / 2);
        uint32_t *memory = sl_alloc(SL_MEM_TEXT, capacity * sizeof *memory);
        if (!memory)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory to tokenise %zu bytes", n);
        sl_free(work->memory);
        work->memory = memory;
        work->capacity = capacity;
    }
    uint32_t *memory = work->memory;
    for (unsigned k = 0; k < p->n_levels; k++) {
        p->level[k] = memory;
        memory += sizes[k];
    }
    p->id = memory;
    p->prev = memory + n;
    p->next = memory + 2 * n;
    return SL_OK;
}

/* One symbol a byte, and the tree over the ranks of their pairs. */
static void piece_fill(piece *p, const sl_bpe *bpe, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p->id[i] = bpe->byte_id[(unsigned char)bytes[i]];
        p->prev[i] = i > 0 ? (uint32_t)i - 1 : NONE;
        p->next[i] = i + 1 < n ? (uint32_t)i + 1 : NONE;
    }
    size_t count = n;
    for (size_t i = 0; i + 1 < n; i++)
        p->level[0][i] = pair_rank(bpe, p->id[i], p->id[i + 1]);
    p->level[0][n - 1] = NO_RANK;
    for (unsigned k = 0;; k++) {
        for (size_t i = count; i % FAN != 0; i++)
            p->level[k][i] = NO_RANK;
        if (k + 1 == p->n_levels)
            break;
        count = (count + FAN - 1) / FAN;
        for (size_t i = 0; i < count; i++)
            p->level[k + 1][i] = group_min(p->level[k] + i * FAN);
    }
}

/* The symbol at i takes in its right neighbour. */
static void merge_at(piece *p, const sl_bpe *bpe, uint32_t i, uint32_t rank)
{
    uint32_t gone = p->next[i], after = p->next[gone], before = p->prev[i];
    p->id[i] = bpe->merged[rank];
    p->next[i] = after;
    set_rank(p, gone, NO_RANK);
    if (after != NONE)
        p->prev[after] = i;
    set_rank(p, i, after != NONE ? pair_rank(bpe, p->id[i], p->id[after]) : NO_RANK);
    if (before != NONE)
        set_rank(p, before, pair_rank(bpe, p->id[before], p->id[i]));
}

sl_status sl_bpe_encode(const sl_bpe *bpe, sl_bpe_work *work, const char *bytes, size_t n,
                        sl_ids *ids, sl_error *err)
{
    if (n == 1)
        return sl_ids_push(ids, (int32_t)bpe->byte_id[(unsigned char)bytes[0]], err);
    if (n > SL_BPE_MAX_PIECE)
        return sl_fail(err, SL_ERR_LIMIT, "a piece of %zu bytes without a place to split it", n);
    piece p;
    SL_TRY(piece_init(&p, work, n, err));
    piece_fill(&p, bpe, bytes, n);
    for (;;) {
        uint32_t rank, i = find_lowest(&p, &rank);
        if (rank == NO_RANK)
            break;
        merge_at(&p, bpe, i, rank);
    }
    work->n_steps += p.n_steps;
    for (uint32_t i = 0; i != NONE; i = p.next[i])
        SL_TRY(sl_ids_push(ids, (int32_t)p.id[i], err));
    return SL_OK;
}
