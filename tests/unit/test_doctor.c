/* `sluice doctor`: what it reads from a made-up system, what it advises, and the command. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_facts.h"
#include "fake_root.h"
#include "process.h"
#include "shell.h"

#define MODEL "tests/data/models/rand-r1-q8_0.gguf"

static const uint64_t MIB = (uint64_t)1 << 20;

static void expect(sl_process process, int exit_status, const char *part_of_out,
                   const char *part_of_err)
{
    sl_process_expect(&process, exit_status, part_of_out, part_of_err);
    sl_process_free(&process);
}

/* ---- reading ---- */

/* Two packages of two cores with two threads each; a container with limits. */
static void fill_root(const char *root)
{
    sl_fake_root_file(root, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 9000\n\n");
    sl_fake_root_file(root, "sys/devices/system/cpu/online", "0-7\n");
    sl_fake_root_file(root, "sys/devices/system/node/online", "0-1\n");
    for (unsigned i = 0; i < 8; i++) {
        char name[128], text[16];
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%u/topology/core_id", i);
        snprintf(text, sizeof text, "%u\n", i / 2 % 2);
        sl_fake_root_file(root, name, text);
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%u/topology/physical_package_id", i);
        snprintf(text, sizeof text, "%u\n", i / 4);
        sl_fake_root_file(root, name, text);
    }
    sl_fake_root_file(root, "proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,6\n");
    sl_fake_root_file(root, "proc/self/cgroup", "0::/box/inner\n");
    sl_fake_root_file(root, "sys/fs/cgroup/box/cpu.max", "150000 100000\n");
    sl_fake_root_file(root, "sys/fs/cgroup/box/inner/memory.max", "max\n");
    sl_fake_root_file(root, "sys/fs/cgroup/box/memory.max", "2147483648\n");
    sl_fake_root_file(root, "sys/fs/cgroup/box/memory.current", "1610612736\n");
    sl_fake_root_file(root, "sys/fs/cgroup/box/memory.stat",
                      "anon 5\ninactive_file 268435456\nactive_file 268435456\n");
    sl_fake_root_file(root, "proc/meminfo",
                      "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
    sl_fake_root_file(root, "sys/kernel/mm/transparent_hugepage/enabled",
                      "always madvise [never]\n");
    sl_fake_root_file(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    sl_fake_root_file(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    sl_fake_root_file(root, "sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
    sl_fake_root_file(root, "proc/loadavg", "6.50 1.00 0.50 1/99 1234\n");
    sl_fake_root_file(root, "proc/stat", "cpu  10 0 10 60 0 0 0 20 0 0\ncpu0 1 2 3\n");
    sl_fake_root_file(root, "dev/nvidia0", "");
}

static void test_reading(void **state)
{
    (void)state;
    const char *root = sl_fake_root_create();
    fill_root(root);
    sl_doctor_facts facts = {0};
    sl_doctor_read(root, &facts);
    assert_string_equal(facts.cpu_name, "Some CPU 9000");
    assert_int_equal(facts.n_online, 8);
    assert_int_equal(facts.n_cores, 4);
    assert_int_equal(facts.n_nodes, 2);
    assert_int_equal(facts.n_allowed, 5);
    assert_int_equal(facts.quota, 2);
    assert_true(facts.memory.total == 16384 * MIB);
    assert_true(facts.memory.available == 8192 * MIB);
    assert_true(facts.memory.limit == 2048 * MIB);
    /* 1,536 MiB are used, 512 of them for files that can go. */
    assert_true(facts.memory.left == 1024 * MIB);
    assert_string_equal(facts.huge_pages, "never");
    assert_string_equal(facts.governor, "powersave");
    assert_string_equal(facts.driver, "acpi-cpufreq");
    assert_int_equal(facts.turbo, 0);
    assert_true(facts.load == 6.5);
    assert_true(facts.steal == 0.2);
    assert_true(facts.has_nvidia_device && !facts.on_battery);
    sl_fake_root_file(root, "sys/class/power_supply/BAT0/type", "Battery\n");
    sl_fake_root_file(root, "sys/class/power_supply/BAT0/status", "Discharging\n");
    facts = (sl_doctor_facts){0};
    sl_doctor_read(root, &facts);
    assert_true(facts.on_battery);

    /* The process's own limit is the tightest, and what it takes counts. */
    sl_fake_root_file(
        root, "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max address space         1073741824           unlimited            bytes\n");
    sl_fake_root_file(root, "proc/self/status",
                      "Name:\tx\nVmSize:\t  524288 kB\nCpus_allowed_list:\t0-3,6\n");
    facts = (sl_doctor_facts){0};
    sl_doctor_read(root, &facts);
    assert_true(facts.memory.address_space == 1024 * MIB && facts.memory.left == 512 * MIB);
    sl_fake_root_file(
        root, "proc/self/limits",
        "Max address space         unlimited            unlimited            bytes\n");
    facts = (sl_doctor_facts){0};
    sl_doctor_read(root, &facts);
    assert_true(facts.memory.address_space == 0 && facts.memory.left == 1024 * MIB);

    /* The first version of control groups, and the other way to tell of turbo. */
    sl_fake_root_file(root, "proc/self/cgroup", "5:devices:/\n4:memory:/box\n3:cpu,cpuacct:/\n");
    sl_fake_root_file(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n");
    sl_fake_root_file(root, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2147483648\n");
    sl_fake_root_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    facts = (sl_doctor_facts){0};
    sl_doctor_read(root, &facts);
    assert_true(facts.memory.limit == 1024 * MIB);
    assert_true(facts.memory.left == 0);
    assert_int_equal(facts.quota, 0);
    sl_fake_root_remove(root);
}

/* Files that are missing or say nonsense. */
static void test_reading_nonsense(void **state)
{
    (void)state;
    const char *root = sl_fake_root_create();
    sl_doctor_facts facts = {0};
    sl_doctor_read(root, &facts);
    assert_string_equal(facts.cpu_name, "");
    assert_int_equal(facts.n_online + facts.n_cores + facts.n_nodes + facts.n_allowed, 0);
    assert_true(facts.memory.total == 0 && facts.memory.left == UINT64_MAX);
    assert_true(facts.turbo == -1 && facts.load < 0 && facts.steal < 0);
    sl_fake_root_file(root, "sys/devices/system/cpu/online", "7-0,x\n");
    sl_fake_root_file(root, "sys/devices/system/node/online", "0-99999999999999999999\n");
    sl_fake_root_file(root, "proc/self/status", "Cpus_allowed_list:\n");
    sl_fake_root_file(root, "proc/meminfo", "MemTotal: lots\nMemAvailable: -5 kB\n");
    sl_fake_root_file(root, "proc/self/cgroup", "no colons at all\n0::\n");
    sl_fake_root_file(root, "sys/kernel/mm/transparent_hugepage/enabled", "always\n");
    sl_fake_root_file(root, "proc/loadavg", "-1 x\n");
    sl_fake_root_file(root, "proc/stat", "cpu  1 2 three\n");
    sl_doctor_read(root, &facts);
    assert_int_equal(facts.n_online + facts.n_nodes + facts.n_allowed, 0);
    assert_true(facts.memory.total == 0 && facts.memory.left == UINT64_MAX);
    assert_string_equal(facts.huge_pages, "");
    assert_true(facts.load < 0 && facts.steal < 0);
    sl_fake_root_remove(root);
}

/* ---- advice ---- */

/* A machine without any problem. */
static sl_doctor_facts healthy(void)
{
    return (sl_doctor_facts){
        .cpu = {.avx2 = true, .fma = true, .f16c = true, .has_avx = true, .os_avx = true},
        .level = "avx2",
        .n_online = 8,
        .n_cores = 4,
        .n_nodes = 1,
        .n_allowed = 8,
        .n_usable = 8,
        .memory = {.total = 16384 * MIB, .available = 8192 * MIB, .left = 8192 * MIB},
        .huge_pages = "madvise",
        .governor = "performance",
        .turbo = 1,
        .load = 0.2,
        .steal = 0};
}

/* Exactly one line, with these words in it. */
static void expect_advice(const sl_doctor_facts *facts, const sl_doctor_model *model, bool fatal,
                          const char *part)
{
    sl_advice_list advice;
    sl_doctor_advise(facts, model, &advice);
    if (advice.n != 1 || !strstr(advice.items[0].text, part))
        fail_msg("%zu lines, the first is: %s", advice.n, advice.n > 0 ? advice.items[0].text : "");
    assert_int_equal(advice.items[0].fatal, fatal);
    assert_int_equal(sl_doctor_can_run(&advice), !fatal);
    assert_true(strlen(advice.items[0].text) < SL_ADVICE_BYTES - 1);
}

static void test_advice(void **state)
{
    (void)state;
    sl_advice_list advice;
    sl_doctor_facts facts = healthy();
    sl_doctor_advise(&facts, NULL, &advice);
    assert_int_equal(advice.n, 0);
    assert_true(sl_doctor_can_run(&advice));

    facts.huge_pages[0] = '\0'; /* not told is no problem */
    facts.governor[0] = '\0';
    facts.turbo = -1;
    facts.load = facts.steal = -1;
    sl_doctor_advise(&facts, NULL, &advice);
    assert_int_equal(advice.n, 0);

    facts = healthy();
    strcpy(facts.huge_pages, "never");
    expect_advice(&facts, NULL, false, "huge pages are off");
    facts = healthy();
    strcpy(facts.governor, "powersave");
    expect_advice(&facts, NULL, false, "governor");
    strcpy(facts.driver, "intel_pstate");
    sl_doctor_advise(&facts, NULL, &advice);
    assert_int_equal(advice.n, 0);
    facts = healthy();
    facts.turbo = 0;
    expect_advice(&facts, NULL, false, "turbo is off");
    facts = healthy();
    facts.on_battery = true;
    expect_advice(&facts, NULL, false, "battery");
    facts = healthy();
    facts.load = 7;
    expect_advice(&facts, NULL, false,
                  "the load average of the last minute is 7.0 on 8 processors");
    facts = healthy();
    facts.steal = 0.25;
    expect_advice(&facts, NULL, false, "25 %");
    facts = healthy();
    facts.n_allowed = 2;
    expect_advice(&facts, NULL, false, "2 of 8 processors");
    facts = healthy();
    facts.quota = 3;
    expect_advice(&facts, NULL, false, "quota is 3 of 8");
    facts = healthy();
    facts.n_nodes = 2;
    expect_advice(&facts, NULL, false, "2 nodes");
    facts = healthy();
    facts.has_nvidia_device = true;
    expect_advice(&facts, NULL, false, "libcuda.so.1");
    facts.has_cuda_library = true;
    snprintf(facts.no_gpu.message, sizeof facts.no_gpu.message, "the driver is too old");
    expect_advice(&facts, NULL, false, "cannot be used: the driver is too old");
    snprintf(facts.gpu.name, sizeof facts.gpu.name, "a device");
    sl_doctor_advise(&facts, NULL, &advice);
    assert_int_equal(advice.n, 0);
    facts.has_nvidia_device = false;
    expect_advice(&facts, NULL, false, "/dev/nvidia0");
}

static void test_advice_on_processors(void **state)
{
    (void)state;
    sl_doctor_facts facts = healthy();
    assert_non_null(strstr(sl_doctor_missing(&facts), "AVX-512 F"));
    facts.cpu.has_avx512f = true;
    assert_non_null(strstr(sl_doctor_missing(&facts), "operating system does not enable"));
    expect_advice(&facts, NULL, false, "AVX-512");
    facts = healthy();
    facts.level = "scalar";
    facts.cpu = (sl_cpuid){.has_avx = true};
    assert_non_null(strstr(sl_doctor_missing(&facts), "does not enable"));
    expect_advice(&facts, NULL, false, "does not enable AVX");
    facts.cpu = (sl_cpuid){.hypervisor = true};
    expect_advice(&facts, NULL, false, "virtual machine");
    facts.cpu = (sl_cpuid){.neon = true};
    assert_non_null(strstr(sl_doctor_missing(&facts), "dot products"));
    expect_advice(&facts, NULL, false, "no vector instructions");
    facts = healthy();
    facts.level = "avx512";
    assert_non_null(strstr(sl_doctor_missing(&facts), "VNNI"));
    facts.level = "avx512vnni";
    assert_non_null(strstr(sl_doctor_missing(&facts), "processor does not have"));
    facts.cpu.has_avx512f = facts.cpu.os_avx512 = facts.cpu.has_amx_int8 = true;
    assert_non_null(strstr(sl_doctor_missing(&facts), "does not allow"));
    expect_advice(&facts, NULL, false, "AMX");
    facts.cpu.os_amx = facts.cpu.amx_int8 = facts.amx_refused = true;
    expect_advice(&facts, NULL, false, "AMX");
    facts.amx_refused = false;
    facts.level = "amx";
    assert_string_equal(sl_doctor_missing(&facts), "");
    sl_advice_list advice;
    sl_doctor_advise(&facts, NULL, &advice);
    assert_int_equal(advice.n, 0);
}

static void test_advice_on_memory(void **state)
{
    (void)state;
    sl_doctor_facts facts = healthy();
    facts.memory.limit = 12288 * MIB;
    expect_advice(&facts, NULL, false, "12288 of 16384 MiB");
    facts = healthy();
    facts.memory.address_space = 9000 * MIB;
    expect_advice(&facts, NULL, false, "limited to 9000 MiB: see ulimit -v");
    facts = healthy();
    facts.memory.left = 600 * MIB;
    expect_advice(&facts, NULL, false, "only 600 MiB");
    facts.memory.left = 10 * MIB;
    expect_advice(&facts, NULL, true, "no model can run");
    sl_doctor_model model = {.context = 1000,
                             .plan = {.weights = 900 * MIB,
                                      .weights_mapped = 800 * MIB,
                                      .weights_packed = 70 * MIB,
                                      .weights_owned = 30 * MIB,
                                      .state_fixed = 20 * MIB,
                                      .state_context = 70 * MIB,
                                      .scratch = 10 * MIB}};
    facts.memory.left = 1000 * MIB;
    sl_advice_list advice;
    sl_doctor_advise(&facts, &model, &advice);
    assert_int_equal(advice.n, 0);
    facts.memory.left = 999 * MIB;
    expect_advice(&facts, &model, false, "the weights do not fit: 1000 MiB");
    facts.memory.left = 199 * MIB;
    expect_advice(&facts, &model, true, "a context of 1000 tokens takes 200 MiB");
    facts.memory.left = 99 * MIB;
    expect_advice(&facts, &model, true, "the weights take 100 MiB, and 99 are left");
    facts.memory = (sl_hostmem){0}; /* nothing is told, nothing is claimed */
    sl_doctor_advise(&facts, &model, &advice);
    assert_int_equal(advice.n, 0);
}

/* ---- the command ---- */

static void test_command(void **state)
{
    (void)state;
    expect(sl_sluice(NULL, "doctor", "--measure=off"), 0, "kernels       ", NULL);
    expect(sl_sluice(NULL, "doctor", MODEL, "--measure=off", "--ctx", "64"), 0,
           "for a context of 64 tokens", NULL);
    expect(sl_sluice(NULL, "doctor", MODEL, "--measure=off", "--isa", "scalar"), 0,
           "kernels       scalar", NULL);
    sl_process process = sl_sluice(NULL, "doctor", MODEL, "--json", "--threads", "1");
    sl_process_expect(&process, 0, "{", NULL);
    json_error_t error;
    json_t *report = json_loadb(process.out, process.n_out, 0, &error);
    assert_non_null(report);
    sl_process_free(&process);
    assert_true(json_is_true(json_object_get(report, "can_run")));
    assert_true(json_is_array(json_object_get(report, "advice")));
    const char *level;
    sl_error err;
    assert_ok(sl_cpu_level(NULL, &level, &err));
    const json_t *cpu = json_object_get(report, "cpu");
    assert_string_equal(json_string_value(json_object_get(cpu, "level")), level);
    assert_true(json_integer_value(json_object_get(cpu, "usable")) >= 1);
    const json_t *ceilings = json_object_get(report, "ceilings");
    assert_int_equal(json_integer_value(json_object_get(ceilings, "threads")), 1);
    assert_true(json_number_value(json_object_get(ceilings, "read_gb_per_s")) > 0);
    const json_t *model = json_object_get(report, "model");
    assert_true(json_integer_value(json_object_get(model, "needed_bytes")) > 0);
    sl_engine *engine;
    sl_run_cost cost;
    const sl_run_shape step = {.n_sequences = 1, .n_rows = 1, .n_logits = 1};
    assert_ok(sl_engine_open(MODEL, NULL, &engine, &err));
    assert_ok(sl_engine_run_cost(engine, &step, &cost, &err));
    sl_engine_close(engine);
    const double limit = json_number_value(json_object_get(ceilings, "read_gb_per_s")) * 1e9 /
                         (cost.weight_bytes + cost.state_bytes);
    const double told = json_number_value(json_object_get(model, "most_tokens_per_s"));
    assert_true(told > 0.999 * limit && told < 1.001 * limit);
    json_decref(report);
}

/* What cannot be measured is one line; the rest of the report is there. */
static void test_measuring_that_fails(void **state)
{
    (void)state;
    sl_advice_list advice = {0};
    sl_error err;
    sl_fail(&err, SL_ERR_MEMORY, "%0400d: no room", 1);
    sl_doctor_add_failure(&advice, &err);
    assert_non_null(strstr(advice.items[0].text, "were not measured: ..."));
    assert_non_null(strstr(advice.items[0].text, "1: no room"));
    assert_true(sl_doctor_can_run(&advice));
    if (sl_test_shortened())
        skip_because("address space cannot be limited under the sanitizers");
    char *out;
    /* Room for the program, not for the stacks of so many threads. */
    const int exit_status =
        sl_shell(&out, "ulimit -v 400000 && %s doctor --threads 250", sl_build_path("sluice"));
    assert_int_equal(exit_status, 0);
    assert_non_null(strstr(out, "were not measured: "));
    assert_non_null(strstr(out, "kernels       "));
    assert_non_null(strstr(out, "see ulimit -v"));
    free(out);
    /* A smaller buffer than what the machine has left would allow. */
    assert_int_equal(
        sl_shell(&out, "ulimit -v 400000 && %s doctor --threads 1", sl_build_path("sluice")), 0);
    assert_non_null(strstr(out, "measured      1 thread: "));
    free(out);
}

static void test_refusals(void **state)
{
    (void)state;
    expect(sl_sluice(NULL, "doctor", "--threads", "0"), 2, NULL, "--threads");
    expect(sl_sluice(NULL, "doctor", "--isa", "avx9"), 2, NULL, "--isa: 'avx9' is no");
    expect(sl_sluice(NULL, "doctor", "--measure", "off"), 2, NULL, "--measure=off");
    expect(sl_sluice(NULL, "doctor", "--ctx", "10"), 2, NULL, "--ctx goes with a MODEL");
    expect(sl_sluice(NULL, "doctor", MODEL, "--ctx", "99999999"), 2, NULL, "the model's context");
    expect(sl_sluice(NULL, "doctor", "/no/such/model.gguf"), 3, NULL, "/no/such/model.gguf");
    sl_process_setup full = {.out_path = "/dev/full"};
    expect(sl_sluice(&full, "doctor", "--measure=off"), 1, NULL, "standard output");
    sl_error err;
    const char *level;
    assert_refused(sl_cpu_level("avx9", &level, &err), SL_ERR_ARGUMENT, "'avx9' is no");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_reading_nonsense),
        cmocka_unit_test(test_advice),
        cmocka_unit_test(test_advice_on_processors),
        cmocka_unit_test(test_advice_on_memory),
        cmocka_unit_test(test_command),
        cmocka_unit_test(test_measuring_that_fails),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
