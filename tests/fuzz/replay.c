/* Runs a fuzz target over its part of tests/fuzz/corpus: one program per target, built without a
 * fuzzer, so that what was found once stays found in every `make test`. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "support.h"
#include "text_data.h"

static char name[64]; /* of the target */

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void test_corpus(void **state)
{
    (void)state;
    char folder[128];
    struct dirent **entries;
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
    const int n = scandir(folder, &entries, is_visible, alphasort);
    if (n < 1)
        fail_msg("%s holds no inputs", folder);
    for (int i = 0; i < n; i++) {
        char path[512];
        size_t n_bytes;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        free(entries[i]);
        char *data = sl_test_read_file(path, &n_bytes);
        print_message("%s\n", path);
        fflush(stdout); /* a target that ends the program leaves the name of its input */
        assert_int_equal(LLVMFuzzerTestOneInput((const uint8_t *)data, n_bytes), 0);
        free(data);
    }
    free(entries);
    print_message("%d inputs\n", n);
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *base = strrchr(argv[0], '/');
    base = base ? base + 1 : argv[0];
    snprintf(name, sizeof name, "%s", strncmp(base, "fuzz_", 5) == 0 ? base + 5 : base);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_corpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
