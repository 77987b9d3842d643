# Tessera. `make help` lists the targets; README.md says what the packages are called.
VERSION  = 0.1.0
SOVERSION = 0
BUILD   ?= build
CC      ?= gcc
OBJCOPY ?= objcopy
NM      ?= nm
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
OPT     ?= -O2 -g
WERROR  ?=
V       ?= 0
ifeq ($(V),0)
SAY = @printf '  %-4s %s\n'
Q = @
else
SAY = @:
endif
SAN     ?=

WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wconversion $(WERROR)
ALL_CFLAGS   = -std=c11 $(OPT) $(WARN) -ffp-contract=off -fvisibility=hidden -fPIC -pthread $(SAN) $(EXTRA) $(CFLAGS)
ALL_CPPFLAGS = -D_GNU_SOURCE -Ilib -Ilib/base -Iformats -Ikernels -MMD -MP $(CPPFLAGS)
ALL_LDFLAGS  = -pthread $(SAN) $(LDFLAGS)
# What libtessera needs, and what everything needs.
CORE_LIBS = -lzstd -lxxhash -lpcre2-8 -lutf8proc -ljansson -lm -pthread
LIBS      = $(CORE_LIBS)

# core: what runs a model (libtessera). all: also the readers of other formats, for convert-hf and the tests.
CORE_SRC := $(wildcard lib/base/*.c lib/*.c kernels/*.c kernels/cpu/*.c formats/container*.c formats/ct_*.c)
ALL_SRC  := $(CORE_SRC) $(filter-out $(CORE_SRC),$(wildcard formats/*.c))
# A tool is tools/NAME-NAME.c; tools/FIRST_*.c are its parts, tools/cli.c belongs to all.
TOOLS    := $(patsubst tools/%.c,%,$(wildcard tools/*-*.c))
TESTS    := $(patsubst tests/%.c,%,$(filter-out tests/t_cuda_%,$(wildcard tests/t_*.c)))
EXAMPLES := $(patsubst examples/%.c,%,$(wildcard examples/*.c))
SCRIPTS  := $(wildcard tests/cli_*.sh tests/check_*.sh)
PUBLIC_TOOLS = run-model bench-model serve-model
# The public interface needs all of these; while one is missing only what needs less is built.
ifeq ($(and $(wildcard lib/api.c),$(wildcard formats/container_read.c),$(wildcard lib/tok_vocab.c),$(wildcard lib/chat.c)),)
TOOLS    := $(filter-out $(PUBLIC_TOOLS),$(TOOLS))
EXAMPLES :=
else
LIBRARIES = $(BUILD)/libtessera.a $(BUILD)/libtessera.so
endif

.DEFAULT_GOAL := all
obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
include cuda.mk
CORE_OBJ  = $(call obj,$(CORE_SRC)) $(CU_OBJ)
FULL_LIB  = $(BUILD)/libtessera-all.a
SO_FILE   = libtessera.so.$(VERSION)
SO_NAME   = libtessera.so.$(SOVERSION)

.PHONY: all lib tools test unit test-programs asan tsan valgrind fuzz bench install uninstall format help clean FORCE
.DELETE_ON_ERROR:
.SECONDARY:
.SECONDEXPANSION:

all: lib tools
lib: $(LIBRARIES) $(FULL_LIB)
tools: $(TOOLS:%=$(BUILD)/bin/%)

# Objects are built anew when the compiler or its flags change.
FLAGS_NOW = $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' > $@

$(BUILD)/obj/kernels/cpu/avx2%.o: private EXTRA = -mavx2 -mfma -mf16c
$(BUILD)/obj/kernels/cpu/avxvnni%.o: private EXTRA = -mavx2 -mfma -mf16c -mavxvnni
$(BUILD)/obj/kernels/cpu/avx512%.o: private EXTRA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
$(BUILD)/obj/kernels/cpu/avx512vnni%.o: private EXTRA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c
$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) CC '$<'
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@

# Every object, for convert-hf, inspect-model and the tests.
$(FULL_LIB): $$(call obj,$$(ALL_SRC)) $$(CU_OBJ)
	$(SAY) AR '$@'
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# The public library: one object whose only global symbols are tess_*.
$(BUILD)/obj/tessera.o: $(CORE_OBJ)
	$(SAY) LD '$@'
	$(Q)$(CC) -r -nostdlib -o $@ $^
	$(Q)$(OBJCOPY) --wildcard --keep-global-symbol='tess_*' $@
$(BUILD)/libtessera.a: $(BUILD)/obj/tessera.o
	$(SAY) AR '$@'
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(BUILD)/$(SO_FILE): $(CORE_OBJ)
	$(SAY) LINK '$@'
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(SO_NAME) $(if $(SAN),,-Wl,-z,defs) -o $@ $^ $(CORE_LIBS)
$(BUILD)/libtessera.so: $(BUILD)/$(SO_FILE)
	$(Q)ln -sf $(SO_FILE) $(BUILD)/$(SO_NAME)
	$(Q)ln -sf $(SO_NAME) $@

# Objects of tool $(1): its main file, tools/<first word>_*.c and cli.c.
tool_obj = $(call obj,tools/$(1).c $(wildcard tools/$(firstword $(subst -, ,$(1)))_*.c) $(wildcard tools/cli.c))
$(BUILD)/bin/%: $$(call tool_obj,$$*) $$(if $$(filter $$*,$$(PUBLIC_TOOLS)),$(BUILD)/libtessera.a,$(FULL_LIB))
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/examples/%: $(BUILD)/obj/examples/%.o $(BUILD)/libtessera.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS)

# ---- tests ----
$(BUILD)/tests/t_%: $(BUILD)/obj/tests/t_%.o $(FULL_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -lcmocka $(LIBS)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -ljansson -lzstd -lm
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(FULL_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer $^ -o $@ $(LIBS)

# Tests of kernels again, with those of instruction sets that this CPU may lack compiled from SIMDe's functions (tests/simde), which
# stand before the library's own.
SIMDE_DIR  ?= /usr/include
SIMDE_SRC  := $(if $(wildcard $(SIMDE_DIR)/simde/x86/avx512/dpbusd.h),$(wildcard kernels/cpu/avx512*.c kernels/cpu/avxvnni*.c))
SIMDE_OBJ   = $(SIMDE_SRC:%.c=$(BUILD)/simde/%.o) $(BUILD)/obj/tests/simde/tables.o
SIMDE_TESTS = t_ops_simde t_attn_simde
$(BUILD)/obj/tests/simde/tables.o: private EXTRA = $(if $(SIMDE_SRC),-DHAVE_SIMDE)
$(BUILD)/obj/tests/simde/tables.o: $(BUILD)/simde/sources
# Built anew also when the package comes or goes.
$(BUILD)/simde/sources: FORCE
	@mkdir -p $(@D)
	@echo '$(SIMDE_SRC)' | cmp -s - $@ || echo '$(SIMDE_SRC)' > $@
$(BUILD)/simde/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) SIMD '$<'
	$(Q)$(CC) $(ALL_CPPFLAGS) -isystem $(SIMDE_DIR) $(ALL_CFLAGS) -mavx2 -mfma -mf16c -Wno-psabi -include tests/simde/avx512.h -c $< -o $@
$(BUILD)/tests/t_%_simde: $(BUILD)/obj/tests/t_%.o $$(SIMDE_OBJ) $(FULL_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -lcmocka $(LIBS)

TEST_PROGRAMS = $(TESTS:%=$(BUILD)/tests/%) $(SIMDE_TESTS:%=$(BUILD)/tests/%)
HELPERS       = $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out tests/t_%,$(wildcard tests/*.c)))
RUN_TESTS     = BUILD='$(BUILD)' CC='$(CC)' NM='$(NM)' bash tests/run.sh
test-programs: $(TEST_PROGRAMS) $(HELPERS) $(GPU_PROGRAMS)
test: all test-programs $(EXAMPLES:%=$(BUILD)/examples/%) $(CUEMU_SHORT) $(CUEMU_DRY)
	@bash tools/fetch-smollm2.sh '$(BUILD)/smollm2' >$(BUILD)/fetch.log 2>&1 || true # without it some tests say skip
	@$(RUN_TESTS) $(TEST_PROGRAMS) $(CUEMU_SHORT) $(SCRIPTS)
unit: tools $(TEST_PROGRAMS)
	@$(RUN_TESTS) $(TEST_PROGRAMS)

ASAN = BUILD=$(BUILD)/asan SAN='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' OPT='-O1 -g'
TSAN = BUILD=$(BUILD)/tsan SAN='-fsanitize=thread' OPT='-O1 -g'
GOAL ?= unit
asan:
	+$(MAKE) $(ASAN) $(GOAL)
tsan:
	+$(MAKE) $(TSAN) $(GOAL)
valgrind: tools $(TEST_PROGRAMS)
	@TEST_WRAPPER='valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --suppressions=tests/valgrind.supp' $(RUN_TESTS) $(TEST_PROGRAMS)
FUZZERS  = $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60
fuzz:
	+$(MAKE) BUILD=$(BUILD)/fuzz CC=clang SAN='-fsanitize=address,undefined,fuzzer-no-link' OPT='-O1 -g' run-fuzzers
.PHONY: run-fuzzers
run-fuzzers: $(FUZZERS:%=$(BUILD)/fuzz/%)
	@for f in $(FUZZERS); do mkdir -p $(BUILD)/corpus/$$f; \
	  $(BUILD)/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(BUILD)/ $(BUILD)/corpus/$$f \
	  $$(ls -d tests/fuzz/corpus/$$f 2>/dev/null) || exit 1; done

# ---- measuring ----
BENCH_MODEL   ?= $(BUILD)/smollm2/smollm2.tess
BENCH_OPTIONS ?= -p 512 -n 64 -d 0,1024 -r 5
$(BUILD)/smollm2/smollm2.tess: | $(BUILD)/bin/convert-hf
	$(Q)tools/fetch-smollm2.sh $(@D)
	$(Q)$(BUILD)/bin/convert-hf $(@D)/SmolLM2-135M-Instruct.Q4_1.gguf -o $@ --type bf16 --force
bench: $(BUILD)/bin/bench-model $(BENCH_MODEL)
	@$(BUILD)/bin/bench-model -m $(BENCH_MODEL) $(BENCH_OPTIONS)

# ---- installing ----
INSTALL = install
MAN     = $(wildcard docs/*.1)
install: all
	$(INSTALL) -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(PREFIX)/share/man/man1'
	$(INSTALL) -m 755 $(TOOLS:%=$(BUILD)/bin/%) '$(DESTDIR)$(PREFIX)/bin'
	$(INSTALL) -m 644 lib/tessera.h '$(DESTDIR)$(PREFIX)/include'
	$(INSTALL) -m 644 $(BUILD)/libtessera.a '$(DESTDIR)$(LIBDIR)'
	$(INSTALL) -m 755 $(BUILD)/$(SO_FILE) '$(DESTDIR)$(LIBDIR)'
	ln -sf $(SO_FILE) '$(DESTDIR)$(LIBDIR)/$(SO_NAME)'
	ln -sf $(SO_NAME) '$(DESTDIR)$(LIBDIR)/libtessera.so'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PRIVATE_LIBS@|$(CORE_LIBS)|' lib/tessera.pc.in > $(BUILD)/tessera.pc
	$(INSTALL) -m 644 $(BUILD)/tessera.pc '$(DESTDIR)$(LIBDIR)/pkgconfig'
	$(if $(MAN),$(INSTALL) -m 644 $(MAN) '$(DESTDIR)$(PREFIX)/share/man/man1')
uninstall:
	rm -f $(TOOLS:%='$(DESTDIR)$(PREFIX)/bin/%') $(MAN:docs/%='$(DESTDIR)$(PREFIX)/share/man/man1/%')
	rm -f '$(DESTDIR)$(PREFIX)/include/tessera.h' '$(DESTDIR)$(LIBDIR)/pkgconfig/tessera.pc'
	rm -f '$(DESTDIR)$(LIBDIR)/libtessera.a' '$(DESTDIR)$(LIBDIR)/$(SO_FILE)' '$(DESTDIR)$(LIBDIR)/$(SO_NAME)' '$(DESTDIR)$(LIBDIR)/libtessera.so'

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i
clean:
	rm -rf '$(BUILD)'
help:
	@echo 'make            libraries and commands, in $(BUILD)/ and $(BUILD)/bin'
	@echo 'make test       all tests; last line: N passed, N failed'
	@echo 'make test-cuemu   the CUDA kernels and what runs them, on the CPU (SEEDS=n); make cuemu builds the commands so'
	@echo 'make unit       the test programs alone'
	@echo 'make asan       unit tests under AddressSanitizer and UBSan   make tsan      under ThreadSanitizer (GOAL=test: all tests)'
	@echo 'make valgrind   unit tests under valgrind                     make fuzz      every fuzzer for FUZZ_SECONDS=60'
	@echo 'make bench      speed of SmolLM2, or of BENCH_MODEL; BENCH_OPTIONS=$(BENCH_OPTIONS)'
	@echo 'make install    to PREFIX=/usr/local (DESTDIR, LIBDIR); make uninstall'
	@echo 'make format     clang-format over all sources                 make clean'
	@echo 'CUDA: CUDA=0 (no nvcc), CUDA_HOME=$(CUDA_HOME), CUDA_ARCHS="$(CUDA_ARCHS)"'
	@echo 'Variables: CC, OPT ($(OPT)), WERROR=-Werror, SAN, CFLAGS, CPPFLAGS, LDFLAGS, BUILD, V=1 (print commands)'

-include $(shell find $(BUILD)/obj $(BUILD)/simde -name '*.d' 2>/dev/null)
