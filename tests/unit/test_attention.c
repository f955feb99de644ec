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
    for (size_t j = 0; j < n_keys; j++) {
        char *page = c->pages[j / PAGE];
        sl_kv_store_scalar(type, K[j], V[j], j % PAGE, page + c->k_offset, page + c->v_offset);
    }
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
    sl_kv_store_scalar(SL_KV_F16, K[0], V[0], slot, k_half, v_half);
    sl_kv_store_scalar(SL_KV_F32, K[0], V[0], slot, k_float, v_float);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
