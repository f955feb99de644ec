/* The gated delta rule in its tape form, section 6 of docs/EXACTNESS.md: inside a chunk the state
 * stays as it was at the border, and every token adds an update row u to the tape. Token i reads
 * the state and the rows before it, so a row's bits do not depend on how the chunk was cut into
 * calls, and value columns never meet, so they do not depend on how columns were shared out either.
 */
#include "backend/cpu/kernels/scalar.h"

enum { DIM = SL_GDN_DIM };

/* Below 2^-100 a value becomes +0, which keeps denormals out of state and tape.
 * Written so that NaN stays NaN. */
SL_INLINE float flush_tiny(float x)
{
    return fabsf(x) < 0x1p-100f ? 0.0f : x;
}

/* Decays gathered since the border once row i is on the tape: total for the state, d[j] for tape
 * row j. One running sum per row: differences of a single sum would cancel where strong and weak
 * decay alternate. */
SL_INLINE void gather_decay(float g, size_t i, float *total, float *d)
{
    *total = *total + g;
    for (size_t j = 0; j < i; j++)
        d[j] = d[j] + g;
    d[i] = 0.0f;
}

SL_INLINE float dot(const float *a, const float *b)
{
    float sum = 0.0f;
    for (size_t i = 0; i < DIM; i++)
        sum = fmaf(a[i], b[i], sum);
    return sum;
}

/* Sk[c] = (S^T k)[c] and Sq[c] = (S^T q)[c], over the key index in ascending order. */
SL_INLINE void read_state(const float *S, const float *k, const float *q, size_t begin, size_t end,
                          float Sk[DIM], float Sq[DIM])
{
    for (size_t c = begin; c < end; c++)
        Sk[c] = Sq[c] = 0.0f;
    for (size_t a = 0; a < DIM; a++) {
        const float *row = S + a * DIM;
        for (size_t c = begin; c < end; c++) {
            Sk[c] = fmaf(row[c], k[a], Sk[c]);
            Sq[c] = fmaf(row[c], q[a], Sq[c]);
        }
    }
}

SL_SCALAR_CLONES
void sl_gdn_rows_scalar(const sl_gdn_rows *rows)
{
    const size_t begin = rows->col_begin, end = rows->col_end;
    float total = 0.0f, d[SL_GDN_CHUNK];
    for (size_t i = 0; i < rows->begin; i++)
        gather_decay(rows->g[i], i, &total, d);

    for (size_t row = 0; row < rows->n; row++) {
        const size_t i = rows->begin + row;
        const float *k = rows->k[i], *q = rows->q[row], *v = rows->v[row];
        const float beta = rows->beta[row];
        float *u = rows->u[i], *o = rows->o[row];
        gather_decay(rows->g[i], i, &total, d);

        float Sk[DIM], Sq[DIM];
        read_state(rows->S, k, q, begin, end, Sk, Sq);
        const float e = sl_expf(total);
        float r[DIM];
        for (size_t c = begin; c < end; c++) {
            r[c] = fmaf(-e, Sk[c], v[c]);
            Sq[c] = e * Sq[c];
        }
        for (size_t j = 0; j < i; j++) {
            const float decay = sl_expf(d[j]);
            const float to_r = decay * dot(k, rows->k[j]), to_o = decay * dot(q, rows->k[j]);
            const float *u_j = rows->u[j];
            for (size_t c = begin; c < end; c++) {
                r[c] = fmaf(-to_r, u_j[c], r[c]);
                Sq[c] = fmaf(to_o, u_j[c], Sq[c]);
            }
        }
        const float own = dot(q, k); /* exp(d_i) = 1 */
        for (size_t c = begin; c < end; c++) {
            u[c] = flush_tiny(beta * r[c]);
            o[c] = fmaf(own, u[c], Sq[c]);
        }
    }
}

SL_SCALAR_CLONES
void sl_gdn_border_scalar(const float *S, const float *const *k, const float *const *u,
                          const float *g, size_t col_begin, size_t col_end, float *out)
{
    float total = 0.0f, d[SL_GDN_CHUNK], decay[SL_GDN_CHUNK];
    for (size_t i = 0; i < SL_GDN_CHUNK; i++)
        gather_decay(g[i], i, &total, d);
    for (size_t j = 0; j < SL_GDN_CHUNK; j++)
        decay[j] = sl_expf(d[j]);
    const float e = sl_expf(total);

    for (size_t a = 0; a < DIM; a++) {
        float s[DIM];
        for (size_t c = col_begin; c < col_end; c++)
            s[c] = e * S[a * DIM + c];
        for (size_t j = 0; j < SL_GDN_CHUNK; j++) {
            const float w = decay[j] * k[j][a];
            const float *u_j = u[j];
            for (size_t c = col_begin; c < col_end; c++)
                s[c] = fmaf(w, u_j[c], s[c]);
        }
        for (size_t c = col_begin; c < col_end; c++)
            out[a * DIM + c] = flush_tiny(s[c]);
    }
}
