/* Where the settings of the sampler come from. What each of them does, and in which order, is said
 * in engine/sampler.h. */
#ifndef SL_ENGINE_SAMPLING_H
#define SL_ENGINE_SAMPLING_H

#include "base/err.h"
#include "model/config.h"

/* What the makers of the models recommend for all of them. */
sl_sampling sl_sampling_of_family(void);

/* What the file recommends, and `otherwise` where it says nothing. */
sl_sampling sl_sampling_from_config(const sl_sampling_defaults *file, const sl_sampling *otherwise);

#endif
