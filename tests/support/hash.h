/* A short name for many bits, so that a test can hold results to what they were: the canonical
 * arithmetic gives the same bits with every compiler and processor. */
#ifndef SL_TESTS_HASH_H
#define SL_TESTS_HASH_H

#include "support.h"

/* FNV-1a with 64 bits. */
uint64_t sl_test_hash(const void *bytes, size_t n);

#endif
