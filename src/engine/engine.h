/* What the rest of the tree may ask an engine beside the functions of sluice.h. */
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include "engine/text.h"
#include "model/model.h"
#include "plan/plan.h"

const sl_weights *sl_engine_weights(const sl_engine *engine);
const sl_config *sl_engine_config(const sl_engine *engine);
const sl_engine_params *sl_engine_get_params(const sl_engine *engine); /* threads resolved */
bool sl_engine_has_mtp(const sl_engine *engine);

sl_status sl_memory_plan_compute(const sl_weights *weights, const sl_config *config,
                                 const sl_engine_params *params, uint32_t context,
                                 sl_memory_plan *out, sl_error *err);

/* The main plan of a model of which only the headers are there, for its costs; the matrices that it
 * names have sizes and no bytes. Release the plan first, then the model. */
sl_status sl_plan_measure(const sl_weights *weights, const sl_config *config,
                          const sl_engine_params *params, sl_model **model, sl_plan **plan,
                          sl_error *err);

/* Whether weights, scratch and the fixed part of one sequence fit into `left` bytes of a device;
 * the sentence of SL_ERR_MEMORY has the figures. */
sl_status sl_memory_plan_fits_device(const sl_memory_plan *plan, const char *path,
                                     const char *device, size_t left, sl_error *err);

#endif
