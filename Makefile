# Brim. `make run` and `make test` do everything on a fresh machine; `make help` lists the rest.
# Overrides: ARCH (gcc -march, default native), BUILD (output folder), NVCC, SAN (sanitizer flags),
# V=1 (show commands).

BUILD ?= build
ARCH  ?= native
# make has a CC and a CXX of its own, which ?= would keep.
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
NVCC  ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA  ?= $(patsubst %/bin/nvcc,%,$(NVCC))
SAN   ?=

WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
          -Werror=implicit-function-declaration -Wno-unused-parameter
CFLAGS := -std=gnu11 -O3 -g -march=$(ARCH) -fopenmp -fno-math-errno -fno-trapping-math -fPIC \
          $(WARN) -Isrc $(SAN)
STATIC := -l:libyaml.a -l:libjansson.a -l:libxxhash.a -l:libpcre2-8.a -l:libutf8proc.a \
          -l:libjpeg.a -l:libpng.a -l:libz.a -l:libzstd.a
# The web page and the terminal view are optional: where a library is missing, a file that says so stands in.
MHD    := $(wildcard $(shell $(CC) -print-file-name=libmicrohttpd.a))
CURSES := $(wildcard $(shell $(CC) -print-file-name=libncursesw.a))
STATIC += $(if $(MHD),-l:libmicrohttpd.a) $(if $(CURSES),-l:libncursesw.a -l:libtinfo.a)
# Libraries opened at run time must not find these instead of their own.
HIDE   := -Wl,--exclude-libs,libjpeg.a:libpng.a:libz.a:libzstd.a
LIBS   := $(STATIC) $(HIDE) -lgomp -ldl -lpthread -lm
# Video needs FFmpeg's headers; the libraries are opened at run time.
NO_AV  := $(shell printf '\#include <libavformat/avformat.h>\n\#include <libswscale/swscale.h>\n' | \
            $(CC) -E -x c - >/dev/null 2>&1 || echo 1)

NOT_BUILT := $(if $(MHD),src/watch/http_none.c,src/watch/http.c src/watch/http_tls.c) \
             $(if $(CURSES),src/watch/term_none.c,src/watch/term.c) \
             src/file/video_$(if $(NO_AV),ffmpeg,none).c
SRC    := $(filter-out $(NOT_BUILT),$(sort $(shell find src -name '*.c' -not -path 'src/dev/cuda/*' \
            -not -path 'src/comm/nccl/*' -not -name main.c)))
OBJ    := $(SRC:%.c=$(BUILD)/%.o)
LIB    := $(BUILD)/libbrim.a
BRIM   := $(BUILD)/brim
# What every program is linked with.
WHOLE  := -Wl,--whole-archive $(LIB) -Wl,--no-whole-archive $(LIBS)

CUSRC  := $(sort $(shell find src/dev/cuda src/comm/nccl src/env/cuda \
            -name '*.cu' -o -name '*.c' 2>/dev/null))
CUOBJ  := $(patsubst %,$(BUILD)/%.o,$(CUSRC))
CULIB  := $(BUILD)/libbrim_cuda.so
GENCODE ?= -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90
NVFLAGS := -O3 -std=c++17 -lineinfo $(GENCODE) -Xcompiler -fPIC,-Wall -Isrc --expt-relaxed-constexpr

EMULATED := $(BUILD)/tests/test_attn_tiles $(BUILD)/tests/test_own_gemm
TESTS  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/test_*.c))) $(EMULATED) \
          $(BUILD)/tests/test_env_lane
# Coroutines are nothing for sanitizers.
TESTS  := $(filter-out $(if $(SAN),%/test_plain_kernels),$(TESTS))
HELPERS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/verify_*.c)))
GPUTESTS := $(patsubst tests/gpu/%.c,$(BUILD)/tests/gpu/%,$(sort $(wildcard tests/gpu/*.c)))

Q := $(if $(V),,@)
.DEFAULT_GOAL := all

.PHONY: bench-cpu bench-own bench-env
.PHONY: all run test layers size asan fmt fmt-check help setup clean cuda tests golden \
        test-gpu gpu-tests gpu-suite sanitize-gpu asan-build test-long fuzz

all: $(BRIM) $(if $(NVCC),$(if $(CUSRC),$(CULIB)))

help:
	@echo "make            build build/brim (and the CUDA half when nvcc is there)"
	@echo "make run        install what is missing, build, train the quickstart, print a sample"
	@echo "make test       install what is missing, build, run every test that needs no GPU"
	@echo "make asan       the same tests under AddressSanitizer and UBSan"
	@echo "make test-gpu   every op and the whole model against the CPU; needs a GPU, as do"
	@echo "make gpu-suite | sanitize-gpu   with op tables and ratios to PyTorch; compute-sanitizer"
	@echo "make bench-cpu  every CPU op beside OpenBLAS"
	@echo "make bench-own  build build/bench_own, the own CUDA product alone"
	@echo "make bench-env  steps per second of the environments, MuJoCo beside a bare loop of the engine"
	@echo "make layers | size | fmt | fmt-check | golden | fuzz | test-long | clean"

setup:
	@tools/setup.sh

# The stamps keep the second `make run` from asking the package manager anything. The tests need more packages
# than the program.
$(BUILD)/.setup: tools/setup.sh
	@mkdir -p $(BUILD)
	@tools/setup.sh run
	@touch $@

$(BUILD)/.setup-test: tools/setup.sh
	@mkdir -p $(BUILD)
	@tools/setup.sh test
	@touch $@ $(BUILD)/.setup

# The CUDA half takes minutes to compile: only where there is a GPU to run it.
run: $(BUILD)/.setup
	@$(MAKE) --no-print-directory -j$$(nproc) $(if $(wildcard /dev/nvidiactl),all,$(BRIM))
	@tools/quickstart.sh $(BRIM)

test: $(BUILD)/.setup-test
	@$(MAKE) --no-print-directory -j$$(nproc) all tests
	@FUZZ_S=0 bash tests/test_fuzz.sh $(BUILD) || true # what does not build fails in the test
	@$(MAKE) --no-print-directory layers fmt-check
	@tools/run_tests.sh $(BUILD)

asan: asan-build
	@ASAN_OPTIONS=detect_leaks=1 tools/run_tests.sh $(BUILD)-asan

ASAN := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
asan-build: $(BUILD)/.setup-test
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=$(BUILD)-asan NVCC= SAN="$(ASAN)" all tests

# Ten times the kills, a fault at every call, the same under AddressSanitizer, and the long form of every test
# that has one (tools/test_long.sh). About an hour.
test-long: asan-build
	@$(MAKE) --no-print-directory -j$$(nproc) all tests
	@tools/test_long.sh $(BUILD) $(BUILD)-asan

tests: $(TESTS) $(HELPERS) $(BRIM) $(BUILD)/tests/toy/toy

# Needs a GPU. Built where nvcc is; the binaries run elsewhere.
test-gpu: $(BUILD)/.setup-test
	@$(MAKE) --no-print-directory -j$$(nproc) all gpu-tests $(BUILD)/tests/test_latent
	@tools/test_gpu.sh $(BUILD)

# A program looks for the CUDA half beside itself.
gpu-tests: $(GPUTESTS) $(HELPERS) $(BUILD)/tests/toy/toy $(CULIB)
	@for d in gpu toy; do ln -sf ../../libbrim_cuda.so $(BUILD)/tests/$$d/libbrim_cuda.so; done

# Tests, op table and two ratios to PyTorch, as JSON lines; under 8 minutes.
gpu-suite: $(BUILD)/.setup
	@$(MAKE) --no-print-directory -j$$(nproc) all gpu-tests
	@tools/gpu_suite.sh $(BUILD)

# compute-sanitizer: memcheck on a small model, racecheck on kernels with shared memory.
sanitize-gpu: $(BUILD)/.setup
	@$(MAKE) --no-print-directory -j$$(nproc) all gpu-tests
	@tools/sanitize_gpu.sh $(BUILD)

# FUZZ_S seconds for each reader, from the kept corpus; clang's libFuzzer.
FUZZ_S ?= 60
fuzz: $(BUILD)/.setup-test
	@tools/fuzz.sh $(BUILD) $(FUZZ_S)

# Every CPU op beside OpenBLAS's own products (needs libopenblas-dev).
bench-cpu: $(LIB)
	$(Q)$(CC) $(CFLAGS) -Itests -o $(BUILD)/bench_cpu_ops tests/bench_cpu_ops.c $(WHOLE) -lopenblas
	@$(BUILD)/bench_cpu_ops

# Environments through the vector layer, MuJoCo beside a bare loop of the engine (needs libmujoco-dev).
bench-env: $(LIB)
	$(Q)$(CC) $(CFLAGS) -o $(BUILD)/bench_env tests/bench_env.c $(WHOLE) -lmujoco
	@$(BUILD)/bench_env $(BENCH_ENV)

# The own CUDA product alone (tests/bench_own.cu says how to call it).
bench-own: $(addprefix $(BUILD)/,tests/bench_own.cu.o src/dev/cuda/k_gemm.cu.o src/dev/cuda/cuda_tma.c.o)
	$(Q)$(NVCC) -o $(BUILD)/bench_own $^
	@echo "built $(BUILD)/bench_own"

layers:
	@tools/layers.sh

size:
	@find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs wc -l | sort -rn | head -40

# One version of clang-format, the one .clang-format was written for: another breaks lines in other places.
FMT_MAJOR    := 14
FMT_FILES     = $(shell find src tests -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
CLANG_FORMAT ?= $(firstword $(shell command -v clang-format-$(FMT_MAJOR) clang-format))
FMT_IS_HERE   = $(if $(CLANG_FORMAT),$(findstring version $(FMT_MAJOR).,$(shell $(CLANG_FORMAT) --version)))
FMT_MISSING   = clang-format $(FMT_MAJOR) is not installed

fmt:
	@$(if $(FMT_IS_HERE),$(CLANG_FORMAT) -i $(FMT_FILES),echo "fmt: $(FMT_MISSING)" >&2; exit 1)

# Part of `make test`: fails where `make fmt` would change a file, or where a line has more than 110 columns.
fmt-check:
	@$(if $(FMT_IS_HERE),$(CLANG_FORMAT) --dry-run -Werror $(FMT_FILES), \
	  echo "fmt-check: clang-format skipped, $(FMT_MISSING)")
	@tools/columns.sh

# Needs torch and numpy (Debian: python3-torch python3-numpy). The files it makes are committed.
# PYTHON picks the interpreter.
PYTHON ?= python3
golden:
	@$(PYTHON) tools/golden.py
	@$(PYTHON) tools/golden_vit.py

clean:
	rm -rf $(BUILD) $(BUILD)-asan

$(LIB): $(OBJ)
	$(Q)rm -f $@ && ar rcs $@ $(OBJ)

# The CUDA half resolves base/ and dev/ symbols from the program, hence whole-archive and rdynamic.
$(BRIM): $(BUILD)/src/bin/main.o $(LIB)
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $< $(WHOLE)
	@echo "built $@"

# Only main.o knows version and commit, so that a new commit does not build everything anew.
VERSION := 0.1.0
COMMIT  := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(BUILD)/.version: FORCE
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = "$(VERSION) $(COMMIT)" ] || echo "$(VERSION) $(COMMIT)" > $@
FORCE:
$(BUILD)/src/bin/main.o: $(BUILD)/.version
$(BUILD)/src/bin/main.o: CFLAGS += -DBRIM_VERSION='"$(VERSION)"' -DBRIM_COMMIT='"$(COMMIT)"'

# What the program and its CUDA half must agree on: the version and the headers that both are compiled with.
DEV_HEADERS := src/base/*.h src/tensor/*.h src/plan/*.h src/dev/*.h
DEV_ID := $(VERSION)-$(shell cat $(DEV_HEADERS) | sha256sum | cut -c1-12)
$(BUILD)/.dev_id: FORCE
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = "$(DEV_ID)" ] || echo "$(DEV_ID)" > $@
$(BUILD)/src/dev/dev.o $(BUILD)/src/dev/cuda/cuda_dev.c.o: $(BUILD)/.dev_id
$(BUILD)/src/dev/dev.o $(BUILD)/src/dev/cuda/cuda_dev.c.o: CFLAGS += -DBRIM_DEV_ID='"$(DEV_ID)"'
# Pixels must not depend on whether the machine can multiply and add in one step.
$(addprefix $(BUILD)/src/,file/resize.o data/image_ops.o data/image_augment.o): CFLAGS += -ffp-contract=off
# What the web page has from npm, for all builds. Without npm the files are empty, and the page draws with a
# plotter of its own.
PAGE_FETCHED := build/page
$(PAGE_FETCHED)/uplot.js: tools/fetch_uplot.sh
	@tools/fetch_uplot.sh $(PAGE_FETCHED)
$(BUILD)/src/watch/assets.o: $(wildcard src/watch/page/*) $(PAGE_FETCHED)/uplot.js
$(BUILD)/src/watch/assets.o: CFLAGS += -DPAGE_FETCHED='"$(PAGE_FETCHED)"'

$(BUILD)/src/%.o: src/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# Environments add and multiply as Python does, one rounding each; template.c holds two files as they are.
$(BUILD)/src/env/%.o: CFLAGS += -ffp-contract=off
$(BUILD)/src/env/template.o: src/env/env.h tools/env_template.c

$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Itests -Itests/gpu -MMD -MP -MF $@.d -rdynamic -o $@ $< $(WHOLE) \
	  $(if $(findstring tests/gpu/,$@),,-lcmocka)

# The toy tenant (docs/tenant.md): all of Brim but its commands and the language model's task.
TOY    := $(addprefix $(BUILD)/tests/toy/,toy.o toy_recipe.o toy_source.o toy_teacher.o toy_ref.o)
TOYLIB := $(BUILD)/tests/toy/libhouse.a
$(BUILD)/tests/toy/%.o: tests/toy/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Itests -MMD -MP -c -o $@ $<
$(TOYLIB): $(OBJ)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $(filter-out $(BUILD)/src/task/lm%.o $(BUILD)/src/bin/%.o,$(OBJ))
$(BUILD)/tests/toy/toy: $(BUILD)/tests/toy/toy_main.o $(TOY) $(TOYLIB)
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $(filter %.o,$^) \
	  -Wl,--whole-archive $(TOYLIB) -Wl,--no-whole-archive $(LIBS)

$(BUILD)/tests/test_toy $(BUILD)/tests/gpu/test_gpu_toy: $(BUILD)/tests/%: tests/%.c $(TOY) $(TOYLIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Itests -Itests/gpu -Itests/toy -MMD -MP -MF $@.d -rdynamic -o $@ $< $(TOY) \
	  -Wl,--whole-archive $(TOYLIB) -Wl,--no-whole-archive $(LIBS) \
	  $(if $(findstring tests/gpu/,$@),,-lcmocka)

# CUDA kernels compiled for the CPU, on what tests/emulate has of Hopper. Its coroutines are nothing for
# sanitizers.
EMUOBJ := $(addprefix $(BUILD)/emulated/,tests/test_attn_tiles.cc.o src/dev/cuda/k_attn_tile_fwd.cu.o \
            src/dev/cuda/k_attn_tile_bwd.cu.o tests/test_own_gemm.cc.o src/dev/cuda/k_gemm.cu.o \
            src/dev/cuda/k_attn.cu.o src/dev/cuda/k_attn_decode.cu.o)
$(BUILD)/tests/test_attn_tiles: $(filter %tiles.cc.o %_tile_fwd.cu.o %_tile_bwd.cu.o,$(EMUOBJ))
$(BUILD)/tests/test_own_gemm: $(filter %gemm.cc.o %gemm.cu.o,$(EMUOBJ))
SIMPLE := $(filter %k_attn.cu.o %_decode.cu.o,$(EMUOBJ))
$(SIMPLE): EMUFLAGS := -fno-strict-aliasing -Wno-strict-aliasing
$(BUILD)/tests/test_attn_simple: tests/test_attn_simple.c $(LIB) $(SIMPLE)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Itests -MMD -MP -MF $@.d -rdynamic -o $@ $< $(SIMPLE) $(WHOLE) -lcmocka -lstdc++
$(EMULATED):
	@mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^)
$(BUILD)/emulated/%.o: %
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++17 -O2 -g -Wall -Wextra -Wno-unknown-pragmas $(EMUFLAGS) -Itests/emulate -Isrc \
	  -MMD -MP -c -o $@ -x c++ $<

# What the environments' kernel does per environment, compiled for the CPU.
$(BUILD)/tests/test_env_lane: tests/test_env_lane.cc $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++17 -O2 -g -Wall -Wextra -Wno-unused-parameter -ffp-contract=off -march=$(ARCH) \
	  -Isrc $(SAN) -MMD -MP -MF $@.d -o $@ $< $(WHOLE)

# Kernels that need nothing of Hopper, on the CPU as well (tests/emulate/plain).
PLAINOBJ := $(addprefix $(BUILD)/plain/,$(patsubst %,src/dev/cuda/k_%.cu.o,act embed few gather loss misc \
              muon patches policy quant rollout) tests/emulate/plain/launch.cc.o)
$(BUILD)/plain/%.o: %
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++17 -O2 -g -Wall -Wno-unknown-pragmas -Wno-sign-compare -Itests/emulate/plain \
	  -Isrc -MMD -MP -c -o $@ -x c++ $<
$(BUILD)/tests/test_plain_kernels: tests/test_plain_kernels.c $(LIB) $(PLAINOBJ)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Itests -Itests/gpu -MMD -MP -MF $@.d -rdynamic -o $@ $< $(PLAINOBJ) \
	  -Wl,--whole-archive $(LIB) -Wl,--no-whole-archive $(LIBS) -lstdc++

cuda: $(CULIB)

$(CULIB): $(CUOBJ)
	$(Q)$(NVCC) -shared -o $@ $(CUOBJ) -L$(CUDA)/lib -L$(CUDA)/lib64 -lcublasLt -ldl \
	  -Xlinker -rpath,'$$ORIGIN:$(CUDA)/lib64:$(CUDA)/lib'
	@echo "built $@"

$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# As for the same environments on the CPU: one rounding each.
$(BUILD)/src/env/cuda/%.cu.o: NVFLAGS += -fmad=false

# C files of the CUDA half (cuBLASLt, cuDNN, NCCL through their C APIs) are plain C.
$(BUILD)/src/dev/cuda/%.c.o: src/dev/cuda/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -I$(CUDA)/include -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(BUILD)/src/comm/nccl/%.c.o: src/comm/nccl/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -I$(CUDA)/include -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

-include $(OBJ:.o=.d) $(BUILD)/src/bin/main.d $(CUOBJ:.o=.d) $(EMUOBJ:.o=.d) $(PLAINOBJ:.o=.d) \
         $(TESTS:%=%.d) $(HELPERS:%=%.d) $(GPUTESTS:%=%.d) $(TOY:.o=.d) $(BUILD)/tests/toy/toy_main.d
