# Tessera. `make help` lists the targets.
BUILD   ?= build
CC      ?= gcc
PREFIX  ?= /usr/local
OPT     ?= -O2 -g
WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wconversion
CFLAGS  += -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -ffp-contract=off -fvisibility=hidden -fPIC -pthread $(SAN) $(EXTRA)
CPPFLAGS+= -Ilib -Ilib/base -Iformats -Ikernels -MMD -MP
LDLIBS   = -lzstd -lxxhash -lpcre2-8 -lutf8proc -ljansson -lm -pthread
LDFLAGS += $(SAN)

BASE_SRC   = $(wildcard lib/base/*.c)
LIB_SRC    = $(BASE_SRC) $(wildcard lib/*.c) $(wildcard formats/*.c) $(wildcard kernels/cpu/*.c) kernels/cuda_stub.c
LIB_OBJ    = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(LIB_SRC)))
TOOLS      = $(patsubst tools/%.c,%,$(wildcard tools/*-*.c))
TOOL_AUX   = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(wildcard tools/*-*.c),$(wildcard tools/*.c)))
TESTS      = $(patsubst tests/%.c,%,$(wildcard tests/t_*.c))
STATIC_ALL = $(BUILD)/libtessera-all.a

.PHONY: all test help clean
all: $(TOOLS:%=$(BUILD)/bin/%)

$(BUILD)/obj/kernels/cpu/avx2.o: EXTRA = -mavx2 -mfma -mf16c
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(STATIC_ALL): $(LIB_OBJ)
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^
$(BUILD)/bin/%: $(BUILD)/obj/tools/%.o $(TOOL_AUX) $(STATIC_ALL)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(STATIC_ALL)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ -lcmocka $(LDLIBS)
clean:
	rm -rf $(BUILD)
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
.SECONDARY:
