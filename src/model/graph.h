/* The forward pass, recorded as a plan. */
#ifndef SL_MODEL_GRAPH_H
#define SL_MODEL_GRAPH_H

#include "model/model.h"
#include "plan/plan.h"

/* Records the main model: tokens to logits. Attention layers use the KV layers 0 .. n - 1 of the
 * state in order, gated delta layers likewise. Failures surface in sl_plan_finish. */
void sl_graph_record(const sl_model *model, sl_plan *plan);

/* Records the draft head (multi-token prediction): the token after a position and the hidden state
 * at it, to the logits of the position after next. Its KV layer follows those of the main model. */
void sl_graph_record_mtp(const sl_model *model, sl_plan *plan);

#endif
