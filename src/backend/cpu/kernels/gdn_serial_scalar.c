/* The gated delta rule token by token, in float32: the textbook form that the tape form is measured
 * against. It rewrites the state at every token. */
#include "backend/cpu/kernels/scalar.h"

enum { DIM = SL_GDN_DIM };

SL_SCALAR_CLONES
void sl_gdn_serial_scalar(float *S, const float *q, const float *k, const float *v, float g,
                          float beta, float *o)
{
    const float decay = sl_expf(g);
    float update[DIM] = {0}, out[DIM] = {0};
    for (size_t a = 0; a < DIM; a++) {
        float *row = S + a * DIM;
        for (size_t c = 0; c < DIM; c++) {
            row[c] = decay * row[c];
            update[c] = fmaf(row[c], k[a], update[c]);
        }
    }
    for (size_t c = 0; c < DIM; c++)
        update[c] = beta * (v[c] - update[c]);
    for (size_t a = 0; a < DIM; a++) {
        float *row = S + a * DIM;
        for (size_t c = 0; c < DIM; c++) {
            row[c] = fmaf(k[a], update[c], row[c]);
            out[c] = fmaf(row[c], q[a], out[c]);
        }
    }
    memcpy(o, out, sizeof out);
}

SL_SCALAR_CLONES
void sl_gdn_tokens_scalar(const sl_gdn_tokens *tokens)
{
    const size_t begin = tokens->col_begin, end = tokens->col_end;
    for (size_t t = 0; t < tokens->n; t++) {
        const float *k = tokens->k[t], *q = tokens->q[t], *v = tokens->v[t];
        const float decay = sl_expf(tokens->g[t]);
        float u[DIM] = {0}, o[DIM] = {0};
        for (size_t a = 0; a < DIM; a++) {
            for (size_t c = begin; c < end; c++)
                u[c] = fmaf(tokens->S[a * DIM + c], k[a], u[c]);
        }
        for (size_t c = begin; c < end; c++)
            u[c] = tokens->beta[t] * fmaf(-decay, u[c], v[c]);
        for (size_t a = 0; a < DIM; a++) {
            float *row = tokens->S + a * DIM;
            for (size_t c = begin; c < end; c++) {
                row[c] = fmaf(k[a], u[c], decay * row[c]);
                o[c] = fmaf(row[c], q[a], o[c]);
            }
        }
        memcpy(tokens->o[t] + begin, o + begin, (end - begin) * sizeof *o);
    }
}
