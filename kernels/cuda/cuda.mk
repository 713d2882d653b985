# What the build tag cuda needs. The two variables are part of the key of Go's build cache, so every
# command uses them as they stand here: `eval "$(make -s cuda-env)"` sets them in a shell.

CUDA_CFLAGS  := -O2 -g -I$(CURDIR)/kernels/cuda/include
CUDA_LDFLAGS := -L$(CURDIR)/kernels/cuda/link
CUDA_GO       = CGO_CFLAGS="$(CUDA_CFLAGS)" CGO_LDFLAGS="$(CUDA_LDFLAGS)" $(GO)

# Packages with files that the tag adds or removes. Others compile to the same and are not tested again;
# to engine/comm it only adds NCCL.
CUDA_PACKAGES = $(shell grep -rl --include='*.go' '^//go:build.*cuda' cmd engine kernels serve test | xargs -n1 dirname | sort -u | sed 's,^,./,' | grep -vx ./engine/comm)
# Those of them whose tests run on the emulator.
CUDA_EMULATED = $(shell grep -rl --include='*_test.go' '"tandem/kernels/cuda/emu"' $(CUDA_PACKAGES) | xargs -n1 dirname | sort -u)
# Tests of the CPU in the packages that compare it with devices: the tag changes nothing in them.
CPU_TESTS = ^($(shell grep -L '^//go:build' test/tinymodel/*_test.go test/parallel/*_test.go | xargs grep -ho '^func Test[A-Za-z0-9_]*' | cut -c6- | paste -sd'|'))$$

.PHONY: build-cuda test-cuda gpu-check gpu-report gpu-page cuda-env

build-cuda: ## compile engine and frontend with the CUDA backend into bin/; needs no driver and no toolkit
	@.ci/need go cc
	@$(CUDA_GO) build -tags cuda -o bin/ ./cmd/...

# The emulator finds a missing wait when streams run as late as they may, and a missing barrier when
# the threads of a block run in another order. Its variables are read by C, so Go must not cache.
test-cuda: ## the CUDA backend on an emulator of its own; needs a C++ compiler, no driver and no toolkit
	@.ci/need cc c++
	$(CUDA_GO) vet -tags cuda ./...
	TANDEM_EMU_STREAMS=eager TANDEM_EMU_ORDER=forward $(CUDA_GO) test -tags cuda -count=1 -skip '$(CPU_TESTS)' $(CUDA_PACKAGES)
	TANDEM_EMU_STREAMS=eager TANDEM_EMU_ORDER=forward $(CUDA_GO) test -tags cuda -count=1 -run NCCL ./engine/comm
	TANDEM_EMU_STREAMS=lazy TANDEM_EMU_ORDER=reverse $(CUDA_GO) test -tags cuda -count=1 -skip '$(CPU_TESTS)' $(CUDA_EMULATED)
	$(CUDA_GO) test -tags 'cuda e2e' -count=1 -run OnDevices ./test/e2e
	TANDEM_EMU_STREAMS=lazy TANDEM_EMU_ORDER=reverse $(CUDA_GO) test -tags cuda -count=1 -run NCCL ./engine/comm

# The folder needs no Go, compiler or network where it is carried to.
GPU_CHECK       ?= bin/gpu-check
GPU_CHECK_FLAGS ?= -trimpath -ldflags '-s -w'
GPU_TESTS       := kernels/cuda/cases engine/cuda/gpu engine/cuda/gemm test/tinymodel
gpu-check: ## one folder with the check of a real GPU: carry it there, run its run.sh
	@.ci/need go cc
	@rm -rf $(GPU_CHECK) && mkdir -p $(GPU_CHECK)/tests/gpu $(GPU_CHECK)/tests/gemm $(GPU_CHECK)/sources
	@$(CUDA_GO) build -tags cuda $(GPU_CHECK_FLAGS) -o $(GPU_CHECK)/ ./cmd/engine ./cmd/frontend ./test/gpucheck
	@for p in $(GPU_TESTS); do \
	  $(CUDA_GO) test -c -tags cuda $(GPU_CHECK_FLAGS) -o $(GPU_CHECK)/tests/$$(basename $$p).test ./$$p || exit 1; done
	@cp -r engine/cuda/gpu/testdata $(GPU_CHECK)/tests/gpu/
	@mkdir -p $(GPU_CHECK)/tests/tandem/test/tinymodel && cp -r test/tinymodel/testdata $(GPU_CHECK)/tests/tandem/test/tinymodel/
	@cp kernels/cuda/*.cu kernels/cuda/*.cuh $(GPU_CHECK)/sources/ && cp -r kernels/cuda/ptx $(GPU_CHECK)/
	@cp test/gpucheck/run.sh $(GPU_CHECK)/
	@echo "$(GPU_CHECK): carry it to the GPU machine, run ./run.sh there, bring gpu-check.jsonl back for make gpu-report"

gpu-report: gpu-page ## put the output of the check into docs/performance-gpu.md (FILE=gpu-check.jsonl)
	@$(GO) run ./test/gpucheck report -page docs/performance-gpu.md $(or $(FILE),gpu-check.jsonl)

gpu-page: ## put the compiler's figures of the kernels into docs/performance-gpu.md
	@$(GO) run ./test/gpucheck report -page docs/performance-gpu.md -ptxas kernels/cuda/ptx/ptxas.log

cuda-env:
	@echo 'export CGO_CFLAGS="$(CUDA_CFLAGS)" CGO_LDFLAGS="$(CUDA_LDFLAGS)"'
