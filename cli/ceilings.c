#include "ceilings.h"

#include <string.h>

/* Smaller buffers lie in the last cache of many processors. */
enum { MIB = 1 << 20, SMALL_BUFFER = 256 * MIB };

double sl_ceilings_read_gbs(const sl_ceilings *ceilings)
{
    return ceilings->read_gbs > ceilings->read_gbs_1 ? ceilings->read_gbs : ceilings->read_gbs_1;
}

static bool has_tiles(const sl_ceilings *ceilings, const char *isa)
{
    return strcmp(isa, "amx") == 0 && ceilings->amx_tops > ceilings->int8_tops;
}

double sl_ceilings_int8_tops(const sl_ceilings *ceilings, const char *isa)
{
    return has_tiles(ceilings, isa) ? ceilings->amx_tops : ceilings->int8_tops;
}

sl_status sl_ceilings_append(const sl_ceilings *ceilings, const char *isa, sl_buf *out,
                             sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err, "%.1f GB/s read", ceilings->read_gbs));
    if (ceilings->n_threads != 1)
        SL_TRY(sl_buf_printf(out, err, " (one thread %.1f)", ceilings->read_gbs_1));
    if (has_tiles(ceilings, isa))
        SL_TRY(sl_buf_printf(out, err, ", %.3f int8 TOPS (tiles)", ceilings->amx_tops));
    else
        SL_TRY(sl_buf_printf(out, err, ", %.3f int8 TOPS (%s)", ceilings->int8_tops,
                             ceilings->int8_loop));
    SL_TRY(
        sl_buf_printf(out, err, ", %.3f TFLOP/s (%s)", ceilings->f32_tflops, ceilings->f32_loop));
    if (*isa == '\0' && ceilings->amx_tops > 0)
        SL_TRY(sl_buf_printf(out, err, ", %.3f int8 TOPS on tiles", ceilings->amx_tops));
    if (ceilings->read_bytes >= SMALL_BUFFER)
        return SL_OK;
    return sl_buf_printf(out, err, "; for want of memory only %zu MiB were read, caches take part",
                         ceilings->read_bytes / MIB);
}

void sl_json_ceilings(sl_json_out *json, const char *key, const sl_ceilings *ceilings)
{
    if (!ceilings) {
        sl_json_null(json, key);
        return;
    }
    sl_json_open(json, key, '{');
    sl_json_uint(json, "threads", ceilings->n_threads);
    sl_json_double(json, "read_gb_per_s", ceilings->read_gbs);
    sl_json_double(json, "read_gb_per_s_one_thread", ceilings->read_gbs_1);
    sl_json_uint(json, "read_bytes", ceilings->read_bytes);
    sl_json_double(json, "int8_tops", ceilings->int8_tops);
    sl_json_string(json, "int8_loop", ceilings->int8_loop);
    sl_json_double(json, "f32_tflops", ceilings->f32_tflops);
    sl_json_string(json, "f32_loop", ceilings->f32_loop);
    sl_json_double(json, "amx_tops", ceilings->amx_tops);
    sl_json_close(json, '}');
}
