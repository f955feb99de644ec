#include "hash.h"

uint64_t sl_test_hash(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ b[i]) * 0x100000001B3u;
    return hash;
}
