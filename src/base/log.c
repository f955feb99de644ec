#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static sl_log_callback log_callback;
static void *log_context;
static sl_log_level log_most_verbose;

void sl_log_set_callback(sl_log_callback callback, void *context, sl_log_level most_verbose)
{
    log_callback = callback;
    log_context = context;
    log_most_verbose = most_verbose;
}

void sl_log(sl_log_level level, const char *format, ...)
{
    if (!log_callback || level > log_most_verbose)
        return;
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    log_callback(log_context, level, message);
}
