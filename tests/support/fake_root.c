#include "fake_root.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shell.h"

const char *sl_fake_root_create(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s", sl_build_path("fake-root-XXXXXX"));
    assert_non_null(mkdtemp(path));
    return path;
}

void sl_fake_root_remove(const char *root)
{
    free(sl_shell_ok("rm -r '%s'", root));
}

void sl_fake_root_file(const char *root, const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}
