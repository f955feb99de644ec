/* Checkpoints: states kept at chosen positions, so that a sequence can go back, or a new one begin,
 * where an old one was. All checkpoints of an engine live under one byte budget.
 *
 * A checkpoint may lie at any position. It refers to the blocks of the state it was taken from (the
 * border of its chunk, the tape up to it, the KV pages and the token ids in them), and owns three
 * rows a layer for the convolution. A block that several checkpoints share counts once. The budget
 * is never exceeded: others go before a new one is counted.
 *
 * When the budget is full the least useful one goes: the one whose loss costs the fewest tokens of
 * recomputation, the more so the further it lies behind the newest checkpoint of its line and the
 * longer that line has not been used. Distances between survivors so grow geometrically towards the
 * past.
 *
 * Creating a state puts the memory of the regular checkpoints that it will bring, as many as fit
 * the budget, into the pools, so that evaluating it takes none from the system. Beyond that are
 * checkpoints the caller asks for, until the budget is full; the first writes of a fork; and the
 * rewriting, after a rewind or a restore, of pages that checkpoints or forks still hold. */
#ifndef SL_ENGINE_CHECKPOINT_H
#define SL_ENGINE_CHECKPOINT_H

#include "engine/engine_internal.h"

/* What goes on from a checkpoint. One without successors is the tip of its line. */
typedef struct sl_checkpoint_line {
    uint32_t next; /* length of the nearest successor, UINT32_MAX = none */
    uint32_t tip;  /* of the furthest */
    uint64_t last_used;
} sl_checkpoint_line;

struct sl_checkpoint {
    uint32_t length, mtp_length;
    sl_chunk chunk; /* border only when length >= SL_GDN_CHUNK; tape pages that have rows */
    sl_block *conv; /* the last raw rows of every layer: [n_gdn][SL_CONV_HISTORY][channels] */
    size_t n_kv_pages, kv_capacity;
    sl_block **kv; /* with the token ids */
    sl_anchor anchor;
    uint64_t last_used;
    sl_checkpoint *parent;   /* the longest other checkpoint whose tokens begin this one's */
    sl_checkpoint *next;     /* in the store's list */
    sl_checkpoint_line line; /* valid during an eviction */
};

void sl_store_init(sl_checkpoint_store *store, size_t budget, uint32_t spacing);
void sl_store_free(sl_checkpoint_store *store);

/* Makes the memory of the checkpoints that the engine's demand asks for, in records of n_kv_pages.
 * What cannot be had is left for later. */
void sl_store_reserve(sl_engine *engine, size_t n_kv_pages);

/* The longest checkpoint of at most max_length tokens that begins tokens[0..n), or NULL. */
sl_checkpoint *sl_store_find(const sl_checkpoint_store *store, const int32_t *tokens, size_t n,
                             size_t max_length);

/* Puts the state's present position into the store (or marks the one that is already there as
 * used), evicting others when needed. A checkpoint that alone exceeds the budget is not kept, which
 * is no error and costs no other. Errors: SL_ERR_MEMORY; others may have gone in vain then. */
sl_status sl_store_add(sl_checkpoint_store *store, const sl_state *state, sl_anchor anchor,
                       sl_error *err);

/* Makes the state what it was at the checkpoint. On failure (SL_ERR_MEMORY) it stays as it is. */
sl_status sl_store_restore(sl_checkpoint_store *store, sl_checkpoint *checkpoint, sl_state *state,
                           sl_error *err);

#endif
