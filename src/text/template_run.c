/* The limits of a render and the errors it reports. */
#include "text/template_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sl_status sl_tmpl_fail(tmpl_run *run, sl_status status, const char *format, ...)
{
    char text[SL_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sl_fail(run->err, status, "%s: line %u: %s", run->compiled->name, (unsigned)run->line,
                   text);
}

sl_status sl_tmpl_spend(tmpl_run *run, size_t steps)
{
    if (steps > SL_TEMPLATE_MAX_STEPS - run->steps)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "more than %d steps", SL_TEMPLATE_MAX_STEPS);
    run->steps += steps;
    return SL_OK;
}

sl_status sl_tmpl_enter(tmpl_run *run)
{
    if (run->depth == SL_TEMPLATE_MAX_DEPTH)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "nested deeper than %d levels",
                            SL_TEMPLATE_MAX_DEPTH);
    run->depth++;
    return SL_OK;
}

sl_status sl_tmpl_new(tmpl_run *run, size_t count, size_t size, void *out)
{
    void *p = sl_tmpl_arena_array(&run->arena, count, size);
    if (!p && run->arena.over_budget)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "more than %d bytes of values",
                            SL_TEMPLATE_MAX_MEMORY);
    if (!p)
        return sl_tmpl_fail(run, SL_ERR_MEMORY, "out of memory");
    memcpy(out, &p, sizeof p);
    return SL_OK;
}
