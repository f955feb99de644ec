/* Mapped files: what is refused, and what happens when a file shrinks while it is mapped.
 *
 * cmocka takes SIGBUS for itself during a test, so whatever needs the guard runs as a scenario in a
 * fresh process: this program with the scenario's name as argument. Exit status 0 = as expected. */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/mem.h"
#include "base/pool.h"

static char folder[] = "/tmp/sl-filemap-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[80];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Byte i of a test file is i * 7 + 1 modulo 251: never a page of zeros. */
static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 7 % 251 + 1);
}

static void write_file(const char *path, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    for (size_t i = 0; i < n_bytes; i++)
        putc(byte_at(i), file);
    fclose(file);
}

/* ---- scenarios, each in its own process ---- */

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Opens a new file of `n_pages` pages less five bytes. */
static sl_filemap *map_pages(const char *name, size_t n_pages)
{
    const char *path = path_of(name);
    write_file(path, n_pages * page_bytes() - 5);
    sl_filemap *map;
    return sl_filemap_open(path, &map, NULL) == SL_OK ? map : NULL;
}

static int scenario_truncate(void)
{
    size_t page = page_bytes();
    sl_filemap *map = map_pages("cut", 40), *other = map_pages("whole", 4);
    EXPECT(map && other);
    const volatile uint8_t *data = sl_filemap_data(map);
    EXPECT(data[39 * page] == byte_at(39 * page));
    EXPECT(truncate(sl_filemap_path(map), (off_t)(10 * page)) == 0);

    sl_error err = {0};
    EXPECT(sl_filemap_check(map, &err) == SL_OK); /* nothing was read yet */
    EXPECT(data[20 * page + 3] == 0);
    EXPECT(sl_filemap_check(map, &err) == SL_ERR_IO);
    EXPECT(strstr(err.message, sl_filemap_path(map)) && strstr(err.message, "truncated"));
    /* From either side, up to the last byte, and what is still there stays readable. */
    for (size_t i = 40 * page - 6; i >= 10 * page; i--)
        EXPECT(data[i] == 0);
    for (size_t i = 0; i < 10 * page; i++)
        EXPECT(data[i] == byte_at(i));

    const uint8_t *others = sl_filemap_data(other);
    for (size_t i = 0; i < sl_filemap_size(other); i++)
        EXPECT(others[i] == byte_at(i));
    EXPECT(sl_filemap_check(other, NULL) == SL_OK);

    /* The slot of a damaged map is as new for the next one. */
    sl_filemap_close(map);
    map = map_pages("next", 2);
    EXPECT(map && sl_filemap_check(map, NULL) == SL_OK);
    sl_filemap_close(map);
    sl_filemap_close(other);
    return 0;
}

/* Every page alone, last to first: the number of mappings must not grow with the lost pages. */
static int scenario_many_pages(void)
{
    size_t page = page_bytes(), n_pages = 5000;
    sl_filemap *map = map_pages("long", n_pages);
    EXPECT(map);
    EXPECT(truncate(sl_filemap_path(map), 1) == 0);
    const volatile uint8_t *data = sl_filemap_data(map);
    for (size_t i = 0; i + 2 < n_pages; i += 2)
        EXPECT(data[(n_pages - 1 - i) * page] == 0);
    EXPECT(data[0] == byte_at(0));
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;)
        lines += c == '\n';
    fclose(maps);
    EXPECT(lines < 1000);
    sl_filemap_close(map);
    return 0;
}

/* Readers in pool threads, and others that open and close maps at the same time. */
static atomic_size_t wrong;

static void read_or_reopen(void *context, unsigned i, unsigned n)
{
    (void)n;
    sl_filemap *map = context;
    const volatile uint8_t *data = sl_filemap_data(map);
    if (i % 2 == 0) {
        for (size_t k = sl_filemap_size(map); k-- > 0;)
            wrong += data[k] != 0 && data[k] != byte_at(k);
        return;
    }
    char path[300];
    snprintf(path, sizeof path, "%s/own-%u", folder, i);
    write_file(path, 100);
    for (int round = 0; round < 500; round++) {
        sl_filemap *own;
        if (sl_filemap_open(path, &own, NULL) != SL_OK) {
            wrong++;
            return;
        }
        wrong += sl_filemap_data(own)[99] != byte_at(99) || sl_filemap_check(own, NULL) != SL_OK;
        sl_filemap_close(own);
    }
}

static int scenario_threads(void)
{
    sl_filemap *map = map_pages("shared", 64);
    sl_pool *pool;
    EXPECT(map && sl_pool_create(4, &pool, NULL) == SL_OK);
    EXPECT(truncate(sl_filemap_path(map), (off_t)(3 * page_bytes())) == 0);
    sl_pool_run(pool, read_or_reopen, map);
    EXPECT(wrong == 0);
    EXPECT(sl_filemap_check(map, NULL) == SL_ERR_IO);
    sl_pool_destroy(pool);
    sl_filemap_close(map);
    return 0;
}

/* A fault in somebody else's mapping; also arms the guard. */
static int touch_foreign(void)
{
    sl_filemap *ours = map_pages("ours", 2);
    EXPECT(ours);
    const char *path = path_of("foreign");
    write_file(path, 2 * page_bytes());
    int fd = open(path, O_RDONLY);
    const volatile char *foreign = mmap(NULL, 2 * page_bytes(), PROT_READ, MAP_PRIVATE, fd, 0);
    EXPECT(foreign != MAP_FAILED && truncate(path, 0) == 0);
    EXPECT(foreign[page_bytes()] == 'x'); /* does not get here, or returns 1 */
    return 1;
}

static int scenario_foreign_default(void)
{
    signal(SIGBUS, SIG_DFL); /* a sanitizer's handler would report and exit */
    return touch_foreign();
}

static int scenario_foreign_ignored(void)
{
    signal(SIGBUS, SIG_IGN); /* the kernel does not ignore faults, whatever it is told */
    return touch_foreign();
}

static int scenario_sent_default(void)
{
    signal(SIGBUS, SIG_DFL);
    EXPECT(map_pages("ours", 2));
    raise(SIGBUS);
    return 1;
}

static int scenario_sent_ignored(void)
{
    signal(SIGBUS, SIG_IGN);
    sl_filemap *map = map_pages("ours", 2);
    EXPECT(map);
    raise(SIGBUS);
    sl_filemap_close(map);
    return 0;
}

static volatile sig_atomic_t host_calls;

static void host_handler(int number)
{
    host_calls += number == SIGBUS;
}

static int scenario_sent_host(void)
{
    signal(SIGBUS, host_handler);
    sl_filemap *map = map_pages("ours", 2);
    EXPECT(map);
    raise(SIGBUS);
    EXPECT(host_calls == 1);
    /* Ours are not shown to the host. */
    EXPECT(truncate(sl_filemap_path(map), 0) == 0);
    EXPECT(((const volatile uint8_t *)sl_filemap_data(map))[page_bytes()] == 0);
    EXPECT(host_calls == 1);
    sl_filemap_close(map);
    return 0;
}

static void host_action(int number, siginfo_t *info, void *context)
{
    (void)context;
    /* The host gets the fault's address and may end the process in its own way. */
    _exit(number == SIGBUS && info->si_addr && (uintptr_t)info->si_addr % page_bytes() == 0 ? 42
                                                                                            : 1);
}

static int scenario_foreign_host(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    action.sa_sigaction = host_action;
    sigaction(SIGBUS, &action, NULL);
    return touch_foreign();
}

/* The common crash reporter: called once, then it raises the signal again and expects to die. */
static void host_once(int number)
{
    host_calls++;
    raise(number);
}

static int scenario_sent_once(void)
{
    struct sigaction action = {.sa_flags = (int)SA_RESETHAND};
    action.sa_handler = host_once;
    sigaction(SIGBUS, &action, NULL);
    EXPECT(map_pages("ours", 2));
    raise(SIGBUS);
    return 1;
}

static const struct scenario {
    const char *name;
    int (*run)(void);
    int exit_status; /* or minus the signal that ends it */
} scenarios[] = {
    {"truncate", scenario_truncate, 0},
    {"many-pages", scenario_many_pages, 0},
    {"threads", scenario_threads, 0},
    {"foreign-default", scenario_foreign_default, -SIGBUS},
    {"foreign-ignored", scenario_foreign_ignored, -SIGBUS},
    {"foreign-host", scenario_foreign_host, 42},
    {"sent-default", scenario_sent_default, -SIGBUS},
    {"sent-ignored", scenario_sent_ignored, 0},
    {"sent-host", scenario_sent_host, 0},
    {"sent-once", scenario_sent_once, -SIGBUS},
};

static int run_scenario(const char *name, const char *in)
{
    memcpy(folder, in, sizeof folder);
    for (size_t i = 0; i < SL_COUNTOF(scenarios); i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return scenarios[i].run();
    return 2;
}

static void test_guard(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(scenarios); i++) {
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "test_filemap", scenarios[i].name, folder, (char *)NULL);
            _exit(127);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        int got = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
        if (got != scenarios[i].exit_status)
            fail_msg("scenario %s ended with %d, expected %d", scenarios[i].name, got,
                     scenarios[i].exit_status);
    }
}

/* ---- ordinary tests ---- */

static void test_content(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4095, 4096, 4097, 100000};
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        const char *path = path_of("content");
        write_file(path, sizes[i]);
        sl_error err;
        sl_filemap *map = NULL;
        assert_ok(sl_filemap_open(path, &map, &err));
        assert_int_equal(sl_filemap_size(map), sizes[i]);
        assert_string_equal(sl_filemap_path(map), path);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(sl_filemap_data(map)[k], byte_at(k));
        assert_ok(sl_filemap_check(map, &err));
        sl_filemap_close(map);
    }
    sl_filemap_close(NULL);
}

/* What is not a file with content, for both ways of reading. A FIFO without a writer must not
 * block. */
/* Pages of files in this process's memory. */
static long file_pages(void)
{
    long total, resident, shared = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld %ld", &total, &resident, &shared), 3);
    fclose(file);
    return shared;
}

/* Released bytes are read anew; a range that is not the map's is left alone. */
static void test_release(void **state)
{
    (void)state;
    const size_t page = page_bytes();
    enum { PAGES = 512 };
    sl_filemap *map = map_pages("release", PAGES);
    assert_non_null(map);
    const uint8_t *data = sl_filemap_data(map);
    const size_t n = sl_filemap_size(map);
    uint8_t *own = sl_alloc(SL_MEM_GENERAL, 4 * page);
    memset(own, 7, 4 * page);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < n; i += 100)
            assert_int_equal(data[i], byte_at(i));
        const long before = file_pages();
        sl_filemap_release(map, data + 10, n - 20);
        assert_in_range(before - file_pages(), PAGES - 40, PAGES);
    }
    sl_filemap_release(map, data + n, 1);
    sl_filemap_release(map, data + 1, n);
    sl_filemap_release(map, own, 4 * page);
    for (size_t i = 0; i < 4 * page; i++)
        assert_int_equal(own[i], 7);
    assert_int_equal(sl_filemap_check(map, NULL), SL_OK);
    sl_free(own);
    sl_filemap_close(map);
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("socket"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    write_file(path_of("empty"), 0);
    assert_int_equal(symlink("loop", path_of("loop")), 0);

    static const struct {
        const char *name, *part;
        bool readable; /* sl_read_file takes an empty file */
    } cases[] = {
        {"missing", "No such file", false},
        {"fifo", "not a regular file", false},
        {"socket", "cannot be opened", false},
        {".", "is a folder", false},
        {"empty", "is empty", true},
        {"loop", "cannot be opened", false},
        {"empty/x", "cannot be opened", false},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        sl_filemap *map = NULL;
        const char *path = path_of(cases[i].name);
        assert_refused(sl_filemap_open(path, &map, &err), SL_ERR_IO, cases[i].part);
        assert_non_null(strstr(err.message, path));
        assert_null(map);
        if (cases[i].readable)
            continue;
        char *text = NULL;
        size_t n;
        assert_refused(sl_read_file(path, 100, &text, &n, &err), SL_ERR_IO, cases[i].part);
        assert_non_null(strstr(err.message, path));
        assert_null(text);
    }
    sl_error err;
    sl_filemap *map;
    assert_refused(sl_filemap_open("/dev/zero", &map, &err), SL_ERR_IO, "not a regular file");
    assert_refused(sl_filemap_open("/dev/tty", &map, &err), SL_ERR_IO, "/dev/tty: ");
    assert_refused(sl_filemap_open("", &map, &err), SL_ERR_IO, "cannot be opened");
    close(fd);
}

static void test_too_many_maps(void **state)
{
    (void)state;
    enum { MOST = 1024 };
    static sl_filemap *maps[MOST];
    sl_error err;
    const char *path = path_of("many");
    write_file(path, 10);
    size_t blocks = sl_mem_get_stats().blocks;
    for (int i = 0; i < MOST; i++)
        assert_ok(sl_filemap_open(path, &maps[i], &err));
    sl_filemap *more;
    assert_refused(sl_filemap_open(path, &more, &err), SL_ERR_LIMIT, "more than 1024");
    sl_filemap_close(maps[500]);
    assert_ok(sl_filemap_open(path, &maps[500], &err));
    for (int i = 0; i < MOST; i++)
        sl_filemap_close(maps[i]);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

static void test_read_file(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 16383, 16384, 16385, 50000};
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        const char *path = path_of("small");
        write_file(path, sizes[i]);
        sl_error err;
        char *text = NULL;
        size_t n = 99;
        assert_ok(sl_read_file(path, sizes[i], &text, &n, &err));
        assert_int_equal(n, sizes[i]);
        for (size_t k = 0; k < n; k++)
            assert_int_equal((unsigned char)text[k], byte_at(k));
        assert_int_equal(text[n], '\0');
        sl_free(text);
        if (sizes[i] > 0)
            assert_refused(sl_read_file(path, sizes[i] - 1, &text, &n, &err), SL_ERR_LIMIT,
                           "limit of");
    }
    /* Files whose size is not known beforehand. */
    sl_error err;
    char *text;
    size_t n;
    assert_ok(sl_read_file("/proc/self/status", 65536, &text, &n, &err));
    assert_true(n > 100 && strncmp(text, "Name:", 5) == 0);
    sl_free(text);
    assert_refused(sl_read_file("/proc/self/status", 20, &text, &n, &err), SL_ERR_LIMIT,
                   "limit of 20 bytes");
}

static void test_allocation_failures(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", path_of("faults"));
    write_file(path, 40000);
    size_t blocks = sl_mem_get_stats().blocks;
    sl_error err;
    for (int reading = 0; reading <= 1; reading++) {
        unsigned failures = 0;
        for (;; failures++) {
            sl_filemap *map = NULL;
            char *text = NULL;
            size_t n;
            sl_mem_fail_at(failures + 1, false);
            sl_status status = reading ? sl_read_file(path, 50000, &text, &n, &err)
                                       : sl_filemap_open(path, &map, &err);
            sl_mem_fail_at(0, false);
            if (status == SL_OK) {
                sl_filemap_close(map);
                sl_free(text);
                break;
            }
            assert_int_equal(status, SL_ERR_MEMORY);
            assert_non_null(strstr(err.message, path));
            assert_true(map == NULL && text == NULL);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
        assert_true(failures >= (reading ? 1 : 2));
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_scenario(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_too_many_maps),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_read_file),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
