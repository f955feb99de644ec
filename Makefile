# sluice: GNU make, one file. Objects go under $(B); the suffix of a source file decides its flags.
#
#   make            the program $(B)/sluice and the library $(B)/libsluice.{a,so}
#   make test       all tests (what CI runs)
#   make check      the same under AddressSanitizer and UBSan, long tests shortened, after the
#                   layer check
#   make torture    1,000 random schedules of state operations, every logits row compared
#   make lengths    the longest functions and files
#   make bench      the programs of bench/ (they are run by hand)
#   make examples   the programs of examples/, with the shared library
#   make install    program, library and header below $(DESTDIR)$(PREFIX)
#   make fuzz       mutated inputs for every parser, FUZZ_TIME seconds each (needs clang)
#   make demo       the demonstration model answers a few questions
#   make format     clang-format over the tree
#   make clean
#
# Variables: B (build folder), CC, CFLAGS, CHUNK (SL_GDN_CHUNK: 16, 32 or 64), SAN=1 (sanitizers),
# CUDA (0 or 1: the CUDA backend; 1 where nvcc is), T (only the tests whose name contains it), V=1
# (show the commands), PREFIX and DESTDIR for installing.

B      ?= build
CHUNK  ?= 32
OPT    ?= -O2 -g
CFLAGS ?=

STD      = -std=c17 -D_DEFAULT_SOURCE -D_POSIX_C_SOURCE=200809L
WARN     = -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
# One rounding per operation, everywhere: docs/EXACTNESS.md.
EXACT    = -ffp-contract=off -fno-fast-math -fno-math-errno
INCLUDES = -Iinclude -Isrc
DEFINES  = -DSL_GDN_CHUNK=$(CHUNK) -DSL_EXPERIMENTAL
NO_UNDEFINED = -Wl,-z,defs
ifeq ($(SAN),1)
NO_UNDEFINED =
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif

ALL_CFLAGS = $(STD) $(OPT) $(WARN) $(EXACT) -fPIC $(INCLUDES) $(DEFINES) $(SANITIZE) $(CFLAGS)
LDLIBS     = -lhwloc -ljansson -lutf8proc -lxxhash -lm -lpthread
# Line editing is the program's, not the library's; so are the network and TLS.
CLI_LIBS    = -ledit
SERVER_LIBS = -levent_openssl -levent_core -lssl -lcrypto

# The version is the header's. SONAME: programs keep running while its number stays.
header   = $(shell sed -n 's/^.define SL_$(1) *\([0-9]*\).*/\1/p' include/sluice.h)
VERSION := $(call header,VERSION_MAJOR).$(call header,VERSION_MINOR).$(call header,VERSION_PATCH)
SONAME  := libsluice.so.$(call header,ABI_VERSION)
SO      := libsluice.so.$(VERSION)

LIB_SRC  := $(wildcard src/*/*.c src/backend/*/*.c src/backend/*/kernels/*.c)
CLI_SRC  := $(wildcard cli/*.c)
SRV_SRC  := $(wildcard server/*.c)
TEST_SRC := $(sort $(wildcard tests/unit/test_*.c))
HELP_SRC := $(wildcard tests/support/*.c)

LIB_OBJ  := $(LIB_SRC:%.c=$(B)/%.o)

# The CUDA backend: where nvcc is, unless CUDA=0. The runtime is linked in, so that the same program
# runs where there is no driver.
NVCC ?= nvcc
CUDA ?= $(if $(filter 1,$(SAN)),0,$(if $(shell command -v $(NVCC)),1,0))
ifeq ($(CUDA),1)
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC)))))
CUDA_ARCH ?= -gencode arch=compute_80,code=[sm_80,compute_80] \
	-gencode arch=compute_90a,code=sm_90a
# The arithmetic of the contract: one rounding per operation, denormals kept.
NVCCFLAGS = -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true $(CUDA_ARCH) \
	$(INCLUDES) $(DEFINES) -Xcompiler \
	-fPIC,-Wall,-ffp-contract=off,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics -Werror all-warnings
LIB_OBJ += $(patsubst %.cu,$(B)/%.o,$(wildcard src/backend/cuda/kernels/*.cu))
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
LDLIBS  += $(CUDA_LIBS)
$(B)/src/backend/cuda/%.o: FLAGS += -DSL_CUDA -isystem $(CUDA_HOME)/include
$(B)/tests/unit/test_cuda_%.o $(B)/tests/support/cuda_%.o $(B)/bench/cuda_%.o: \
	FLAGS += -DSL_CUDA -isystem $(CUDA_HOME)/include
endif
CLI_OBJ  := $(CLI_SRC:%.c=$(B)/%.o)
SRV_OBJ  := $(SRV_SRC:%.c=$(B)/%.o)
HELP_OBJ := $(HELP_SRC:%.c=$(B)/%.o)
# Tests may use any part of the program but its main.
CLI_PART := $(filter-out $(B)/cli/main.o,$(CLI_OBJ))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
TEST_BIN := $(TEST_SRC:tests/unit/%.c=$(B)/tests/%) $(FUZZ_SRC:tests/fuzz/%.c=$(B)/tests/%)
# Another machine's programs have no sanitizers.
ARM_TESTS = test_levels test_product
ARM_BIN   = $(ARM_TESTS:%=$(B)/tests/%_arm64)
ifneq ($(SAN),1)
TEST_BIN += $(ARM_BIN)
endif
TEST_RUN  = $(if $(T),$(foreach t,$(TEST_BIN),$(if $(findstring $(T),$(t)),$(t))),$(TEST_BIN))

ifneq ($(V),1)
quiet = @echo '  $(1)  $(2)';
endif

.PHONY: all lib examples install test torture bench check check-layers lengths fuzz fuzz-programs demo format clean
.DELETE_ON_ERROR:
.SECONDARY:

all: lib $(B)/sluice
lib: $(B)/libsluice.a $(B)/$(SO)

# What a suffix means. Scalar kernels: the vectoriser may not reorder sums, so -O3 changes no bit.
$(B)/%_scalar.o: FLAGS += -O3
# Files of one instruction set: compiled for it, entered only where kernels/isa.c allows.
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ifeq ($(MACHINE),x86_64)
$(B)/%_avx2.o: FLAGS += -O3 -mavx2 -mfma -mf16c
AVX512 = -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
$(B)/%_avx512.o: FLAGS += $(AVX512)
$(B)/%_avx512vnni.o: FLAGS += $(AVX512) -mavx512vnni
$(B)/%_amx.o: FLAGS += $(AVX512) -mavx512vnni -mamx-tile -mamx-int8
endif
NEON = -O3 -march=armv8.2-a+dotprod
ifeq ($(MACHINE),aarch64)
$(B)/%_neon.o: FLAGS += $(NEON)
endif
$(B)/cli/%.o: FLAGS += -Iserver
$(B)/tests/%.o: FLAGS += -Itests/support -Icli -Iserver
$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call quiet,CC,$<) $(CC) $(ALL_CFLAGS) $(FLAGS) -MMD -MP -c $< -o $@

$(B)/%.o: %.cu $(B)/flags
	@mkdir -p $(@D)
	$(call quiet,NVCC,$<) $(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# Rebuild everything when the flags change.
$(B)/flags: FORCE
	@mkdir -p $(B)
	@echo '$(CC) $(ALL_CFLAGS) $(NVCCFLAGS)' | cmp -s - $@ || \
		echo '$(CC) $(ALL_CFLAGS) $(NVCCFLAGS)' > $@

# Link anew when a source file has gone; a new one is newer anyway.
$(B)/sources: FORCE
	@mkdir -p $(B)
	@echo '$(sort $(LIB_SRC) $(CLI_SRC) $(SRV_SRC))' | cmp -s - $@ || echo '$(sort $(LIB_SRC) $(CLI_SRC) $(SRV_SRC))' > $@

# Phony by name: .SECONDARY makes a missing FORCE an intermediate file, which forces nothing.
.PHONY: FORCE
FORCE:

$(B)/libsluice.a: $(LIB_OBJ) $(B)/sources
	@rm -f $@
	$(call quiet,AR,$@) $(AR) rcs $@ $(LIB_OBJ)

# The shared library exports the functions of the header and nothing else.
$(B)/libsluice.map: include/sluice.h tools/exports.py
	@mkdir -p $(@D)
	python3 tools/exports.py include/sluice.h --map > $@

$(B)/$(SO): $(LIB_OBJ) $(B)/libsluice.map $(B)/sources
	$(call quiet,LD,$@) $(CC) -shared $(SANITIZE) $(NO_UNDEFINED) -Wl,-soname,$(SONAME) \
		-Wl,--version-script,$(B)/libsluice.map -o $@ $(LIB_OBJ) $(LDLIBS)
	@ln -sf $(SO) $(B)/$(SONAME)
	@ln -sf $(SONAME) $(B)/libsluice.so

$(B)/libserver.a: $(SRV_OBJ) $(B)/sources
	@rm -f $@
	$(call quiet,AR,$@) $(AR) rcs $@ $(SRV_OBJ)

$(B)/sluice: $(CLI_OBJ) $(B)/libserver.a $(B)/libsluice.a
	$(call quiet,LD,$@) $(CC) $(SANITIZE) -o $@ $^ $(CLI_LIBS) $(SERVER_LIBS) $(LDLIBS)

# ---- examples and installing ----

# Programs of users: C99, the public header and the shared library, nothing else.
EXAMPLES = $(patsubst %.c,$(B)/%,$(wildcard examples/*.c))
$(B)/examples/%: examples/%.c include/sluice.h $(B)/$(SO) $(B)/flags
	@mkdir -p $(@D)
	$(call quiet,CC,$<) $(CC) -std=c99 -pedantic -Wall -Wextra -Werror $(OPT) $(SANITIZE) $(CFLAGS) \
		-Iinclude -o $@ $< -L$(B) -lsluice -Wl,-rpath,'$$ORIGIN/..'
examples: $(EXAMPLES)

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
CMAKEDIR    = $(LIBDIR)/cmake/sluice
to = $(shell realpath -ms --relative-to='$(1)' '$(2)')
FILL = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@CUDA_LIBS@|$(CUDA_LIBS)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	-e 's|@UP@|$(call to,$(CMAKEDIR),$(PREFIX))|' -e 's|@LIB@|$(call to,$(PREFIX),$(LIBDIR))|' \
	-e 's|@INCLUDE@|$(call to,$(PREFIX),$(INCLUDEDIR))|' -e 's|@VERSION@|$(VERSION)|' \
	-e 's|@MINOR_VERSION@|$(basename $(VERSION))|' -e 's|@SONAME@|$(SONAME)|'

install: all
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(CMAKEDIR)' \
		'$(DESTDIR)$(INCLUDEDIR)'
	install -m 755 $(B)/sluice '$(DESTDIR)$(BINDIR)/sluice'
	install -m 644 include/sluice.h '$(DESTDIR)$(INCLUDEDIR)/sluice.h'
	install -m 644 $(B)/libsluice.a '$(DESTDIR)$(LIBDIR)/libsluice.a'
	install -m 755 $(B)/$(SO) '$(DESTDIR)$(LIBDIR)/$(SO)'
	ln -sf $(SO) '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(LIBDIR)/libsluice.so'
	$(FILL) packaging/sluice.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/sluice.pc'
	$(FILL) packaging/sluice-config.cmake.in > '$(DESTDIR)$(CMAKEDIR)/sluice-config.cmake'
	$(FILL) packaging/sluice-config-version.cmake.in \
		> '$(DESTDIR)$(CMAKEDIR)/sluice-config-version.cmake'

# ---- tests ----

$(B)/libcli.a: $(CLI_PART) $(B)/sources
	@rm -f $@
	$(call quiet,AR,$@) $(AR) rcs $@ $(CLI_PART)

$(B)/tests/%: $(B)/tests/unit/%.o $(HELP_OBJ) $(B)/libcli.a $(B)/libserver.a $(B)/libsluice.a
	@mkdir -p $(@D)
	$(call quiet,LD,$@) $(CC) $(SANITIZE) -o $@ $^ -lcmocka $(CLI_LIBS) $(SERVER_LIBS) $(LDLIBS)

# A fuzz target replays its corpus as a test; `make fuzz` links the same target with libFuzzer.
$(B)/tests/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/replay.o $(B)/tests/fuzz/fuzz.o \
		$(HELP_OBJ) $(B)/libserver.a $(B)/libsluice.a
	$(call quiet,LD,$@) $(CC) $(SANITIZE) -o $@ $^ -lcmocka $(SERVER_LIBS) $(LDLIBS)

# Large reference files are kept compressed; the small models share most of their bytes between
# containers, so they travel as one archive. Unpacked next to it once, for every build: under a
# lock, since builds with different B may run at the same time.
TEST_DATA = $(patsubst tests/data/%.xz,$(B)/testdata/%, \
	$(filter-out %.tar.xz,$(wildcard tests/data/*.xz))) tests/data/models/.unpacked
$(B)/testdata/%: tests/data/%.xz
	@mkdir -p $(@D)
	$(call quiet,XZ,$@) xz -dc $< > $@
tests/data/models/.unpacked: tests/data/models.tar.xz
	$(call quiet,TAR,$(@D)) flock $< sh -c \
		'[ $@ -nt $< ] || { tar -xJf $< -C tests/data && touch $@; }'

# The kernels of the other architecture, built by a cross compiler and run by an emulator where set-up
# has put both; they are tested without the rest of the library.
ARM_CC  ?= aarch64-linux-gnu-gcc
ARM_RUN ?= qemu-aarch64
ARM_SRC  = $(filter-out %_avx2.c %_avx512.c %_avx512vnni.c %_amx.c, \
	$(wildcard src/backend/cpu/kernels/*.c)) src/backend/cpu/pack.c \
	$(addprefix src/base/,clock.c cpuid.c err.c fpenv.c mem.c pool.c utf8.c) \
	$(addprefix src/format/,dtype.c dequant.c) tests/support/numbers.c tests/support/support.c \
	tests/arm64/cpus.c
ARM_OBJ  = $(ARM_SRC:%.c=$(B)/arm64/%.o)
$(B)/arm64/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call quiet,ARM_CC,$<) $(ARM_CC) $(STD) $(OPT) $(WARN) $(EXACT) $(INCLUDES) $(DEFINES) \
		-Itests/arm64 -Itests/support $(ARM_FLAGS) -MMD -MP -c $< -o $@
$(B)/arm64/%_scalar.o: ARM_FLAGS = -O3
$(B)/arm64/%_neon.o: ARM_FLAGS = $(NEON)
$(ARM_TESTS:%=$(B)/arm64/%): $(B)/arm64/%: $(B)/arm64/tests/unit/%.o $(ARM_OBJ)
	$(call quiet,LD,$@) $(ARM_CC) -static -o $@ $^ -lm -lpthread
has_arm = $(shell command -v $(ARM_CC) >/dev/null && command -v $(ARM_RUN) >/dev/null && echo yes)
ifeq ($(has_arm),yes)
$(ARM_BIN): $(B)/tests/%_arm64: $(B)/arm64/%
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nSL_SHORT_TESTS=1 exec %s %s\n' $(ARM_RUN) $< > $@ && chmod +x $@
else
$(ARM_BIN): $(B)/tests/%_arm64: FORCE
	@mkdir -p $(@D)
	@printf '#!/bin/sh\necho "skipped: %s and %s are needed"\necho "[  SKIPPED ] %s"\n' \
		$(ARM_CC) $(ARM_RUN) $* > $@ && chmod +x $@
endif

test: all examples $(TEST_DATA) $(TEST_RUN)
	SL_BUILD=$(B) tests/run.sh $(strip $(TEST_RUN))

# Every operation on states in random order: 1,000 schedules, some minutes.
torture: all $(TEST_DATA) $(B)/tests/test_torture
	SL_BUILD=$(B) SL_TORTURE=1000 $(B)/tests/test_torture

# Programs that measure; bench/README.md says what each prints.
$(B)/bench/%: $(B)/bench/%.o $(B)/libsluice.a
	@mkdir -p $(@D)
	$(call quiet,LD,$@) $(CC) $(SANITIZE) -o $@ $(filter %.o,$^) $(B)/libsluice.a $(LDLIBS)
bench: $(patsubst %.c,$(B)/%,$(filter-out $(if $(filter-out 1,$(CUDA)),bench/cuda_%), \
	$(wildcard bench/*.c))) $(patsubst %.cu,$(B)/%,$(if $(filter 1,$(CUDA)),$(wildcard bench/*.cu)))
$(B)/bench/cuda_%.o: FLAGS += -Itests/support
$(B)/bench/http_%.o: FLAGS += -Iserver
$(B)/bench/http_%: $(B)/bench/http_%.o $(B)/libserver.a $(B)/libsluice.a
	@mkdir -p $(@D)
	$(call quiet,LD,$@) $(CC) $(SANITIZE) -o $@ $^ $(SERVER_LIBS) $(LDLIBS)
$(B)/bench/cuda_attention: $(B)/tests/support/cuda_attention.o

check: check-layers
	SL_SHORT_TESTS=1 $(MAKE) B=$(B)/san SAN=1 OPT='-O1 -g' test

FUZZ_TIME ?= 60
FUZZ_RUN   = $(foreach t,$(FUZZ_SRC:tests/fuzz/fuzz_%.c=%),$(if $(findstring $(T),$(t)),$(t)))
fuzz:
	$(MAKE) B=$(B)/fuzz CC=clang OPT='-O1 -g' WARN= CFLAGS='-fsanitize=fuzzer-no-link' \
		SAN=1 fuzz-programs
	FUZZ_TIME=$(FUZZ_TIME) sh tests/fuzz/run.sh $(B)/fuzz $(FUZZ_RUN)

fuzz-programs: $(FUZZ_SRC:tests/fuzz/%.c=$(B)/%)
$(B)/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/fuzz.o $(B)/libserver.a $(B)/libsluice.a
	$(call quiet,LD,$@) $(CC) $(SANITIZE) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

check-layers:
	python3 tools/check_layers.py --self-test
	python3 tools/check_layers.py

lengths:
	python3 tools/check_length.py

demo: all
	SL_BUILD=$(B) sh tools/demo.sh

format:
	clang-format -i $(shell git ls-files '*.c' '*.h' | grep -v unicode_tables)

clean:
	rm -rf $(B)

-include $(shell [ -d $(B) ] && find $(B) -name '*.d' -not -path '$(B)/san/*' \
	-not -path '$(B)/fuzz/*')
