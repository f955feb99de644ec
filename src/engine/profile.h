/* What evaluations took, op by op: records that the backend adds to, and the runs they come from,
 * whose costs are worked out when somebody asks. */
#ifndef SL_ENGINE_PROFILE_H
#define SL_ENGINE_PROFILE_H

#include "plan/plan.h"

typedef struct sl_profile sl_profile;

sl_status sl_profile_create(const sl_plan *plan, sl_profile **out, sl_error *err);
void sl_profile_free(sl_profile *profile);

/* For sl_run.records, while recording; NULL else and when profile is NULL. */
sl_op_record *sl_profile_records(sl_profile *profile);

/* Remembers a run that went through. When there is no memory for it, reading the profile fails. */
void sl_profile_note(sl_profile *profile, const sl_run *run);

#endif
