/* Attention over paged KV: against a softmax in float64, bit for bit against section 7 of the
 * arithmetic written down plainly, and with garbage wherever no key lies. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/math.h"
#include "hash.h"
#include "numbers.h"

enum { DIM = SL_ATTN_DIM, PAGE = SL_KV_PAGE, BLOCK = SL_ATTN_BLOCK, MOST_KEYS = 1000 };
enum { MOST_PAGES = MOST_KEYS / PAGE + 1 };

static const size_t key_counts[] = {1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000};

/* Queries, keys and values as they were before they were stored. */
static float q[DIM], K[MOST_KEYS][DIM], V[MOST_KEYS][DIM];

static void fill(uint64_t seed, float q_scale, float k_scale)
{
    sl_test_rng rng = sl_test_rng_of(seed);
    for (size_t d = 0; d < DIM; d++)
        q[d] = q_scale * sl_test_rng_normal(&rng);
    for (size_t j = 0; j < MOST_KEYS; j++) {
        for (size_t d = 0; d < DIM; d++) {
            K[j][d] = k_scale * sl_test_rng_normal(&rng);
            V[j][d] = sl_test_rng_normal(&rng);
        }
    }
}

/* ---- pages ---- */

typedef struct cache {
    sl_kv_type type;
    void *pages[MOST_PAGES];
    size_t k_offset, v_offset;
} cache;

static size_t element_bytes(sl_kv_type type)
{
    return type == SL_KV_F16 ? sizeof(uint16_t) : sizeof(float);
}

static void cache_add(cache *c, size_t j)
{
    char *page = c->pages[j / PAGE];
    sl_kv_store_scalar(&(sl_kv_rows){.type = c->type,
                                     .k = K[j],
                                     .v = V[j],
                                     .slot = j % PAGE,
                                     .n = 1,
                                     .k_page = page + c->k_offset,
                                     .v_page = page + c->v_offset});
}

/* Pages of `filler` bytes (0xFF makes every element a NaN) with the first n_keys stored. */
static void cache_init(cache *c, sl_kv_type type, int filler, size_t n_keys)
{
    const size_t n_bytes = element_bytes(type) * PAGE * DIM;
    *c = (cache){.type = type, .v_offset = 192, .k_offset = 192 + n_bytes + 64};
    for (size_t p = 0; p < MOST_PAGES; p++) {
        c->pages[p] = malloc(2 * n_bytes + 512);
        assert_non_null(c->pages[p]);
        memset(c->pages[p], filler, 2 * n_bytes + 512);
    }
    for (size_t j = 0; j < n_keys; j++)
        cache_add(c, j);
}

static void cache_free(cache *c)
{
    for (size_t p = 0; p < MOST_PAGES; p++)
        free(c->pages[p]);
}

static void attend(const cache *c, size_t n_keys, float *o)
{
    sl_attention_scalar(c->type, q, c->pages, c->k_offset, c->v_offset, n_keys, o);
}

/* What a cache of this type remembers of x. */
static float stored(sl_kv_type type, float x)
{
    return type == SL_KV_F16 ? sl_f16_to_f32(sl_f32_to_f16(x)) : x;
}

/* ---- references ---- */

static void attend_f64(sl_kv_type type, size_t n_keys, double *o)
{
    static double p[MOST_KEYS];
    double most = -INFINITY, sum = 0.0;
    for (size_t j = 0; j < n_keys; j++) {
        p[j] = 0.0;
        for (size_t d = 0; d < DIM; d++)
            p[j] += (double)q[d] * (double)stored(type, K[j][d]);
        p[j] /= 16.0;
        most = fmax(most, p[j]);
    }
    for (size_t j = 0; j < n_keys; j++)
        sum += p[j] = exp(p[j] - most);
    for (size_t d = 0; d < DIM; d++) {
        o[d] = 0.0;
        for (size_t j = 0; j < n_keys; j++)
            o[d] += p[j] / sum * (double)stored(type, V[j][d]);
    }
}

/* Section 7, one output at a time. */
static float attend_plainly(sl_kv_type type, size_t n_keys, size_t d)
{
    float m = 0.0f, l = 0.0f, o = 0.0f;
    for (size_t block = 0; block * BLOCK < n_keys; block++) {
        const size_t n = sl_min_size(BLOCK, n_keys - block * BLOCK);
        float s[BLOCK], m_b = -INFINITY, lane[16] = {0}, o_b = 0.0f;
        for (size_t j = 0; j < n; j++) {
            s[j] = 0.0f;
            for (size_t i = 0; i < DIM; i++)
                s[j] = fmaf(q[i], stored(type, K[block * BLOCK + j][i]), s[j]);
            s[j] *= 0.0625f;
            m_b = fmaxf(m_b, s[j]);
        }
        for (size_t j = 0; j < n; j++) {
            const float p = sl_expf(s[j] - m_b);
            lane[j % 16] += p;
            o_b = fmaf(p, stored(type, V[block * BLOCK + j][d]), o_b);
        }
        const float l_b = (((lane[0] + lane[8]) + (lane[4] + lane[12])) +
                           ((lane[2] + lane[10]) + (lane[6] + lane[14]))) +
                          (((lane[1] + lane[9]) + (lane[5] + lane[13])) +
                           ((lane[3] + lane[11]) + (lane[7] + lane[15])));
        if (block == 0) {
            m = m_b;
            l = l_b;
            o = o_b;
            continue;
        }
        const float larger = fmaxf(m, m_b), x = sl_expf(m - larger), y = sl_expf(m_b - larger);
        l = fmaf(l, x, l_b * y);
        o = fmaf(o, x, o_b * y);
        m = larger;
    }
    return o / l;
}

/* Every number of keys, both types, against both references; values lie within about 5. */
static void check_all(double tolerance)
{
    static float o[DIM];
    static double exact[DIM];
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache c;
        cache_init(&c, (sl_kv_type)type, 0xFF, MOST_KEYS);
        for (size_t i = 0; i < SL_COUNTOF(key_counts); i++) {
            const size_t n = key_counts[i];
            attend(&c, n, o);
            attend_f64((sl_kv_type)type, n, exact);
            for (size_t d = 0; d < DIM; d++) {
                if (!(fabs((double)o[d] - exact[d]) <= tolerance))
                    fail_msg("%zu keys, type %d, output %zu: %.9g, exactly %.9g", n, type, d,
                             (double)o[d], exact[d]);
            }
            for (size_t d = 0; d < DIM; d += 51)
                assert_true(o[d] == attend_plainly((sl_kv_type)type, n, d));
        }
        cache_free(&c);
    }
}

/* ---- tests ---- */

static void test_ordinary_scores(void **state)
{
    (void)state;
    fill(1, 0.3f, 1.0f); /* flat: every key has a say */
    check_all(1e-6);
    fill(2, 1.0f, 1.0f);
    check_all(4e-6);
    fill(3, 4.0f, 1.0f); /* peaked; a score of 16 is rounded to 1e-6 and more in its sum */
    check_all(2e-5);
}

/* Scores of 1e30 and differences far beyond the range of exp: the largest takes all. */
static void test_huge_scores(void **state)
{
    (void)state;
    fill(4, 1e28f, 100.0f);
    check_all(0.0);
}

static void test_very_negative_scores(void **state)
{
    (void)state;
    fill(5, 1.0f, 1.0f);
    for (size_t d = 0; d < DIM; d++)
        q[d] = -fabsf(q[d]) * 1e28f;
    for (size_t j = 0; j < MOST_KEYS; j++) {
        for (size_t d = 0; d < DIM; d++)
            K[j][d] = fabsf(K[j][d]) + 10.0f;
    }
    check_all(0.0);
}

static void test_equal_scores(void **state)
{
    (void)state;
    fill(6, 0.0f, 1.0f); /* the mean of the values */
    check_all(1e-6);
    fill(7, 1e10f, 1.0f);
    for (size_t j = 1; j < MOST_KEYS; j++)
        memcpy(K[j], K[0], sizeof K[0]);
    check_all(1e-6);
}

static void test_one_key_gives_its_value(void **state)
{
    (void)state;
    float o[DIM];
    fill(8, 3.0f, 3.0f);
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache c;
        cache_init(&c, (sl_kv_type)type, 0xFF, 1);
        attend(&c, 1, o);
        for (size_t d = 0; d < DIM; d++)
            assert_true(o[d] == stored((sl_kv_type)type, V[0][d]));
        cache_free(&c);
    }
}

/* The bits of record: they change only when the canonical arithmetic does. */
static void test_bits_of_record(void **state)
{
    (void)state;
    static float o[DIM];
    static const uint64_t record[] = {
        [SL_KV_F16] = 0x60eb695d499d577b, [SL_KV_F32] = 0x5047964335c7f2a0};
    fill(12, 1.0f, 1.0f);
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache c;
        cache_init(&c, (sl_kv_type)type, 0, MOST_KEYS);
        attend(&c, MOST_KEYS, o);
        assert_int_equal(sl_test_hash(o, sizeof o), record[type]);
        cache_free(&c);
    }
}

/* Slots without a key are not touched, whatever lies in them, and neither are later pages. */
static void test_unwritten_slots_do_not_matter(void **state)
{
    (void)state;
    static float want[DIM], o[DIM];
    fill(9, 1.0f, 1.0f);
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache full;
        cache_init(&full, (sl_kv_type)type, 0, MOST_KEYS);
        for (size_t i = 0; i < SL_COUNTOF(key_counts); i++) {
            const size_t n = key_counts[i];
            attend(&full, n, want); /* with real keys behind the last one */
            cache c;
            cache_init(&c, (sl_kv_type)type, 0xFF, n);
            for (size_t p = (n + PAGE - 1) / PAGE; p < MOST_PAGES; p++) {
                free(c.pages[p]);
                c.pages[p] = NULL;
            }
            attend(&c, n, o);
            assert_memory_equal(o, want, sizeof o);
            cache_free(&c);
        }
        cache_free(&full);
    }
}

static void test_a_broken_key_shows(void **state)
{
    (void)state;
    float o[DIM];
    fill(10, 1.0f, 1.0f);
    K[300][17] = NAN;
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache c;
        cache_init(&c, (sl_kv_type)type, 0, MOST_KEYS);
        attend(&c, 300, o);
        for (size_t d = 0; d < DIM; d++)
            assert_true(isfinite(o[d]));
        attend(&c, 600, o);
        for (size_t d = 0; d < DIM; d++)
            assert_true(isnan(o[d]));
        cache_free(&c);
    }
}

/* Rounding to half and the layout of a page; nothing else is written. */
static void test_store(void **state)
{
    (void)state;
    static uint16_t k_half[DIM * PAGE], v_half[PAGE * DIM];
    static float k_float[DIM * PAGE], v_float[PAGE * DIM];
    fill(11, 1.0f, 1.0f);
    const float edges[] = {1.0f + 0x1p-11f, 1.0f + 0x3p-11f, 65519.9f, 65520.0f,
                           0x1p-25f,        0x1.8p-24f,      -0.0f,    -0x1p-14f};
    memcpy(K[0], edges, sizeof edges);
    memcpy(V[0], edges, sizeof edges);
    const uint16_t halves[] = {0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0x0000, 0x0002, 0x8000, 0x8400};
    const size_t slot = 37;
    memset(k_half, 0x55, sizeof k_half);
    memset(v_half, 0x55, sizeof v_half);
    memset(k_float, 0x55, sizeof k_float);
    memset(v_float, 0x55, sizeof v_float);
    uint32_t untouched = 0x55555555;
    sl_kv_rows rows = {.k = K[0], .v = V[0], .slot = slot, .n = 1};
    rows.type = SL_KV_F16, rows.k_page = k_half, rows.v_page = v_half;
    sl_kv_store_scalar(&rows);
    rows.type = SL_KV_F32, rows.k_page = k_float, rows.v_page = v_float;
    sl_kv_store_scalar(&rows);
    for (size_t d = 0; d < DIM; d++) {
        for (size_t s = 0; s < PAGE; s++) {
            const size_t k_at = d * PAGE + s, v_at = s * DIM + d;
            assert_int_equal(k_half[k_at], s == slot ? sl_f32_to_f16(K[0][d]) : 0x5555);
            assert_int_equal(v_half[v_at], s == slot ? sl_f32_to_f16(V[0][d]) : 0x5555);
            assert_memory_equal(&k_float[k_at], s == slot ? (void *)&K[0][d] : &untouched, 4);
            assert_memory_equal(&v_float[v_at], s == slot ? (void *)&V[0][d] : &untouched, 4);
        }
    }
    for (size_t d = 0; d < SL_COUNTOF(halves); d++)
        assert_int_equal(k_half[d * PAGE + slot], halves[d]);
}

/* ---- every instruction-set level ---- */

enum { MOST_QUERIES = 40, SOME_KEYS = 600, STRIDE = SL_ATTN_STRIDE };

/* Calls test(kernels, name) for every level of this machine, the scalar one too. */
static void for_each_level(void (*test)(const sl_cpu_kernels *k, const char *name))
{
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa))
            continue;
        const sl_cpu_kernels k = sl_cpu_kernels_of((sl_isa)isa);
        test(&k, sl_isa_name((sl_isa)isa));
    }
}

static void fill_hostile(uint64_t seed, sl_test_fill fill_keys, sl_test_fill fill_values)
{
    sl_test_rng rng = sl_test_rng_of(seed);
    sl_fill_floats(&rng, fill_keys, K[0], SL_COUNTOF(K) * DIM);
    sl_fill_floats(&rng, fill_values, V[0], SL_COUNTOF(V) * DIM);
}

/* Queries against one block, with their memory. */
typedef struct job {
    sl_attend block;
    float queries[MOST_QUERIES * STRIDE + 1];
    uint16_t n_keys[MOST_QUERIES];
    _Alignas(64) float scratch[MOST_QUERIES * STRIDE + SL_ATTN_PANEL + 16];
    sl_softmax out[MOST_QUERIES + 1], want[MOST_QUERIES];
} job;

static void compare(const job *j, const char *name)
{
    for (size_t i = 0; i < j->block.n; i++) {
        const sl_softmax *got = &j->out[i], *want = &j->want[i];
        if (!sl_same_float(got->m, want->m) || !sl_same_float(got->l, want->l))
            fail_msg("%s, query %zu of %zu, %d keys: m %a, not %a; l %a, not %a", name, i,
                     j->block.n, j->n_keys[i], (double)got->m, (double)want->m, (double)got->l,
                     (double)want->l);
        for (size_t d = 0; d < DIM; d++) {
            if (!sl_same_float(got->o[d], want->o[d]))
                fail_msg("%s, query %zu of %zu, %d keys, output %zu: %a, not %a", name, i,
                         j->block.n, j->n_keys[i], d, (double)got->o[d], (double)want->o[d]);
        }
    }
}

/* Runs the job at the level and by the scalar kernel. Nothing behind the results or the scratch
 * is written. */
static void check_job(const sl_cpu_kernels *k, const char *name, job *j)
{
    const size_t n_scratch = j->block.n * STRIDE + SL_ATTN_PANEL;
    j->block.n_keys = j->n_keys;
    j->block.scratch = j->scratch;
    memset(j->out, 0x55, sizeof j->out);
    memset(j->scratch, 0xFF, sizeof j->scratch);
    j->scratch[n_scratch] = 1.0f;
    sl_attend_block_scalar(&j->block, j->want);
    k->attend_block(&j->block, j->out);
    compare(j, name);
    assert_true(j->scratch[n_scratch] == 1.0f);
    const unsigned char *behind = (const unsigned char *)&j->out[j->block.n];
    for (size_t i = 0; i < sizeof j->out[0]; i++)
        assert_int_equal(behind[i], 0x55);
}

/* The block that begins at key `first`; NaN lies wherever no key of n_stored is. */
static void point_at(job *j, const cache *c, size_t first, size_t n_stored)
{
    const size_t pages = (n_stored - first + PAGE - 1) / PAGE, own = BLOCK / PAGE;
    j->block = (sl_attend){.type = c->type,
                           .pages = c->pages + first / PAGE,
                           .k_offset = c->k_offset,
                           .v_offset = c->v_offset,
                           .n_more = pages > own ? sl_min_size(pages - own, own) : 0};
}

static void one_query_of_every_length(const sl_cpu_kernels *k, const char *name)
{
    static job j;
    fill(20, 1.0f, 1.0f);
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache c;
        cache_init(&c, (sl_kv_type)type, 0xFF, 0);
        for (uint16_t n = 1; n <= BLOCK; n++) {
            cache_add(&c, n - 1u);
            point_at(&j, &c, 0, n);
            memcpy(j.queries, q, sizeof q);
            j.block.n = 1;
            j.block.q = j.queries;
            j.n_keys[0] = n;
            check_job(k, name, &j);
        }
        cache_free(&c);
    }
}

/* Several queries, each with keys of its own number, ascending as in a prompt or anyhow, from a
 * misaligned place. The last key that is stored is the last that any of them sees. */
static void many_queries(const sl_cpu_kernels *k, const char *name)
{
    static job j;
    sl_test_rng rng = sl_test_rng_of(21);
    for (size_t round = 0; round < 160; round++) {
        const size_t n = 1 + (round < MOST_QUERIES ? round : sl_test_rng_below(&rng, MOST_QUERIES));
        const bool prompt = round % 3 != 0;
        const size_t shift = round % 2, first = round % 4 == 3 ? BLOCK : 0;
        uint16_t at = (uint16_t)(1 + sl_test_rng_below(&rng, (uint32_t)(BLOCK - n / 4))), most = 0;
        if (round % 5 == 4)
            at = (uint16_t)(BLOCK - n / 4);
        for (size_t i = 0; i < n; i++) {
            j.n_keys[i] = (uint16_t)(prompt ? at + i / 4 : 1 + sl_test_rng_below(&rng, BLOCK));
            most = j.n_keys[i] > most ? j.n_keys[i] : most;
        }
        fill(100 + round, 1.0f, 1.0f);
        if (round % 4 == 1)
            fill_hostile(round, (sl_test_fill)(round / 4 % SL_FILL_COUNT),
                         (sl_test_fill)(round / 5 % SL_FILL_COUNT));
        for (size_t i = 0; i < n * STRIDE; i++)
            j.queries[shift + i] = 0.7f * sl_test_rng_normal(&rng);
        for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
            cache c;
            cache_init(&c, (sl_kv_type)type, 0xFF, first + most);
            point_at(&j, &c, first, first + most);
            j.block.n = n;
            j.block.q = j.queries + shift;
            check_job(k, name, &j);
            cache_free(&c);
        }
    }
}

/* Blocks in any order, merged in their own: the attention of record, whoever computed which. */
static void blocks_and_merges(const sl_cpu_kernels *k, const char *name)
{
    static float want[2][SOME_KEYS + 1][DIM], got[DIM], open[DIM];
    static bool wanted;
    static sl_softmax part[MOST_KEYS / BLOCK + 1];
    static job j;
    fill(22, 1.5f, 1.0f);
    for (size_t d = 0; d < DIM; d++)
        open[d] = 200.0f; /* a sigmoid of exactly 1 */
    for (int type = SL_KV_F16; type <= SL_KV_F32; type++) {
        cache c;
        cache_init(&c, (sl_kv_type)type, 0xFF, MOST_KEYS);
        for (size_t n_keys = 1; n_keys <= SOME_KEYS; n_keys++) {
            const size_t n_blocks = (n_keys + BLOCK - 1) / BLOCK;
            for (size_t i = 0; i < n_blocks; i++) {
                const size_t b = (i + n_keys) % n_blocks;
                point_at(&j, &c, b * BLOCK, n_keys);
                j.n_keys[0] = (uint16_t)sl_min_size(n_keys - b * BLOCK, BLOCK);
                j.block.n = 1;
                j.block.q = q;
                j.block.n_keys = j.n_keys;
                j.block.scratch = j.scratch;
                k->attend_block(&j.block, &part[b]);
            }
            for (size_t b = 1; b < n_blocks; b++)
                k->softmax_merge(&part[0], &part[b]);
            k->softmax_finish(&part[0], open, got);
            if (!wanted)
                attend(&c, n_keys, want[type][n_keys]);
            for (size_t d = 0; d < DIM; d++) {
                if (!sl_same_float(got[d], want[type][n_keys][d]))
                    fail_msg("%s, %zu keys, output %zu: %a, not %a", name, n_keys, d,
                             (double)got[d], (double)want[type][n_keys][d]);
            }
        }
        cache_free(&c);
    }
    wanted = true;
}

static void hostile_merges(const sl_cpu_kernels *k, const char *name)
{
    static sl_softmax a, b, want;
    static float gate[DIM], o[DIM], want_o[DIM];
    sl_test_rng rng = sl_test_rng_of(23);
    const float scales[] = {0.0f, -0.0f, 1.0f, -90.0f, 1e30f, -1e38f, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < SL_COUNTOF(scales) * SL_COUNTOF(scales) * SL_FILL_COUNT; i++) {
        const sl_test_fill how = (sl_test_fill)(i % SL_FILL_COUNT);
        sl_fill_floats(&rng, how, a.o, DIM);
        sl_fill_floats(&rng, (sl_test_fill)(i / 3 % SL_FILL_COUNT), b.o, DIM);
        sl_fill_floats(&rng, (sl_test_fill)(i / 5 % SL_FILL_COUNT), gate, DIM);
        a.m = scales[i / SL_FILL_COUNT % SL_COUNTOF(scales)];
        b.m = scales[i / SL_FILL_COUNT / SL_COUNTOF(scales)];
        a.l = 1.5f, b.l = i % 7 == 0 ? NAN : 2.5f;
        want = a;
        sl_softmax_merge_scalar(&want, &b);
        k->softmax_merge(&a, &b);
        assert_true(sl_same_float(a.m, want.m) && sl_same_float(a.l, want.l));
        assert_same_floats(a.o, want.o, DIM);
        sl_softmax_finish_scalar(&a, gate, want_o);
        k->softmax_finish(&a, gate, o);
        assert_same_floats(o, want_o, DIM);
    }
    (void)name;
}

/* Runs of positions, also from rows that lie apart, at every place of a page. */
static void stores(const sl_cpu_kernels *k, const char *name)
{
    enum { APART = 2 * DIM + 3, ELEMENTS = PAGE * DIM };
    static float keys[PAGE * APART], values[PAGE * APART];
    static float want[2][ELEMENTS], got[2][ELEMENTS];
    sl_test_rng rng = sl_test_rng_of(24);
    for (size_t round = 0; round < 200; round++) {
        const size_t slot = sl_test_rng_below(&rng, PAGE);
        const size_t n =
            round < 8 ? PAGE - slot : 1 + sl_test_rng_below(&rng, (uint32_t)(PAGE - slot));
        sl_fill_floats(&rng, (sl_test_fill)(round % SL_FILL_COUNT), keys, SL_COUNTOF(keys));
        sl_fill_floats(&rng, (sl_test_fill)(round / 2 % SL_FILL_COUNT), values, SL_COUNTOF(values));
        sl_kv_rows rows = {.type = round % 3 == 0 ? SL_KV_F32 : SL_KV_F16,
                           .k = keys + round % 5,
                           .v = values + round % 3,
                           .k_stride = round % 2 ? APART - 5 : DIM,
                           .v_stride = round % 4 ? APART - 5 : DIM,
                           .slot = slot,
                           .n = n};
        memset(want, 0x55, sizeof want);
        memset(got, 0x55, sizeof got);
        rows.k_page = want[0], rows.v_page = want[1];
        sl_kv_store_scalar(&rows);
        rows.k_page = got[0], rows.v_page = got[1];
        k->kv_store(&rows);
        for (size_t i = 0; i < 2 * ELEMENTS; i++) {
            const uint16_t *w = (const uint16_t *)want[0], *g = (const uint16_t *)got[0];
            const bool nan = (w[i] & 0x7FFF) > 0x7C00 && (g[i] & 0x7FFF) > 0x7C00;
            if (w[i] != g[i] && !(nan && rows.type == SL_KV_F16))
                fail_msg("%s, %zu positions from slot %zu: element %zu is %x, not %x", name, n,
                         slot, i, g[i], w[i]);
        }
    }
}

static void test_levels_one_query(void **state)
{
    (void)state;
    for_each_level(one_query_of_every_length);
}

static void test_levels_many_queries(void **state)
{
    (void)state;
    for_each_level(many_queries);
}

static void test_levels_blocks_and_merges(void **state)
{
    (void)state;
    for_each_level(blocks_and_merges);
}

static void test_levels_hostile_merges(void **state)
{
    (void)state;
    for_each_level(hostile_merges);
}

static void test_levels_stores(void **state)
{
    (void)state;
    for_each_level(stores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordinary_scores),
        cmocka_unit_test(test_huge_scores),
        cmocka_unit_test(test_very_negative_scores),
        cmocka_unit_test(test_equal_scores),
        cmocka_unit_test(test_one_key_gives_its_value),
        cmocka_unit_test(test_bits_of_record),
        cmocka_unit_test(test_unwritten_slots_do_not_matter),
        cmocka_unit_test(test_a_broken_key_shows),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_levels_one_query),
        cmocka_unit_test(test_levels_many_queries),
        cmocka_unit_test(test_levels_blocks_and_merges),
        cmocka_unit_test(test_levels_hostile_merges),
        cmocka_unit_test(test_levels_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
