/* The settings of the sampler: a plain value. What each of them does, and in which order, is said
 * in engine/sampler.h. */
#ifndef SL_ENGINE_SAMPLING_H
#define SL_ENGINE_SAMPLING_H

#include "base/err.h"
#include "model/config.h"

enum {
    SL_MAX_LOGIT_BIAS = 1024,
    SL_DRY_MAX_WINDOW = 65536 /* tokens that loop breaking looks back */
};

typedef struct sl_logit_bias {
    int32_t id;
    float bias; /* finite */
} sl_logit_bias;

/* Members left 0 are off, apart from top_p, for which 1 is off. */
typedef struct sl_sampling {
    float temperature; /* 0 = greedy; the filters and the seed then have no effect */
    uint32_t top_k;    /* 0 = off */
    float top_p;       /* 0 to 1, 1 = off */
    float min_p;       /* 0 to 1, 0 = off */
    uint64_t seed;
    float typical_p;             /* 0 to 1, 0 and 1 = off */
    float presence_penalty;      /* -100 to 100, 0 = off */
    float frequency_penalty;     /* -100 to 100, 0 = off */
    float repetition_penalty;    /* 0 to 100, 0 and 1 = off */
    uint32_t penalty_window;     /* the three penalties see the last n tokens, 0 = all */
    float dry_multiplier;        /* 0 to 100, 0 = no loop breaking */
    float dry_base;              /* 1 to 100; 0 = 1.75 */
    uint32_t dry_allowed_length; /* 0 = 2 */
    uint32_t dry_window;         /* up to SL_DRY_MAX_WINDOW, 0 = that many */
    const sl_logit_bias *bias;   /* [n_bias], borrowed as long as the settings are in use */
    size_t n_bias;               /* up to SL_MAX_LOGIT_BIAS */
} sl_sampling;

/* Greedy, everything else off, seed 0. */
sl_sampling sl_sampling_default(void);

/* What the file recommends, and `otherwise` where it says nothing. */
sl_sampling sl_sampling_from_config(const sl_sampling_defaults *file, const sl_sampling *otherwise);

/* SL_ERR_ARGUMENT naming the setting that is NaN, infinite or out of its range, with the range. */
sl_status sl_sampling_check(const sl_sampling *sampling, sl_error *err);

#endif
