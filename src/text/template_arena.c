#include "text/template_arena.h"

#include <string.h>

enum { FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20, ALIGN = 16 };

struct tmpl_block {
    tmpl_block *next;
    size_t n_bytes;
};

_Static_assert(sizeof(struct tmpl_block) % ALIGN == 0, "what follows a block's head is aligned");

void sl_tmpl_arena_init(tmpl_arena *arena, size_t budget)
{
    *arena = (tmpl_arena){.block_size = FIRST_BLOCK, .budget = budget};
}

void sl_tmpl_arena_free(tmpl_arena *arena)
{
    while (arena->blocks) {
        tmpl_block *next = arena->blocks->next;
        sl_free(arena->blocks);
        arena->blocks = next;
    }
    arena->at = arena->end = NULL;
}

/* A fresh block with room for n bytes; what is left of the old one is given up. */
static bool grow(tmpl_arena *arena, size_t n)
{
    size_t room = sl_max_size(n, arena->block_size);
    if (room > arena->budget)
        room = n;
    size_t total;
    arena->over_budget = n > arena->budget || !sl_size_add(room, sizeof(tmpl_block), &total);
    if (arena->over_budget)
        return false;
    tmpl_block *block = sl_alloc(SL_MEM_TEXT, total);
    if (!block)
        return false;
    *block = (tmpl_block){arena->blocks, room};
    arena->budget -= room;
    arena->blocks = block;
    arena->at = (char *)block + sizeof *block;
    arena->end = arena->at + room;
    arena->block_size = sl_min_size(LARGEST_BLOCK, arena->block_size * 2);
    return true;
}

void *sl_tmpl_arena_take(tmpl_arena *arena, size_t n)
{
    if (!sl_size_align(n, ALIGN, &n)) {
        arena->over_budget = true;
        return NULL;
    }
    if ((!arena->at || n > (size_t)(arena->end - arena->at)) && !grow(arena, n))
        return NULL;
    void *p = arena->at;
    arena->at += n;
    return p;
}

void *sl_tmpl_arena_array(tmpl_arena *arena, size_t count, size_t size)
{
    size_t n;
    if (!sl_size_mul(count, size, &n)) {
        arena->over_budget = true;
        return NULL;
    }
    return sl_tmpl_arena_take(arena, n);
}
