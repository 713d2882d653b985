# What the build tag cuda needs. The two variables are part of the key of Go's build cache, so every
# command uses them as they stand here: `eval "$(make -s cuda-env)"` sets them in a shell.

CUDA_CFLAGS  := -O2 -g -I$(CURDIR)/kernels/cuda/include
CUDA_LDFLAGS := -L$(CURDIR)/kernels/cuda/link
CUDA_GO       = CGO_CFLAGS="$(CUDA_CFLAGS)" CGO_LDFLAGS="$(CUDA_LDFLAGS)" $(GO)

.PHONY: build-cuda cuda-env kernels

build-cuda: ## compile engine and frontend with the CUDA backend into bin/; needs no driver and no toolkit
	@.ci/need go cc
	@$(CUDA_GO) build -tags cuda -o bin/ ./cmd/...

cuda-env:
	@echo 'export CGO_CFLAGS="$(CUDA_CFLAGS)" CGO_LDFLAGS="$(CUDA_LDFLAGS)"'

# The compiler comes from the package index that pip uses.
kernels: ## compile the CUDA kernels to PTX (kernels/cuda/ptx)
	@.ci/need go pip
	@$(GO) run ./kernels/cuda/gen .cache/cuda
