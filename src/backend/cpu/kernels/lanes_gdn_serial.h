/* The token-serial rule, made as fast as it goes: a slice of the state's columns that fits into the
 * innermost cache is copied there and stays for all tokens, and one pass over it writes what a
 * token adds, reads its output and begins the next token. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_GDN_SERIAL_H
#define SL_BACKEND_CPU_KERNELS_LANES_GDN_SERIAL_H

#include "backend/cpu/kernels/lanes_gdn.h"

enum { SERIAL_VECTORS = LANE_REGISTERS >= 32 ? 4 : 2 };

/* All tokens of n_vectors vectors of columns from c. */
SL_INLINE void serial_slice(const sl_gdn_tokens *tokens, size_t c, size_t n_vectors, size_t n,
                            bool cut)
{
    _Alignas(64) float slice[DIM * SERIAL_VECTORS * LANES];
    const size_t width = n_vectors * LANES;
    vf from_k[SERIAL_VECTORS], u[SERIAL_VECTORS], o[SERIAL_VECTORS];
    for (size_t v = 0; v < n_vectors; v++)
        from_k[v] = v_zero();
    for (size_t a = 0; a < DIM; a++) {
        for (size_t v = 0; v < n_vectors; v++) {
            vf s = load_lanes(tokens->S + a * DIM + c + v * LANES, n, cut);
            v_store(slice + a * width + v * LANES, s);
            from_k[v] = v_fma(s, v_set(tokens->k[0][a]), from_k[v]);
        }
    }
    for (size_t t = 0; t < tokens->n; t++) {
        const float *k = tokens->k[t], *q = tokens->q[t];
        const float *next_k = tokens->k[t + 1 < tokens->n ? t + 1 : t];
        const vf decay = v_set(sl_expf(tokens->g[t])), beta = v_set(tokens->beta[t]);
        for (size_t v = 0; v < n_vectors; v++) {
            vf value = load_lanes(tokens->v[t] + c + v * LANES, n, cut);
            u[v] = v_mul(beta, v_fnma(decay, from_k[v], value));
            o[v] = from_k[v] = v_zero();
        }
        for (size_t a = 0; a < DIM; a++) {
            const vf k_a = v_set(k[a]), q_a = v_set(q[a]), next_a = v_set(next_k[a]);
            for (size_t v = 0; v < n_vectors; v++) {
                float *p = slice + a * width + v * LANES;
                vf s = v_fma(k_a, u[v], v_mul(decay, v_load(p)));
                v_store(p, s);
                o[v] = v_fma(s, q_a, o[v]);
                from_k[v] = v_fma(s, next_a, from_k[v]);
            }
        }
        for (size_t v = 0; v < n_vectors; v++)
            store_lanes(tokens->o[t] + c + v * LANES, o[v], n, cut);
    }
    for (size_t a = 0; a < DIM; a++) {
        for (size_t v = 0; v < n_vectors; v++)
            store_lanes(tokens->S + a * DIM + c + v * LANES, v_load(slice + a * width + v * LANES),
                        n, cut);
    }
}

static void gdn_tokens(const sl_gdn_tokens *tokens)
{
    size_t c = tokens->col_begin;
    for (; c + SERIAL_VECTORS * LANES <= tokens->col_end; c += SERIAL_VECTORS * LANES)
        serial_slice(tokens, c, SERIAL_VECTORS, LANES, false);
    for (; c < tokens->col_end; c += LANES)
        serial_slice(tokens, c, 1, sl_min_size(tokens->col_end - c, LANES), true);
}

#endif
