/* From facts to advice: one line for every problem. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bench_machine.h"
#include "doctor_facts.h"

static const uint64_t MIB = (uint64_t)1 << 20;

uint64_t sl_doctor_weights(const sl_memory_plan *plan)
{
    return (uint64_t)plan->weights_packed + plan->weights_owned;
}

uint64_t sl_doctor_must_have(const sl_memory_plan *plan)
{
    return sl_doctor_weights(plan) + plan->state_fixed + plan->state_context + plan->scratch;
}

uint64_t sl_doctor_should_have(const sl_memory_plan *plan)
{
    return sl_doctor_must_have(plan) + plan->weights_mapped;
}

static bool is_level(const sl_doctor_facts *facts, const char *level)
{
    return strcmp(facts->level, level) == 0;
}

const char *sl_doctor_missing(const sl_doctor_facts *facts)
{
    const sl_cpuid *cpu = &facts->cpu;
    if (is_level(facts, "scalar")) {
        if (cpu->neon)
            return "Armv8.2 dot products, which the processor does not have";
        if (cpu->has_avx && !cpu->os_avx)
            return "AVX2, FMA and F16C, which the operating system does not enable";
        return "AVX2, FMA and F16C, which the processor does not have";
    }
    if (is_level(facts, "avx2")) {
        if (cpu->has_avx512f && !cpu->os_avx512)
            return "AVX-512, which the operating system does not enable";
        return "AVX-512 F, BW, DQ and VL, which the processor does not have";
    }
    if (is_level(facts, "avx512"))
        return "AVX-512 VNNI, which the processor does not have";
    if (is_level(facts, "avx512vnni")) {
        if (!cpu->has_amx_int8)
            return "AMX int8 tiles, which the processor does not have";
        return "AMX int8 tiles, which the operating system does not allow";
    }
    return "";
}

/* ---- advice ---- */

static void add(sl_advice_list *list, bool fatal, const char *format, ...) SL_PRINTF(3, 4);
static void add(sl_advice_list *list, bool fatal, const char *format, ...)
{
    if (list->n == SL_MAX_ADVICE)
        return;
    sl_advice *advice = &list->items[list->n++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(advice->text, sizeof advice->text, format, arguments);
    va_end(arguments);
    advice->fatal = fatal;
}

static void advise_processor(const sl_doctor_facts *facts, sl_advice_list *out)
{
    const sl_cpuid *cpu = &facts->cpu;
    if (cpu->has_avx && !cpu->os_avx)
        add(out, false,
            "the operating system does not enable AVX: only the slow scalar kernels "
            "run; boot without noxsave, or use a newer kernel");
    else if (is_level(facts, "scalar") && cpu->hypervisor)
        add(out, false,
            "this virtual machine shows a processor without AVX2: only the slow scalar "
            "kernels run; give it the host's processor (QEMU: -cpu host)");
    else if (is_level(facts, "scalar"))
        add(out, false,
            "this processor has no vector instructions that there are kernels for: "
            "only the slow scalar ones run");
    if (cpu->has_avx512f && cpu->os_avx && !cpu->os_avx512)
        add(out, false,
            "the processor has AVX-512, but the operating system does not enable it: "
            "look for clearcpuid in the kernel's command line");
    if (cpu->has_amx_int8 && (facts->amx_refused || (cpu->os_avx512 && !cpu->os_amx)))
        add(out, false,
            "the processor has AMX tiles, but the operating system does not allow "
            "them: Linux 5.16 or newer does");
}

static void advise_threads(const sl_doctor_facts *facts, sl_advice_list *out)
{
    if (facts->n_allowed > 0 && facts->n_allowed < facts->n_online)
        add(out, false,
            "this process may use %u of %u processors: see taskset and the cpuset of "
            "its container",
            facts->n_allowed, facts->n_online);
    if (facts->quota > 0 && facts->quota < facts->n_allowed)
        add(out, false,
            "the container's CPU quota is %u of %u processors: threads beyond it only "
            "wait",
            facts->quota, facts->n_allowed);
    if (facts->n_nodes > 1)
        add(out, false,
            "memory lies on %u nodes: numactl --cpunodebind=0 --membind=0 keeps "
            "threads and weights together",
            facts->n_nodes);
    if (facts->load >= 0 && facts->n_online > 0 && facts->load > 0.5 * facts->n_online)
        add(out, false,
            "the load average of the last minute is %.1f on %u processors: other programs are at "
            "work, or what you ran last was",
            facts->load, facts->n_online);
    if (facts->steal > 0.05)
        add(out, false, "other guests took %.0f %% of this virtual machine's time since it started",
            100 * facts->steal);
}

static void advise_power(const sl_doctor_facts *facts, sl_advice_list *out)
{
    if (sl_governor_saves(facts->governor, facts->driver))
        add(out, false,
            "the governor keeps the processor at its lowest clock: cpupower "
            "frequency-set -g performance");
    if (facts->turbo == 0)
        add(out, false, "turbo is off: the processor stays at its base clock");
    if (facts->on_battery)
        add(out, false, "the machine runs on its battery, which mostly lowers the clock");
}

static void advise_memory(const sl_doctor_facts *facts, const sl_doctor_model *model,
                          sl_advice_list *out)
{
    const sl_hostmem *memory = &facts->memory;
    const unsigned long long left = memory->left / MIB;
    if (strcmp(facts->huge_pages, "never") == 0)
        add(out, false,
            "huge pages are off, which costs read bandwidth: echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled");
    if (memory->limit > 0 && memory->limit < memory->total)
        add(out, false, "the container may use %llu of %llu MiB of memory",
            (unsigned long long)(memory->limit / MIB), (unsigned long long)(memory->total / MIB));
    if (memory->address_space > 0)
        add(out, false, "the address space of a process is limited to %llu MiB: see ulimit -v",
            (unsigned long long)(memory->address_space / MIB));
    if (memory->total == 0)
        return; /* the system does not tell */
    if (!model) {
        if (memory->left < 64 * MIB)
            add(out, true, "only %llu MiB of memory are left: no model can run", left);
        else if (memory->left < 1024 * MIB)
            add(out, false, "only %llu MiB of memory are left", left);
        return;
    }
    const uint64_t must = sl_doctor_must_have(&model->plan);
    const uint64_t should = sl_doctor_should_have(&model->plan);
    const uint64_t weights = sl_doctor_weights(&model->plan);
    if (weights > memory->left)
        add(out, true, "the weights take %llu MiB, and %llu are left: choose a smaller model",
            (unsigned long long)(weights / MIB), left);
    else if (must > memory->left)
        add(out, true,
            "a context of %u tokens takes %llu MiB with the weights, and %llu are left: choose a "
            "smaller context",
            model->context, (unsigned long long)(must / MIB), left);
    else if (should > memory->left)
        add(out, false,
            "the weights do not fit: %llu MiB with all that is needed, and %llu are "
            "left; the disk will be read for every token",
            (unsigned long long)(should / MIB), left);
}

static void advise_gpu(const sl_doctor_facts *facts, sl_advice_list *out)
{
    if (facts->has_nvidia_device && !facts->has_cuda_library)
        add(out, false,
            "there is an NVIDIA device, but the loader finds no libcuda.so.1: is the "
            "driver's library installed, or given to the container?");
    if (!facts->has_nvidia_device && facts->has_cuda_library)
        add(out, false,
            "there is a CUDA driver library, but no /dev/nvidia0: is the kernel module "
            "loaded, or the device given to the container?");
    if (facts->has_nvidia_device && facts->has_cuda_library && facts->gpu.name[0] == '\0')
        add(out, false, "the NVIDIA device cannot be used: %s", facts->no_gpu.message);
}

void sl_doctor_advise(const sl_doctor_facts *facts, const sl_doctor_model *model,
                      sl_advice_list *out)
{
    out->n = 0;
    advise_memory(facts, model, out);
    advise_processor(facts, out);
    advise_threads(facts, out);
    advise_power(facts, out);
    advise_gpu(facts, out);
}

void sl_doctor_add_failure(sl_advice_list *out, const sl_error *err)
{
    /* A message is longer than a line of advice: its end says what went wrong. */
    const size_t n = strlen(err->message), most = SL_ADVICE_BYTES - 64;
    add(out, false, "bandwidth and arithmetic were not measured: %s%s", n > most ? "..." : "",
        err->message + (n > most ? n - most : 0));
}

bool sl_doctor_can_run(const sl_advice_list *advice)
{
    for (size_t i = 0; i < advice->n; i++) {
        if (advice->items[i].fatal)
            return false;
    }
    return true;
}
