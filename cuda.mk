# cuda.mk - the CUDA part of the Makefile: kernels/cuda with nvcc, and the same sources on the CPU (tests/cuemu).
#
#   make                   takes nvcc when it is found (CUDA=0: not); kernels/cuda_stub.c stands in otherwise
#   make cuemu             build/cuemu/bin/: the commands, with virtual devices     (needs no toolkit and no GPU)
#   make test-cuemu        their tests, on the fast build and, where clang is, on the checked one (SEEDS=n); `make test` runs
#                          the shorter ones (CUEMU_SHORT)
.SECONDEXPANSION:
CUDA       ?= 1
CUDA_HOME  ?= /usr/local/cuda
CUDA_ARCHS ?= 75 80 86 89 90
CU_SRC     := $(wildcard kernels/cuda/*.cu)
# The table of operations decides: without it there is nothing to run on a device yet.
CU_TABLE   := $(shell grep -ls '^const op_cuda_table \*op_cuda_get' $(CU_SRC))

# ---- nvcc ----
ifneq ($(CUDA),0)
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard $(CUDA_HOME)/bin/nvcc))
endif
NVCC_ROOT := $(if $(NVCC),$(abspath $(dir $(realpath $(NVCC)))..))
CUDART    := $(firstword $(wildcard $(NVCC_ROOT)/lib64/libcudart_static.a $(NVCC_ROOT)/targets/x86_64-linux/lib/libcudart_static.a \
               $(NVCC_ROOT)/lib/libcudart_static.a))
CU_OBJ    := $(if $(and $(NVCC),$(CUDART),$(CU_TABLE)),$(CU_SRC:%.cu=$(BUILD)/obj/%.o))
ifneq ($(CU_OBJ),)
CORE_SRC  := $(filter-out kernels/cuda_stub.c,$(CORE_SRC))
ALL_SRC   := $(filter-out kernels/cuda_stub.c,$(ALL_SRC))
CORE_LIBS += $(CUDART) -ldl -lrt
endif
comma     := ,
NVCC_LAST := $(lastword $(CUDA_ARCHS))
NVCC_GEN   = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
             -gencode arch=compute_$(NVCC_LAST)$(comma)code=compute_$(NVCC_LAST)
NVCC_HOST  = -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off,-Wall,-Wextra,-Wshadow,-Wconversion
NVCC_FLAGS = -std=c++17 -O3 -fmad=false -Werror all-warnings -Xcompiler $(NVCC_HOST) $(NVCC_GEN) -Ikernels -Ikernels/cuda -Ilib -Ilib/base

$(BUILD)/nvcc-flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCC_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS)' > $@
# wgmma is in no architecture but sm_90a, and what is built for that runs on 9.0 alone.
$(BUILD)/obj/kernels/cuda/gemm_wide.o: private NVCC_GEN = $(if $(filter 90,$(CUDA_ARCHS)),-gencode arch=compute_90a$(comma)code=sm_90a,-gencode arch=compute_$(NVCC_LAST)$(comma)code=sm_$(NVCC_LAST))
$(BUILD)/obj/%.o: %.cu $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(SAY) NVCC '$<'
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# ---- the emulator: C objects are those of the library; kernels, and tests that have some, are compiled as C++ ----
CXX       ?= g++
CLANGXX   ?= $(shell command -v clang++ || command -v clang)
OBJCOPY   ?= objcopy
CUEMU      = $(BUILD)/cuemu
# The toolkit's own headers, or the little that is needed of them.
CUEMU_SDK := $(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime.h) tests/cuemu/notk/cuda_runtime.h)
CUEMU_CPU := $(if $(shell grep -m1 -w fma /proc/cpuinfo 2>/dev/null | grep -w avx2 | grep -w f16c),-mavx2 -mfma -mf16c)
CUEMU_INC  = -D_GNU_SOURCE -DTESS_CUEMU -Itests/cuemu -Itests -Ikernels -Ikernels/cuda -Ilib -Ilib/base -isystem $(dir $(CUEMU_SDK)) -MMD -MP
CUEMU_CXX  = -x c++ -std=gnu++17 -g $(CUEMU_CPU) -ffp-contract=off -fno-strict-aliasing -fstack-clash-protection -pthread \
             -Wall -Wextra -Wshadow -Wconversion -Wno-unknown-pragmas -Wframe-larger-than=32768 $(WERROR)
CUEMU_FAST = -O2
# The checked build: clang calls a function for every load and store of a kernel; those functions are in check.cc. What clang makes
# plain calls of memcpy is renamed, so that it is seen too.
CUEMU_CHK  = -O2 -fsanitize=thread -fno-vectorize -fno-slp-vectorize -mllvm -tsan-instrument-func-entry-exit=0 \
             -mllvm -tsan-compound-read-before-write=1 -Wno-sign-conversion -Wno-pass-failed
CUEMU_SEEN = $(foreach f,memcpy memmove memset,--redefine-sym $f=cuemu_$f)
CHECKED   := $(if $(CLANGXX),$(shell echo 'float f(float *x) { return *x; }' | $(CLANGXX) -x c++ $(CUEMU_CHK) -c - -o /dev/null 2>/dev/null && echo 1))
CUEMU_RT  := $(wildcard tests/cuemu/*.cc)
CUEMU_RT  := $(filter-out tests/cuemu/t_%,$(CUEMU_RT))
CUEMU_T   := $(wildcard tests/cuemu/t_*.cc tests/t_cuda_*.c)
CUEMU_C    = $(filter-out $(BUILD)/obj/kernels/cuda_stub.o,$(call obj,$(ALL_SRC)))
CUEMU_LIB  = $(filter-out $(CUDART),$(LIBS)) -lstdc++

$(CUEMU)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CLANGXX) $(CUEMU_INC) $(CUEMU_CXX) $(CUEMU_CHK)' | cmp -s - $@ || echo '$(CXX) $(CLANGXX) $(CUEMU_INC) $(CUEMU_CXX) $(CUEMU_CHK)' > $@
define cuemu_cxx
	@mkdir -p $(@D)
	$(SAY) EMU '$<'
	$(Q)$(CXX) $(CUEMU_INC) $(CUEMU_CXX) $(CUEMU_FAST) -c $< -o $@
endef
$(CUEMU)/obj/%.o: %.cu $(CUEMU)/flags
	$(cuemu_cxx)
$(CUEMU)/obj/%.o: %.cc $(CUEMU)/flags
	$(cuemu_cxx)
define cuemu_checked_cxx
	@mkdir -p $(@D)
	$(SAY) CHECKED '$<'
	$(Q)$(CLANGXX) $(CUEMU_INC) -MT $@ $(CUEMU_CXX) $(CUEMU_CHK) -c $< -o $@.tmp && $(OBJCOPY) $(CUEMU_SEEN) $@.tmp $@ && rm $@.tmp
endef
$(CUEMU)/checked/%.o: %.cu $(CUEMU)/flags
	$(cuemu_checked_cxx)
$(CUEMU)/checked/%.o: %.cc $(CUEMU)/flags
	$(cuemu_checked_cxx)

cuemu_rt   = $(patsubst %.cc,$(CUEMU)/obj/%.o,$(filter-out $1,$(CUEMU_RT)))
$(CUEMU)/libcuemu.a: $(CUEMU_C) $(CU_SRC:%.cu=$(CUEMU)/obj/%.o) $(call cuemu_rt,tests/cuemu/check%)
	$(SAY) AR '$@'
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(CUEMU)/libchecked.a: $(CUEMU_C) $(CU_SRC:%.cu=$(CUEMU)/checked/%.o) $(call cuemu_rt,tests/cuemu/nocheck.cc)
	$(SAY) AR '$@'
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(CUEMU)/tests/t_%: $(CUEMU)/obj/tests/cuemu/t_%.o $(CUEMU)/libcuemu.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -lcmocka $(CUEMU_LIB)
$(CUEMU)/tests/t_cuda_%: $(BUILD)/obj/tests/t_cuda_%.o $(CUEMU)/libcuemu.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -lcmocka $(CUEMU_LIB)
$(CUEMU)/bin/%: $$(call tool_obj,$$*) $(CUEMU)/libcuemu.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ $(CUEMU_LIB)
# The same programs, checked; they have names of their own for the logs.
$(CUEMU)/tests/t_%.checked: $(CUEMU)/checked/tests/cuemu/t_%.o $(CUEMU)/libchecked.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -lcmocka $(CUEMU_LIB)
$(CUEMU)/tests/t_cuda_%.checked: $(BUILD)/obj/tests/t_cuda_%.o $(CUEMU)/libchecked.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ -lcmocka $(CUEMU_LIB)
$(CUEMU)/bin/%.checked: $$(call tool_obj,$$*) $(CUEMU)/libchecked.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ $(CUEMU_LIB)

# ---- tests/gpu: speeds of a device, with nvcc for tests/gpu_check.sh and on the emulator for its dry form ----
GPU_BENCH_C = $(call obj,$(wildcard tests/gpu/*.c))
# Of the programs for virtual devices those that run on real ones as well; and the bench. Built where nvcc is.
GPU_PROGRAMS = $(if $(CU_OBJ),$(BUILD)/tests/t_cuda_ops $(BUILD)/tests/t_cuda_attn $(BUILD)/tests/t_cuda_moe $(BUILD)/tests/t_cuda_best $(BUILD)/tests/t_cuda_gemm $(BUILD)/tests/gpu_bench)
$(BUILD)/tests/gpu_bench: $(GPU_BENCH_C) $(BUILD)/obj/tests/gpu/probe.o $$(FULL_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS)
$(CUEMU)/tests/gpu_bench: $(GPU_BENCH_C) $(CUEMU)/obj/tests/gpu/probe.o $(CUEMU)/libcuemu.a
	@mkdir -p $(@D)
	$(SAY) LINK '$@'
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@ $(CUEMU_LIB)

CUEMU_PROGRAMS = $(patsubst %,$(CUEMU)/tests/%,$(basename $(notdir $(filter-out %_races.cc,$(CUEMU_T)))))
ifneq ($(CHECKED),)
CUEMU_PROGRAMS += $(patsubst %,$(CUEMU)/tests/%.checked,$(basename $(notdir $(CUEMU_T))))
CUEMU_TOOLS     = $(CUEMU)/bin/run-model.checked
endif
CUEMU_SCRIPTS := tests/cuemu/reading.sh tests/cuemu/models.sh
# What `make test` has of them: all but whole models and the slowest checked program.
CUEMU_SHORT    = $(if $(SAN),,$(if $(shell command -v $(firstword $(CXX))),$(filter-out %/t_cuda_attn.checked,$(CUEMU_PROGRAMS)) tests/cuemu/reading.sh))
# What tests/cli_gpu_check.sh runs.
CUEMU_DRY      = $(if $(SAN),,$(if $(shell command -v $(firstword $(CXX))),$(CUEMU)/bin/run-model $(CUEMU)/tests/gpu_bench))
.PHONY: cuemu test-cuemu
# Of one program or script, in seconds. A seed of all models takes models.sh about 20 s of two cores.
test-cuemu: TEST_TIMEOUT ?= $(if $(SEEDS),14400,900)
cuemu: $(TOOLS:%=$(CUEMU)/bin/%) $(CUEMU_TOOLS) $(CUEMU_PROGRAMS)
test-cuemu: cuemu $$(HELPERS)
	@ln -sfn ../tests $(CUEMU)/helpers
	@BUILD='$(CUEMU)' CC='$(CC)' NM='$(NM)' SEEDS='$(SEEDS)' TEST_TIMEOUT='$(TEST_TIMEOUT)' bash tests/run.sh $(CUEMU_PROGRAMS) $(CUEMU_SCRIPTS)
-include $(shell find $(CUEMU) -name '*.d' 2>/dev/null)
