/* The only allocator of the library: every block carries a purpose, totals are kept per purpose,
 * blocks are aligned for the widest vector registers, and a test can make the n-th request fail.
 *
 * Third-party libraries (jansson, utf8proc) allocate for themselves; their allocators are
 * process-wide settings of the host program, which a library must not change. */
#ifndef SL_BASE_MEM_H
#define SL_BASE_MEM_H

#include "base/base.h"
#include "sluice.h"

enum { SL_MEM_ALIGN = 64 };

/* n bytes aligned to SL_MEM_ALIGN, or NULL. n = 0 gives a valid unique pointer.
 * sl_alloc leaves the bytes uninitialised, sl_alloc_zero clears them. */
void *sl_alloc(sl_mem_tag tag, size_t n);
void *sl_alloc_zero(sl_mem_tag tag, size_t n);

/* count * size bytes, cleared; NULL also when the product overflows. */
void *sl_alloc_array(sl_mem_tag tag, size_t count, size_t size);

/* Grows or shrinks a block to n bytes, keeping its tag (or using tag when p is NULL). On failure
 * returns NULL and p stays valid. */
void *sl_realloc(sl_mem_tag tag, void *p, size_t n);

/* Large memory that is read from end to end again and again: whole pages, in huge ones where the
 * system has them, zero until written. What belongs together is best asked for at once: blocks
 * share no huge page. NULL when there is none. Given back by sl_pages_free with
 * the same tag and size. */
void *sl_pages_alloc(sl_mem_tag tag, size_t n);
void sl_pages_free(sl_mem_tag tag, void *p, size_t n);

/* The block p of n bytes is large and read again and again: huge pages, where the system has them,
 * save walks through its page tables. Best called before its first use. */
void sl_mem_prefer_huge(void *p, size_t n);

/* The bytes p[0..n) inside of a block are not needed any more: gives the whole pages among them
 * back to the system. What they read as afterwards is undefined; the block is freed as ever. */
void sl_mem_discard(void *p, size_t n);

/* A NUL-terminated copy of s[0..n), or NULL. */
char *sl_strndup(sl_mem_tag tag, const char *s, size_t n);

/* Test hook: the n-th request from now fails (1 = the next one), and every later one too when
 * forever is set. n = 0 switches the hook off. */
void sl_mem_fail_at(uint64_t n, bool forever);

#endif
