/* The gated delta rule in its tape form. Lanes are value columns, and tape rows in the products of
 * keys; a sum over the key index runs in ascending order inside of its lane.
 *
 * Of n rows, S^T k and S^T q, the products of keys and the border are matrix products: tiles of
 * TILE_ROWS by TILE_VECTORS vectors stay in registers while the inner index runs. The substitution
 * for the updates u goes row by row. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_GDN_H
#define SL_BACKEND_CPU_KERNELS_LANES_GDN_H

#include "backend/cpu/kernels/lanes_elementwise.h"

enum {
    DIM = SL_GDN_DIM,
    CHUNK = SL_GDN_CHUNK,
    CHUNK_VECTORS = CHUNK / LANES,
    /* Enough sums in flight for the latency of an fma, few enough for the registers. */
    TILE_ROWS = LANE_REGISTERS >= 32 ? 8 : 6,
    TILE_VECTORS = LANE_REGISTERS >= 32 ? 2 : 1,
    BORDER_ROWS = LANE_REGISTERS >= 32 ? 4 : 6,
    BORDER_VECTORS = LANE_REGISTERS >= 32 ? 4 : 1,
    /* Vectors at once where there are only two rows: a token's key and its query. */
    PAIR_VECTORS = LANE_REGISTERS >= 32 ? 8 : 2,
    MOST_TILE = 16 /* vectors */
};
_Static_assert((int)TILE_ROWS *(int)TILE_VECTORS <= (int)MOST_TILE, "a tile has its room");
_Static_assert((int)BORDER_ROWS *(int)BORDER_VECTORS <= (int)MOST_TILE, "a tile has its room");
_Static_assert(2 * (int)PAIR_VECTORS <= (int)MOST_TILE, "a tile has its room");
_Static_assert(TILE_ROWS % 2 == 0, "keys and queries come in pairs");

/* The columns that a call may touch, in strips. */
typedef struct columns {
    size_t begin, end;
} columns;

/* Vectors of a strip: whole ones, or a single one of which n lanes exist. */
SL_INLINE vf load_lanes(const float *p, size_t n, bool cut)
{
    return cut ? v_load_first(p, n) : v_load(p);
}

SL_INLINE void store_lanes(float *p, vf x, size_t n, bool cut)
{
    if (cut)
        v_store_first(p, x, n);
    else
        v_store(p, x);
}

SL_INLINE void clear_tile(size_t n, vf sums[MOST_TILE])
{
    for (size_t t = 0; t < n; t++)
        sums[t] = v_zero();
}

/* sums[r][v] += sum over a of x[r][a] * m[a][v], begin <= a < end ascending; m has `stride` floats
 * a row. */
SL_INLINE void tile_product(const float *const *x, const float *m, size_t stride, size_t begin,
                            size_t end, size_t n_rows, size_t n_vectors, size_t n, bool cut,
                            vf sums[MOST_TILE])
{
    const float *row[TILE_ROWS];
    for (size_t r = 0; r < n_rows; r++)
        row[r] = x[r];
    m += begin * stride;
    for (size_t a = begin; a < end; a++, m += stride) {
        vf column[PAIR_VECTORS];
        for (size_t v = 0; v < n_vectors; v++)
            column[v] = load_lanes(m + v * LANES, n, cut);
        for (size_t r = 0; r < n_rows; r++) {
            const vf factor = v_set(row[r][a]);
            for (size_t v = 0; v < n_vectors; v++)
                sums[r * n_vectors + v] = v_fma(column[v], factor, sums[r * n_vectors + v]);
        }
    }
}

/* ---- decays and products of keys ---- */

/* What a call works out before it turns to columns. Row r is the call's row r, on the tape at
 * begin + r; only the tape rows up to its own count. */
typedef struct weights {
    float e[CHUNK];            /* exp(D) */
    float to_u[CHUNK][CHUNK];  /* [r][j] exp(d_j) * (k_r . k_j) */
    float to_o[CHUNK][CHUNK];  /* [r][j] exp(d_j) * (q_r . k_j) */
    float keys[DIM * CHUNK];   /* [a][j] the tape's keys; for the border [j][a], with decay */
    const float *x[2 * CHUNK]; /* k_0, q_0, k_1, q_1, ... */
} weights;

/* Decays gathered since the border as row i joins the tape: see gdn_scalar.c. d[j] of j > i is not
 * used before row j sets it to zero. */
SL_INLINE void gather_decay(float g, size_t i, float *total, float d[CHUNK])
{
    *total = *total + g;
    for (size_t j = 0; j < i; j += LANES)
        v_store(d + j, v_add(v_load(d + j), v_set(g)));
    d[i] = 0.0f;
}

SL_INLINE void transpose_keys(const float *const *k, size_t n, float *keys)
{
    for (size_t j = 0; j < n; j += LANES) {
        for (size_t a = 0; a < DIM; a += LANES) {
            vf block[LANES];
            for (size_t l = 0; l < LANES; l++)
                block[l] = j + l < n ? v_load(k[j + l] + a) : v_zero();
            v_transpose(block);
            for (size_t l = 0; l < LANES; l++)
                v_store(keys + (a + l) * CHUNK + j, block[l]);
        }
    }
}

/* Products of n_rows keys and queries from x[at] with LANES * n_vectors tape rows from j. */
SL_INLINE void key_tile(weights *w, size_t at, size_t j, size_t n_rows, size_t n_vectors)
{
    vf sums[MOST_TILE];
    clear_tile(n_rows * n_vectors, sums);
    tile_product(w->x + at, w->keys + j, CHUNK, 0, DIM, n_rows, n_vectors, LANES, false, sums);
    for (size_t r = 0; r < n_rows; r++) {
        float *to = r % 2 == 0 ? w->to_u[(at + r) / 2] : w->to_o[(at + r) / 2];
        for (size_t v = 0; v < n_vectors; v++) {
            float *p = to + j + v * LANES; /* holds the decays */
            v_store(p, v_mul(v_load(p), sums[r * n_vectors + v]));
        }
    }
}

SL_INLINE void weigh_keys(const sl_gdn_rows *rows, weights *w)
{
    float total = 0.0f;
    _Alignas(64) float d[CHUNK] = {0};
    for (size_t i = 0; i < rows->begin; i++)
        gather_decay(rows->g[i], i, &total, d);
    for (size_t r = 0; r < rows->n; r++) {
        const size_t i = rows->begin + r;
        gather_decay(rows->g[i], i, &total, d);
        w->e[r] = total;
        for (size_t j = 0; j < CHUNK; j += LANES) {
            vf decay = j <= i ? v_expf(v_load(d + j)) : v_zero();
            v_store(w->to_u[r] + j, decay);
            v_store(w->to_o[r] + j, decay);
        }
        w->x[2 * r] = rows->k[i];
        w->x[2 * r + 1] = rows->q[r];
    }
    FOR_VECTORS(r, rows->n)
    store_some(w->e + r, v_expf(load_some(w->e + r, rows->n - r)), rows->n - r);

    transpose_keys(rows->k, rows->begin + rows->n, w->keys);
    size_t at = 0;
    for (; at + TILE_ROWS <= 2 * rows->n; at += TILE_ROWS) {
        const size_t last = rows->begin + (at + TILE_ROWS) / 2;
        for (size_t j = 0; j < last; j += LANES)
            key_tile(w, at, j, TILE_ROWS, 1);
    }
    for (; at < 2 * rows->n; at += 2) {
        const size_t last = rows->begin + at / 2 + 1;
        size_t j = 0;
        for (; j + 2 * LANES <= CHUNK && j + LANES < last; j += 2 * LANES)
            key_tile(w, at, j, 2, 2);
        if (j < last)
            key_tile(w, at, j, 2, 1);
    }
}

/* ---- rows ---- */

/* u = v - exp(D) S^T k and o = exp(D) S^T q of row r, given the sums. */
SL_INLINE void state_result(const sl_gdn_rows *rows, const weights *w, size_t r, size_t c,
                            size_t n_vectors, size_t n, bool cut, const vf *from_k,
                            const vf *from_q)
{
    const vf e = v_set(w->e[r]);
    const float *value = rows->v[r] + c;
    float *u = rows->u[rows->begin + r] + c, *o = rows->o[r] + c;
    for (size_t v = 0; v < n_vectors; v++) {
        const size_t l = v * LANES;
        store_lanes(u + l, v_fnma(e, from_k[v], load_lanes(value + l, n, cut)), n, cut);
        store_lanes(o + l, v_mul(e, from_q[v]), n, cut);
    }
}

/* The same for the rows of x[at] onward, with the sums. */
SL_INLINE void state_tile(const sl_gdn_rows *rows, const weights *w, size_t at, size_t c,
                          size_t n_rows, size_t n_vectors, size_t n, bool cut)
{
    vf sums[MOST_TILE];
    clear_tile(n_rows * n_vectors, sums);
    tile_product(w->x + at, rows->S + c, DIM, 0, DIM, n_rows, n_vectors, n, cut, sums);
    for (size_t t = 0; t < n_rows; t += 2)
        state_result(rows, w, (at + t) / 2, c, n_vectors, n, cut, sums + t * n_vectors,
                     sums + (t + 1) * n_vectors);
}

/* Rows a .. a + n - 1 of a state on their way to the second level of cache. */
SL_INLINE void fetch_state(const float *S, size_t a, size_t n)
{
    enum { LINE = 16 /* floats */ };
    for (size_t i = a * DIM; S && i < (a + n) * DIM; i += LINE)
        __builtin_prefetch(S + i, 0, 2);
}

/* The same for one row and the columns from c to end, whole strips of PAIR_VECTORS. The state,
 * which comes from memory when a single token is decoded, is read once from front to back: a few of
 * its rows are done for all columns before the next ones, while those of the next state arrive. */
SL_INLINE void state_pair(const sl_gdn_rows *rows, const weights *w, size_t at, size_t begin,
                          size_t end)
{
    enum { STRIP = PAIR_VECTORS * LANES, KEYS = 8 };
    _Alignas(64) float parts[DIM / STRIP][2 * STRIP];
    vf sums[MOST_TILE];
    for (size_t a = 0; a < DIM; a += KEYS) {
        fetch_state(rows->next_S, a, KEYS);
        for (size_t c = begin; c < end; c += STRIP) {
            float *part = parts[(c - begin) / STRIP];
            for (size_t t = 0; t < 2 * PAIR_VECTORS; t++)
                sums[t] = a == 0 ? v_zero() : v_load(part + t * LANES);
            tile_product(w->x + at, rows->S + c, DIM, a, a + KEYS, 2, PAIR_VECTORS, LANES, false,
                         sums);
            for (size_t t = 0; t < 2 * PAIR_VECTORS; t++)
                v_store(part + t * LANES, sums[t]);
        }
    }
    for (size_t c = begin; c < end; c += STRIP) {
        const float *part = parts[(c - begin) / STRIP];
        for (size_t t = 0; t < 2 * PAIR_VECTORS; t++)
            sums[t] = v_load(part + t * LANES);
        state_result(rows, w, at / 2, c, PAIR_VECTORS, LANES, false, sums, sums + PAIR_VECTORS);
    }
}

/* Row r from what state_tile left of it and the tape rows before it. */
SL_INLINE void substitute(const sl_gdn_rows *rows, const weights *w, size_t r, size_t c,
                          size_t n_vectors, size_t n, bool cut)
{
    const size_t i = rows->begin + r;
    float *u_i = rows->u[i] + c, *o_i = rows->o[r] + c;
    vf u[PAIR_VECTORS], o[PAIR_VECTORS];
    for (size_t v = 0; v < n_vectors; v++) {
        u[v] = load_lanes(u_i + v * LANES, n, cut);
        o[v] = load_lanes(o_i + v * LANES, n, cut);
    }
    for (size_t j = 0; j < i; j++) {
        const vf to_u = v_set(w->to_u[r][j]), to_o = v_set(w->to_o[r][j]);
        const float *u_j = rows->u[j] + c;
        for (size_t v = 0; v < n_vectors; v++) {
            vf x = load_lanes(u_j + v * LANES, n, cut);
            u[v] = v_fnma(to_u, x, u[v]);
            o[v] = v_fma(to_o, x, o[v]);
        }
    }
    const vf beta = v_set(rows->beta[r]), own = v_set(w->to_o[r][i]); /* exp(d_i) = 1 */
    for (size_t v = 0; v < n_vectors; v++) {
        u[v] = v_flush_tiny(v_mul(beta, u[v]));
        store_lanes(u_i + v * LANES, u[v], n, cut);
        store_lanes(o_i + v * LANES, v_fma(own, u[v], o[v]), n, cut);
    }
}

static void gdn_rows(const sl_gdn_rows *rows)
{
    _Alignas(64) weights w;
    weigh_keys(rows, &w);

    const size_t n_x = 2 * rows->n, tiled = n_x - n_x % TILE_ROWS;
    size_t c = rows->col_begin;
    for (; c + TILE_VECTORS * LANES <= rows->col_end; c += TILE_VECTORS * LANES) {
        for (size_t at = 0; at < tiled; at += TILE_ROWS)
            state_tile(rows, &w, at, c, TILE_ROWS, TILE_VECTORS, LANES, false);
    }
    for (; c < rows->col_end; c += LANES) {
        for (size_t at = 0; at < tiled; at += 2)
            state_tile(rows, &w, at, c, 2, 1, sl_min_size(rows->col_end - c, LANES), true);
    }
    const size_t width = rows->col_end - rows->col_begin;
    const size_t whole = rows->col_begin + width - width % (PAIR_VECTORS * LANES);
    for (size_t at = tiled; at < n_x; at += 2)
        state_pair(rows, &w, at, rows->col_begin, whole);
    for (c = rows->col_begin; c < whole; c += PAIR_VECTORS * LANES) {
        for (size_t r = 0; r < rows->n; r++)
            substitute(rows, &w, r, c, PAIR_VECTORS, LANES, false);
    }
    for (; c < rows->col_end; c += LANES) {
        const size_t n = sl_min_size(rows->col_end - c, LANES);
        for (size_t at = tiled; at < n_x; at += 2)
            state_tile(rows, &w, at, c, 2, 1, n, true);
        for (size_t r = 0; r < rows->n; r++)
            substitute(rows, &w, r, c, 1, n, true);
    }
}

/* ---- border ---- */

/* out = exp(D) S + sum over j of keys[j] u_j for the state's rows a onward. */
SL_INLINE void border_tile(const float *S, const float *keys, const float *const *u, float total,
                           size_t a, size_t c, size_t n_rows, size_t n_vectors, size_t n, bool cut,
                           float *out)
{
    vf sums[MOST_TILE];
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t v = 0; v < n_vectors; v++)
            sums[r * n_vectors + v] =
                v_mul(v_set(total), load_lanes(S + (a + r) * DIM + c + v * LANES, n, cut));
    }
    for (size_t j = 0; j < CHUNK; j++) {
        vf x[BORDER_VECTORS];
        for (size_t v = 0; v < n_vectors; v++)
            x[v] = load_lanes(u[j] + c + v * LANES, n, cut);
        for (size_t r = 0; r < n_rows; r++) {
            const vf factor = v_set(keys[j * DIM + a + r]);
            for (size_t v = 0; v < n_vectors; v++)
                sums[r * n_vectors + v] = v_fma(factor, x[v], sums[r * n_vectors + v]);
        }
    }
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t v = 0; v < n_vectors; v++)
            store_lanes(out + (a + r) * DIM + c + v * LANES, v_flush_tiny(sums[r * n_vectors + v]),
                        n, cut);
    }
}

static void gdn_border(const float *S, const float *const *k, const float *const *u, const float *g,
                       size_t col_begin, size_t col_end, float *out)
{
    float total = 0.0f;
    _Alignas(64) float d[CHUNK] = {0}, keys[CHUNK * DIM];
    for (size_t i = 0; i < CHUNK; i++)
        gather_decay(g[i], i, &total, d);
    for (size_t j = 0; j < CHUNK; j += LANES)
        v_store(d + j, v_expf(v_load(d + j)));
    for (size_t j = 0; j < CHUNK; j++) {
        for (size_t a = 0; a < DIM; a += LANES)
            v_store(keys + j * DIM + a, v_mul(v_set(d[j]), v_load(k[j] + a)));
    }
    total = sl_expf(total);

    enum { TILED = DIM - DIM % BORDER_ROWS };
    size_t c = col_begin;
    for (; c + BORDER_VECTORS * LANES <= col_end; c += BORDER_VECTORS * LANES) {
        for (size_t a = 0; a < TILED; a += BORDER_ROWS)
            border_tile(S, keys, u, total, a, c, BORDER_ROWS, BORDER_VECTORS, LANES, false, out);
        for (size_t a = TILED; a < DIM; a += 2)
            border_tile(S, keys, u, total, a, c, 2, BORDER_VECTORS, LANES, false, out);
    }
    for (; c < col_end; c += LANES) {
        for (size_t a = 0; a < DIM; a += 2)
            border_tile(S, keys, u, total, a, c, 2, 1, sl_min_size(col_end - c, LANES), true, out);
    }
}

#endif
