/* The two halves of the table of filters. */
#ifndef SL_TEXT_TEMPLATE_FILTERS_H
#define SL_TEXT_TEMPLATE_FILTERS_H

#include "text/template_run.h"

const tmpl_callable *sl_tmpl_find_seq_filter(sl_str name);

#endif
