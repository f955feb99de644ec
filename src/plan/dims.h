/* Sizes that the architecture or the arithmetic fixes, for all who lay out values, states and
 * weights: plans, the engine, and the kernels, which know nothing else of a plan. A model with
 * other ones is refused when its configuration is read. */
#ifndef SL_PLAN_DIMS_H
#define SL_PLAN_DIMS_H

enum {
    SL_GDN_DIM = 128,         /* key and value size of a gated delta head */
    SL_CONV_TAPS = 4,         /* of the convolution before it; the last is the current token's */
    SL_CONV_HISTORY = 3,      /* raw rows before the current one that the taps reach */
    SL_ATTN_DIM = 256,        /* head size of attention */
    SL_KV_PAGE = 64,          /* positions of a KV page */
    SL_Q8_BLOCK = 32,         /* activations that share a scale */
    SL_SHORTLIST_TOKENS = 128 /* likeliest tokens that a device gives instead of a row of logits */
};

/* Tokens between two absolute borders of the gated delta rule. */
#ifndef SL_GDN_CHUNK
#define SL_GDN_CHUNK 32
#endif

enum {
    SL_TAPE_PAGE = 16, /* tape rows of a page */
    SL_TAPE_CHUNK_PAGES = SL_GDN_CHUNK / SL_TAPE_PAGE
};

_Static_assert(SL_CONV_HISTORY == SL_CONV_TAPS - 1, "one tap is the current row's");
_Static_assert(SL_GDN_CHUNK == 16 || SL_GDN_CHUNK == 32 || SL_GDN_CHUNK == 64,
               "SL_GDN_CHUNK must be 16, 32 or 64");

#endif
