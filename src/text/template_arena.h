/* Memory that is released all at once: a compiled template and everything a render makes. */
#ifndef SL_TEXT_TEMPLATE_ARENA_H
#define SL_TEXT_TEMPLATE_ARENA_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

typedef struct tmpl_block tmpl_block;

typedef struct tmpl_arena {
    tmpl_block *blocks;
    char *at, *end;    /* free bytes of the newest block */
    size_t block_size; /* of the next block */
    size_t budget;     /* bytes that may still be taken from the system */
    bool over_budget;  /* why the last request failed: the budget, or the system */
} tmpl_arena;

void sl_tmpl_arena_init(tmpl_arena *arena, size_t budget);
void sl_tmpl_arena_free(tmpl_arena *arena);

/* n bytes aligned for any value, uninitialised, or NULL. */
void *sl_tmpl_arena_take(tmpl_arena *arena, size_t n);

/* count * size bytes, or NULL also when the product overflows. */
void *sl_tmpl_arena_array(tmpl_arena *arena, size_t count, size_t size);

#endif
