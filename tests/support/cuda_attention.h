/* One layer of attention on a CUDA device by itself, for its tests and its bench: sequences of
 * random rows whose keys and values lie in pages as those of an engine do. Only where SL_CUDA is
 * defined. */
#ifndef SL_TESTS_CUDA_ATTENTION_H
#define SL_TESTS_CUDA_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/kernels/launch.h"

typedef struct sl_attention_shape {
    uint32_t n_heads, n_kv_heads, n_pairs;
    uint32_t n_sequences, n_positions;
    uint32_t n_layers; /* whose pages there are; a layer is chosen for each run */
    bool kv_f32;
    bool is_older;      /* kernels go the way of devices before Hopper */
    uint32_t most_rows; /* of a run */
} sl_attention_shape;

/* Rows of one sequence in a run. */
typedef struct sl_attention_piece {
    uint32_t sequence, pos, n_rows;
} sl_attention_piece;

typedef struct sl_attention_rig sl_attention_rig;

/* NULL where there is no device or no memory for it. Pages are filled with NaN. */
sl_attention_rig *sl_attention_rig_create(const sl_attention_shape *shape, uint32_t seed);
void sl_attention_rig_free(sl_attention_rig *rig);

/* Pages of every layer get random halves, as if all positions had been there before. */
void sl_attention_rig_fill(sl_attention_rig *rig);

/* Inputs of the rows of a run, and what describes them; then the layer may run any number of times.
 * Pieces of one run belong to different sequences. */
void sl_attention_rig_set(sl_attention_rig *rig, const sl_attention_piece *pieces, uint32_t n);
void sl_attention_rig_launch(sl_attention_rig *rig, uint32_t layer, const sl_cu_queue *queue);

/* set and launch in layer 0, and wait. Results of row i: y + i * n_heads * 256, and codes in the
 * same places; both on the host, valid until the next run. False when the device reports an error.
 */
bool sl_attention_rig_run(sl_attention_rig *rig, const sl_attention_piece *pieces, uint32_t n,
                          const float **y, const int8_t **codes);

/* Every row of every sequence in n_rounds schedules, the first token by token, the others in random
 * pieces side by side, against whole sequences at once: how many rows differ in any bit of their
 * results or codes, SIZE_MAX on an error. most_rows must be at least n_positions. */
size_t sl_attention_rig_schedules(sl_attention_rig *rig, uint32_t n_rounds, size_t *n_rows);

/* The last rows of sequence 0, in pieces of these sizes after one another, against the whole
 * sequence at once: how many differ, SIZE_MAX on an error. */
size_t sl_attention_rig_last(sl_attention_rig *rig, const uint32_t *sizes, uint32_t n,
                             size_t *n_rows);

/* Result of one row and query head in double, from layer 0's keys and values as they are stored;
 * the query's norm and rope in float as the kernels have it. */
void sl_attention_rig_reference(sl_attention_rig *rig, uint32_t sequence, uint32_t pos,
                                uint32_t head, double out[256]);

/* Microseconds of a layer, layers in turn in a captured graph. */
double sl_attention_rig_time(sl_attention_rig *rig, uint32_t n_launches, uint32_t n_replays);

#endif
