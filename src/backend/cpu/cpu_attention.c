/* ATTENTION: gated softmax attention between its projections.
 *
 * Query heads that share a KV head are attended together, and so are several positions: a query is
 * a pair (row of the segment, head of the group), numbered i = row * group + head, and a tile is a
 * range of them. What a tile sees of the KV comes block by block (section 7 of docs/EXACTNESS.md),
 * so blocks may be shared out among threads as well: no bit depends on who computes which.
 *
 * Few rows per sequence (decode, verification): one region, in which the threads share the pairs
 * (sequence, KV head); each stores the new keys that its blocks hold. When there are not enough
 * pairs for the threads, they share blocks instead, and a second region merges them in order.
 * Many rows (prefill): keys of all rows first, then tiles, shared out by what they cost. */
#include <string.h>

#include "backend/cpu/cpu_internal.h"

enum { IN_Q, IN_K, IN_V };
enum { OUT_Y, OUT_YQ };
enum {
    MAX_PAIRS = SL_ATTN_DIM / 2,
    BLOCK_PAGES = SL_ATTN_BLOCK / SL_KV_PAGE,
    TILE = 96,  /* most queries of a tile: a converted panel serves them all */
    FEW = 24,   /* most queries per KV head of a sequence that count as few */
    STEP = 12,  /* a whole number of kernel tiles */
    RUN = 16,   /* most positions that are prepared together */
    PARTS = 128 /* results of blocks that a thread has room for */
};

typedef struct sl_attention_scratch {
    float q[TILE * SL_ATTN_STRIDE];
    float kernel[TILE * SL_ATTN_STRIDE + SL_ATTN_PANEL];
    sl_softmax all[TILE], block[TILE];
    uint16_t n_keys[TILE];
    float cos[FEW][MAX_PAIRS], sin[FEW][MAX_PAIRS];
    float keys[FEW][SL_ATTN_DIM];
    sl_softmax parts[PARTS];
} sl_attention_scratch;

_Static_assert((int)FEW >= (int)RUN && (int)FEW <= (int)TILE, "scratch holds what is prepared");
_Static_assert(sizeof(sl_attention_scratch) % SL_MEM_ALIGN == 0, "threads share no cache line");

size_t sl_cpu_attention_scratch_bytes(void)
{
    return sizeof(sl_attention_scratch);
}

/* One thread at work. */
typedef struct worker {
    const sl_cpu_step *step;
    const sl_attention_args *args;
    const sl_cpu_kernels *kernels;
    sl_attention_scratch *own;
    size_t group; /* query heads per KV head */
    sl_kv_type type;
} worker;

typedef struct tile {
    const sl_segment *segment;
    size_t kv_head;
    size_t begin, end; /* queries */
} tile;

static sl_attention_scratch *scratch_of(const sl_cpu_step *step, size_t thread)
{
    return &step->cpu->attention[thread];
}

static worker worker_of(const sl_cpu_step *step, unsigned thread)
{
    const sl_attention_args *args = &step->op->args.attention;
    return (worker){.step = step,
                    .args = args,
                    .kernels = &step->cpu->kernels,
                    .own = scratch_of(step, thread),
                    .group = args->n_heads / args->n_kv_heads,
                    .type = sl_plan_shape(step->plan)->kv_f32 ? SL_KV_F32 : SL_KV_F16};
}

/* Byte offset of a KV head's keys in a page; its values follow all keys of the layer. */
static size_t k_offset(const worker *w, size_t kv_head)
{
    return ((size_t)w->args->index * 2 * w->args->n_kv_heads + kv_head) *
           sl_shape_kv_head_bytes(sl_plan_shape(w->step->plan));
}

static size_t v_offset(const worker *w, size_t kv_head)
{
    return k_offset(w, kv_head + w->args->n_kv_heads);
}

static size_t blocks_of(size_t n_keys)
{
    return (n_keys + SL_ATTN_BLOCK - 1) / SL_ATTN_BLOCK;
}

/* Keys that a query of the segment sees. */
static size_t keys_seen(const worker *w, const sl_segment *segment, size_t query)
{
    return segment->pos + query / w->group + 1;
}

/* ---- before attention: norm, rope, KV ---- */

/* Sines and cosines of n rows of a segment, into places 0 .. n - 1. */
static void compute_angles(const worker *w, const sl_segment *segment, size_t row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        w->kernels->rope_angles(segment->pos + (uint32_t)(row + i), w->args->inv_freq,
                                w->args->rope_scale, w->args->n_pairs, w->own->cos[i],
                                w->own->sin[i]);
}

/* y = rope(norm(x)) with the angles at a place. */
static void norm_and_rotate(const worker *w, const float *x, const float *norm, size_t place,
                            float *y)
{
    w->kernels->rms_norm(x, norm, SL_ATTN_DIM, w->args->eps, y);
    w->kernels->rope(y, w->own->cos[place], w->own->sin[place], w->args->n_pairs);
}

/* Rows of the query projection are interleaved per head: 256 query, 256 gate. */
static void prepare_query(const worker *w, size_t row, size_t head, size_t place, float *q)
{
    const float *x = sl_step_row(w->step, w->step->op->in[IN_Q], row) + head * 2 * SL_ATTN_DIM;
    norm_and_rotate(w, x, w->args->q_norm, place, q);
}

/* Appends rows row .. row + n - 1 of the segment, at most FEW and all of one page; the angles of
 * the first are at `place`. */
static void store_keys(const worker *w, const sl_segment *segment, size_t row, size_t n,
                       size_t place, size_t kv_head)
{
    const sl_op *op = w->step->op;
    const size_t in_run = segment->first_row + row, pos = segment->pos + row;
    char *page = segment->kv_pages[pos / SL_KV_PAGE];
    for (size_t i = 0; i < n; i++)
        norm_and_rotate(w, sl_step_row(w->step, op->in[IN_K], in_run + i) + kv_head * SL_ATTN_DIM,
                        w->args->k_norm, place + i, w->own->keys[i]);
    w->kernels->kv_store(
        &(sl_kv_rows){.type = w->type,
                      .k = w->own->keys[0],
                      .k_stride = SL_ATTN_DIM,
                      .v = sl_step_row(w->step, op->in[IN_V], in_run) + kv_head * SL_ATTN_DIM,
                      .v_stride = sl_step_cols(w->step, op->in[IN_V]),
                      .slot = pos % SL_KV_PAGE,
                      .n = n,
                      .k_page = page + k_offset(w, kv_head),
                      .v_page = page + v_offset(w, kv_head)});
}

/* ---- attention ---- */

/* The queries of a tile that see block b come last, since keys are seen from the beginning on. */
static size_t first_to_see(const worker *w, const tile *t, size_t b)
{
    const size_t before = b * SL_ATTN_BLOCK, pos = t->segment->pos;
    const size_t first = before > pos ? (before - pos) * w->group : 0;
    return sl_min_size(sl_max_size(first, t->begin), t->end);
}

/* Block b for the tile's queries that see it, which wait in the scratch; out[i - begin]. */
static void attend_block(const worker *w, const tile *t, size_t b, sl_softmax *out)
{
    const size_t first = first_to_see(w, t, b), at = first - t->begin, n = t->end - first;
    for (size_t i = 0; i < n; i++)
        w->own->n_keys[i] = (uint16_t)sl_min_size(
            keys_seen(w, t->segment, first + i) - b * SL_ATTN_BLOCK, SL_ATTN_BLOCK);
    const size_t last = keys_seen(w, t->segment, t->end - 1) - 1;
    const size_t pages = last / SL_KV_PAGE + 1, next = (b + 1) * BLOCK_PAGES;
    const sl_attend block = {.type = w->type,
                             .pages = t->segment->kv_pages + b * BLOCK_PAGES,
                             .k_offset = k_offset(w, t->kv_head),
                             .v_offset = v_offset(w, t->kv_head),
                             .n_more = pages > next ? sl_min_size(pages - next, BLOCK_PAGES) : 0,
                             .n = n,
                             .q = w->own->q + at * SL_ATTN_STRIDE,
                             .n_keys = w->own->n_keys,
                             .scratch = w->own->kernel};
    w->kernels->attend_block(&block, out + at);
}

/* Result of a query: gate and rounding. */
static void finish(const worker *w, const tile *t, size_t query, const sl_softmax *softmax)
{
    const sl_op *op = w->step->op;
    const size_t row = t->segment->first_row + query / w->group;
    const size_t head = t->kv_head * w->group + query % w->group;
    const float *gate = sl_step_row(w->step, op->in[IN_Q], row) + (head * 2 + 1) * SL_ATTN_DIM;
    float *y = sl_step_row(w->step, op->out[OUT_Y], row) + head * SL_ATTN_DIM;
    w->kernels->softmax_finish(softmax, gate, y);
    if (op->out[OUT_YQ] == SL_NO_VALUE)
        return;
    const sl_q8_rows q8 = sl_plan_q8(w->step->plan, w->step->arena, op->out[OUT_YQ]);
    const size_t block = row * q8.n_blocks + head * (SL_ATTN_DIM / SL_Q8_BLOCK);
    w->kernels->quantise_row(y, SL_ATTN_DIM, q8.q + row * q8.n_padded + head * SL_ATTN_DIM,
                             q8.d + block, q8.sums + 2 * block);
}

static void finish_all(const worker *w, const tile *t)
{
    for (size_t i = t->begin; i < t->end; i++)
        finish(w, t, i, &w->own->all[i - t->begin]);
}

/* Merges block b, in scratch, into the results of the queries that see it. */
static void merge_block(const worker *w, const tile *t, size_t b)
{
    for (size_t i = first_to_see(w, t, b); i < t->end; i++)
        w->kernels->softmax_merge(&w->own->all[i - t->begin], &w->own->block[i - t->begin]);
}

/* Whether an item that costs `cost` belongs to thread i of n, when all items before it cost
 * `before` and all items together `total`: its middle decides. */
static bool is_mine(size_t before, size_t cost, size_t total, unsigned i, unsigned n)
{
    return (2 * before + cost) * n / (2 * total) == i;
}

/* ---- few rows ---- */

typedef struct few {
    const sl_cpu_step *step;
    size_t queries;       /* most per unit */
    size_t begin, blocks; /* when blocks are shared: these of every unit, in this round */
} few;

/* The queries of a (sequence, KV head), into scratch. */
static void prepare_unit(const worker *w, const tile *t)
{
    compute_angles(w, t->segment, 0, t->segment->n_rows);
    for (size_t i = 0; i < t->end; i++)
        prepare_query(w, t->segment->first_row + i / w->group, t->kv_head * w->group + i % w->group,
                      i / w->group, w->own->q + i * SL_ATTN_STRIDE);
}

/* The new keys that lie in block b, page by page. */
static void store_block(const worker *w, const tile *t, size_t b)
{
    const sl_segment *segment = t->segment;
    size_t pos = sl_max_size(segment->pos, b * SL_ATTN_BLOCK);
    const size_t end = sl_min_size((size_t)segment->pos + segment->n_rows, (b + 1) * SL_ATTN_BLOCK);
    while (pos < end) {
        const size_t n = sl_min_size(end - pos, SL_KV_PAGE - pos % SL_KV_PAGE);
        const size_t row = pos - segment->pos;
        store_keys(w, segment, row, n, row, t->kv_head);
        pos += n;
    }
}

static tile unit_tile(const worker *w, size_t unit)
{
    const sl_segment *segment = &w->step->run->segments[unit / w->args->n_kv_heads];
    return (tile){.segment = segment,
                  .kv_head = unit % w->args->n_kv_heads,
                  .end = segment->n_rows * w->group};
}

static size_t unit_blocks(const tile *t)
{
    return blocks_of((size_t)t->segment->pos + t->segment->n_rows);
}

static size_t all_units(const sl_cpu_step *step)
{
    return (size_t)step->run->n_segments * step->op->args.attention.n_kv_heads;
}

static size_t all_blocks(const worker *w)
{
    size_t total = 0;
    for (size_t u = 0; u < all_units(w->step); u++) {
        const tile t = unit_tile(w, u);
        total += unit_blocks(&t);
    }
    return total;
}

static void attend_unit(const worker *w, const tile *t)
{
    prepare_unit(w, t);
    for (size_t b = 0; b < unit_blocks(t); b++) {
        store_block(w, t, b);
        attend_block(w, t, b, b == 0 ? w->own->all : w->own->block);
        if (b > 0)
            merge_block(w, t, b);
    }
    finish_all(w, t);
}

static void units_task(void *context, unsigned i, unsigned n)
{
    const worker w = worker_of(context, i);
    const size_t total = all_blocks(&w);
    for (size_t u = 0, before = 0; u < all_units(w.step); u++) {
        const tile t = unit_tile(&w, u);
        const size_t cost = unit_blocks(&t);
        if (is_mine(before, cost, total, i, n))
            attend_unit(&w, &t);
        before += cost;
    }
}

/* Parts lie behind one another in the threads' scratch: first the merged results of every query of
 * every unit, then those of this round's blocks. */
static sl_softmax *part_at(const worker *w, size_t i)
{
    return &scratch_of(w->step, i / PARTS)->parts[i % PARTS];
}

static sl_softmax *merged_part(const worker *w, const few *work, size_t unit, size_t query)
{
    return part_at(w, unit * work->queries + query);
}

static sl_softmax *block_part(const worker *w, const few *work, size_t unit, size_t b, size_t query)
{
    const size_t places = all_units(w->step) + unit * work->blocks + (b - work->begin);
    return part_at(w, places * work->queries + query);
}

/* Computes this thread's part of the round's blocks. */
static void blocks_task(void *context, unsigned i, unsigned n)
{
    const few *work = context;
    const worker w = worker_of(work->step, i);
    size_t begin, end, prepared = SIZE_MAX;
    sl_pool_share(all_units(w.step) * work->blocks, 1, i, n, &begin, &end);
    for (size_t at = begin; at < end; at++) {
        const size_t u = at / work->blocks, b = work->begin + at % work->blocks;
        const tile t = unit_tile(&w, u);
        if (b >= unit_blocks(&t))
            continue;
        if (u != prepared)
            prepare_unit(&w, &t);
        prepared = u;
        store_block(&w, &t, b);
        attend_block(&w, &t, b, w.own->block);
        for (size_t query = first_to_see(&w, &t, b); query < t.end; query++)
            *block_part(&w, work, u, b, query) = w.own->block[query];
    }
}

/* Merges the round's blocks of every query that falls to this thread, in order. */
static void merge_task(void *context, unsigned i, unsigned n)
{
    const few *work = context;
    const worker w = worker_of(work->step, i);
    size_t begin, end;
    sl_pool_share(all_units(w.step) * work->queries, 1, i, n, &begin, &end);
    for (size_t at = begin; at < end; at++) {
        const size_t u = at / work->queries, query = at % work->queries;
        const tile t = unit_tile(&w, u);
        if (query >= t.end)
            continue;
        sl_softmax *all = merged_part(&w, work, u, query);
        const size_t seen = blocks_of(keys_seen(&w, t.segment, query));
        const size_t round_end = work->begin + work->blocks;
        for (size_t b = work->begin; b < sl_min_size(seen, round_end); b++) {
            const sl_softmax *block = block_part(&w, work, u, b, query);
            if (b == 0)
                *all = *block;
            else
                w.kernels->softmax_merge(all, block);
        }
        if (seen > work->begin && seen <= round_end)
            finish(&w, &t, query, all);
    }
}

/* ---- many rows ---- */

/* Norm and rope of a range of rows; keys are stored, queries wait in y, each where its result will
 * be. */
static void prepare_task(void *context, unsigned i, unsigned n)
{
    const worker w = worker_of(context, i);
    size_t row, end;
    sl_pool_share(w.step->run->n_rows, 1, i, n, &row, &end);
    while (row < end) {
        const sl_segment *segment = sl_step_segment(w.step, row);
        const size_t in_segment = row - segment->first_row, pos = segment->pos + in_segment;
        size_t n_run = sl_min_size(end - row, segment->n_rows - in_segment);
        n_run = sl_min_size(n_run, RUN - pos % RUN);
        compute_angles(&w, segment, in_segment, n_run);
        for (size_t k = 0; k < n_run; k++) {
            float *y = sl_step_row(w.step, w.step->op->out[OUT_Y], row + k);
            for (size_t head = 0; head < w.args->n_heads; head++)
                prepare_query(&w, row + k, head, k, y + head * SL_ATTN_DIM);
        }
        for (size_t kv_head = 0; kv_head < w.args->n_kv_heads; kv_head++)
            store_keys(&w, segment, in_segment, n_run, 0, kv_head);
        row += n_run;
    }
}

/* Queries per tile: many share a converted panel, but every thread wants some tiles. */
static size_t tile_size(const sl_cpu_step *step, unsigned n_threads)
{
    const size_t queries = (size_t)step->run->n_rows * step->op->args.attention.n_heads;
    const size_t each = queries / (2 * n_threads) / STEP * STEP;
    return sl_min_size(sl_max_size(each, STEP), TILE);
}

static void attend_tile(const worker *w, const tile *t)
{
    for (size_t i = t->begin; i < t->end; i++) {
        const size_t row = t->segment->first_row + i / w->group;
        const size_t head = t->kv_head * w->group + i % w->group;
        memcpy(w->own->q + (i - t->begin) * SL_ATTN_STRIDE,
               sl_step_row(w->step, w->step->op->out[OUT_Y], row) + head * SL_ATTN_DIM,
               SL_ATTN_DIM * sizeof(float));
    }
    for (size_t b = 0; b < blocks_of(keys_seen(w, t->segment, t->end - 1)); b++) {
        attend_block(w, t, b, b == 0 ? w->own->all : w->own->block);
        if (b > 0)
            merge_block(w, t, b);
    }
    finish_all(w, t);
}

/* Goes over all tiles; attends those of thread i of n, or, without a total, adds up the cost. */
static size_t for_tiles(const worker *w, size_t total, unsigned i, unsigned n)
{
    const size_t size = tile_size(w->step, n);
    size_t before = 0;
    for (size_t u = 0; u < all_units(w->step); u++) {
        tile t = unit_tile(w, u);
        const size_t queries = t.end;
        for (t.begin = 0; t.begin < queries; t.begin = t.end) {
            t.end = sl_min_size(t.begin + size, queries);
            const size_t cost = blocks_of(keys_seen(w, t.segment, t.end - 1)) * (t.end - t.begin);
            if (total > 0 && is_mine(before, cost, total, i, n))
                attend_tile(w, &t);
            before += cost;
        }
    }
    return before;
}

static void tiles_task(void *context, unsigned i, unsigned n)
{
    const worker w = worker_of(context, i);
    for_tiles(&w, for_tiles(&w, 0, i, n), i, n);
}

/* ---- the op ---- */

/* Blocks of each unit per round, from the room for parts, which also holds the merged results. */
static size_t blocks_per_round(const few *work, size_t n_threads)
{
    const size_t places = n_threads * PARTS / work->queries, units = all_units(work->step);
    return places / units - 1;
}

sl_status sl_cpu_attention(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    const worker w = worker_of(step, 0);
    const size_t n_threads = sl_pool_threads(step->cpu->pool), units = all_units(step);
    few work = {.step = step};
    size_t most_blocks = 0;
    for (size_t u = 0; u < units; u++) {
        const tile t = unit_tile(&w, u);
        work.queries = sl_max_size(work.queries, t.end);
        most_blocks = sl_max_size(most_blocks, unit_blocks(&t));
    }
    void *context = (void *)(uintptr_t)step; /* tasks take pointers to what they may change */
    if (work.queries > FEW) {
        sl_cpu_region(step, prepare_task, context);
        sl_cpu_region(step, tiles_task, context);
        return SL_OK;
    }
    if (most_blocks == 1 || units % n_threads == 0 || units >= 2 * n_threads) {
        sl_cpu_region(step, units_task, context);
        return SL_OK;
    }
    /* units < 2 threads and queries <= FEW, so that a round has at least one block of each. */
    work.blocks = sl_min_size(blocks_per_round(&work, n_threads), most_blocks);
    for (; work.begin < most_blocks; work.begin += work.blocks) {
        sl_cpu_region(step, blocks_task, &work);
        sl_cpu_region(step, merge_task, &work);
    }
    return SL_OK;
}
