/* What others build against: the header alone, the exported symbols, an installation, the examples.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_build.h"
#include "models.h"
#include "shell.h"

static const char *compiler(void)
{
    const char *cc = getenv("CC");
    return cc ? cc : "cc";
}

static void test_header_alone(void **state)
{
    (void)state;
    static const char *const languages[] = {"c -std=c99", "c -std=c17", "c++ -std=c++11",
                                            "c++ -std=c++20"};
    static const char *const parts[] = {"", "-DSL_EXPERIMENTAL"};
    const bool has_cxx = sl_shell(NULL, "echo | %s -x c++ -fsyntax-only -", compiler()) == 0;
    for (size_t i = 0; i < SL_COUNTOF(languages); i++) {
        if (strstr(languages[i], "++") && !has_cxx) {
            sl_print_skip("%s has no C++ compiler beside it", compiler());
            continue;
        }
        for (size_t p = 0; p < SL_COUNTOF(parts); p++)
            free(sl_shell_ok("printf '#include <sluice.h>\\n#include <sluice.h>\\n' | "
                             "%s -x %s -pedantic -Wall -Wextra -Wshadow -Werror %s -Iinclude "
                             "-fsyntax-only -",
                             compiler(), languages[i], parts[p]));
    }
}

static void test_exports(void **state)
{
    (void)state;
    free(sl_shell_ok("python3 tools/exports.py --self-test"));
    free(sl_shell_ok("python3 tools/exports.py include/sluice.h --check %s",
                     sl_build_path("libsluice.so")));
    /* The number in the name that programs are linked to. */
    char *dynamic = sl_shell_ok("readelf -d %s", sl_build_path("libsluice.so"));
    assert_non_null(strstr(dynamic, "soname: [libsluice.so.0]"));
    free(dynamic);
    /* A library that exports more, or less, is found out. */
    const char *folder = sl_temp_make();
    char *out;
    sl_write_text(sl_path(folder, "more.h"), "int sl_one(void);\nint sl_two(void);\n");
    sl_write_text(sl_path(folder, "less.c"),
                  "int sl_one(void); int sl_one(void) { return 1; }\n"
                  "int sl_three(void); int sl_three(void) { return 3; }");
    free(sl_shell_ok("%s -shared -fPIC -o %s/less.so %s/less.c", compiler(), folder, folder));
    assert_int_equal(
        sl_shell(&out, "python3 tools/exports.py %s/more.h --check %s/less.so", folder, folder), 1);
    assert_non_null(strstr(out, "sl_two is declared but not exported"));
    assert_non_null(strstr(out, "sl_three is exported but not declared"));
    free(out);
    sl_temp_remove(folder);
}

/* The build is that of the test: its flags come through MAKEFLAGS from `make test`. Writes the
 * folder that everything is below to root. */
static void install(const char *folder, const char *more, char root[512])
{
    const char *build = getenv("SL_BUILD");
    free(sl_shell_ok("make -s install B=%s DESTDIR=%s/root PREFIX=/opt/sluice %s",
                     build ? build : "build", folder, more));
    snprintf(root, 512, "%s/root/opt/sluice", folder);
}

static const char *sanitizer(void)
{
    /* A program that uses a library with sanitizers needs their runtime first. */
    return sl_shell(NULL, "nm -D %s | grep -q __asan_init", sl_build_path("libsluice.so")) == 0
               ? "-fsanitize=address,undefined"
               : "";
}

static void check_answers(const char *run, const char *program)
{
    char *out = sl_shell_ok("%s %s %s 'What is the capital of France?' 'Capital of Italy?'", run,
                            program, sl_model_path("tiny-q8_0.gguf"));
    assert_non_null(strstr(out, "What is the capital of France?\n"
                                "    The capital of France is Paris.\n"
                                "Capital of Italy?\n"
                                "    The capital of Italy is Rome.\n"));
    free(out);
}

static void test_install_and_build(void **state)
{
    (void)state;
    if (!getenv("MAKEFLAGS"))
        skip_because("run by make only, which knows how the library was built");
    const char *folder = sl_temp_make();
    char root[512];
    install(folder, "", root);
    static const char *const files[] = {
        "bin/sluice",
        "include/sluice.h",
        "lib/libsluice.a",
        "lib/libsluice.so",
        "lib/libsluice.so.0",
        "lib/libsluice.so.0.1.0",
        "lib/pkgconfig/sluice.pc",
        "lib/cmake/sluice/sluice-config.cmake",
        "lib/cmake/sluice/sluice-config-version.cmake",
    };
    for (size_t i = 0; i < SL_COUNTOF(files); i++)
        assert_int_equal(access(sl_path(root, files[i]), R_OK), 0);
    char *out = sl_shell_ok("find %s -type f -o -type l | wc -l", root);
    assert_int_equal(atoi(out), SL_COUNTOF(files));
    free(out);
    out = sl_shell_ok("%s/bin/sluice version", root);
    assert_string_equal(out, "sluice 0.1.0\n");
    free(out);
    out = sl_shell_ok("cat %s/lib/pkgconfig/sluice.pc %s/lib/cmake/sluice/*", root, root);
    assert_null(strchr(out, '@'));
    free(out);

    if (sl_shell_has("pkg-config")) {
        char flags[2048];
        snprintf(flags, sizeof flags,
                 "PKG_CONFIG_PATH=%s/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=%s/root pkg-config", root,
                 folder);
        out = sl_shell_ok("%s --modversion sluice", flags);
        assert_string_equal(out, "0.1.0\n");
        free(out);
        free(sl_shell_ok("%s %s -std=c99 -o %s/batch examples/batch.c $(%s --cflags --libs sluice)",
                         compiler(), sanitizer(), folder, flags));
        char run[1024];
        snprintf(run, sizeof run, "LD_LIBRARY_PATH=%s/lib", root);
        check_answers(run, sl_path(folder, "batch"));
        /* The archive brings its needs along. */
        free(sl_shell_ok(
            "%s %s -std=c99 -o %s/static examples/batch.c $(%s --cflags sluice) "
            "%s/lib/libsluice.a $(pkg-config --libs hwloc jansson libutf8proc libxxhash) "
            "$(%s --variable=static_libs sluice)",
            compiler(), sanitizer(), folder, flags, root, flags));
        check_answers("", sl_path(folder, "static"));
    } else {
        sl_print_skip("pkg-config is not installed");
    }
    sl_temp_remove(folder);
}

static void test_cmake(void **state)
{
    (void)state;
    if (!getenv("MAKEFLAGS"))
        skip_because("run by make only, which knows how the library was built");
    if (!sl_shell_has("cmake"))
        skip_because("cmake is not installed");
    const char *folder = sl_temp_make();
    /* A library folder further down, as some systems have it. */
    char root[512];
    install(folder, "LIBDIR=/opt/sluice/lib/triplet", root);
    sl_write_text(sl_path(folder, "CMakeLists.txt"),
                  "cmake_minimum_required(VERSION 3.13)\n"
                  "project(user C)\n"
                  "find_package(sluice 0.1 REQUIRED)\n"
                  "add_executable(shared batch.c)\n"
                  "target_link_libraries(shared sluice::sluice)\n"
                  "add_executable(archive batch.c)\n"
                  "target_link_libraries(archive sluice::static)\n");
    free(sl_shell_ok("cp examples/batch.c %s", folder));
    free(sl_shell_ok("cd %s && cmake -S . -B b -DCMAKE_PREFIX_PATH=%s/lib/triplet/cmake "
                     "-DCMAKE_C_FLAGS='%s' && env -u MAKEFLAGS cmake --build b",
                     folder, root, sanitizer()));
    check_answers("", sl_path(folder, "b/shared"));
    check_answers("", sl_path(folder, "b/archive"));
    /* Another minor version breaks things before 1.0. */
    assert_int_not_equal(sl_shell(NULL,
                                  "cd %s && sed -i 's/sluice 0.1/sluice 0.2/' CMakeLists.txt && "
                                  "cmake -S . -B c -DCMAKE_PREFIX_PATH=%s/lib/triplet/cmake",
                                  folder, root),
                         0);
    sl_temp_remove(folder);
}

static void test_examples(void **state)
{
    (void)state;
    check_answers("", sl_build_path("examples/batch"));
    char *out;
    assert_int_equal(sl_shell(&out, "%s", sl_build_path("examples/batch")), 2);
    assert_non_null(strstr(out, "usage: batch MODEL QUESTION..."));
    free(out);
    assert_int_equal(sl_shell(&out, "%s no-such-file x", sl_build_path("examples/batch")), 1);
    assert_non_null(strstr(out, "batch: no-such-file"));
    free(out);

    static const char question[] = "'What is the capital of France?'";
    const char *model = sl_model_path("tiny-q8_0.gguf");
    out = sl_shell_ok("%s %s %s", sl_build_path("examples/oneshot"), model, question);
    assert_string_equal(out, "The capital of France is Paris.\n");
    free(out);
    out = sl_shell_ok("%s %s %s 'What is 6 times 7?' 'Capital of Italy?'",
                      sl_build_path("examples/chat_fork"), model, question);
    assert_string_equal(out, "What is the capital of France?\n"
                             "    The capital of France is Paris.\n"
                             "    (0 of 19 tokens of the prompt were there)\n"
                             "What is 6 times 7?\n"
                             "    6 * 7 = 42.\n"
                             "    (15 of 44 tokens of the prompt were there)\n"
                             "Capital of Italy?\n"
                             "    The capital of Italy is Rome.\n"
                             "    (15 of 40 tokens of the prompt were there)\n");
    free(out);
    assert_int_equal(sl_shell(&out, "%s", sl_build_path("examples/oneshot")), 2);
    free(out);
    assert_int_equal(sl_shell(&out, "%s README.md x", sl_build_path("examples/oneshot")), 1);
    assert_non_null(strstr(out, "oneshot: README.md"));
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_alone), cmocka_unit_test(test_exports),
        cmocka_unit_test(test_examples),     cmocka_unit_test(test_install_and_build),
        cmocka_unit_test(test_cmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
