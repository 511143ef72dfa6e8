# recon-dlq. `make help` explains every verb.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
CACHE    := $(CURDIR)/.cache
BIN      := bin/recon-dlq

# Built with the Go of this machine, once per version.
GOLANGCI_VERSION    := v2.15.0
GOLANGCI            := $(CACHE)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint
GOVULNCHECK_VERSION := v1.9.0
GOVULNCHECK         := $(CACHE)/govulncheck-$(GOVULNCHECK_VERSION)/govulncheck
export GOVULNDB     ?= https://vuln.go.dev

DEMO_FLAGS ?=
FUZZTIME   ?= 30s
RECORDS    ?= 100000
KILLS      ?= 10
FOR        ?=
NODES      ?= 1
CHAOS_FLAGS ?=
BENCH_FLAGS ?=
SEEDS      ?= 200
SEED       ?= 1
SIM_FLAGS  ?=
MUTANTS    ?=
# The tag lets the Kafka client's mutexes wait in virtual time, see test/sim.
SIM        := test -tags synctests -count=1 -run TestSimulation -timeout 60m
# One package at a time: several of them start brokers of their own, and their clocks are real.
TEST_FLAGS ?= -p 1 -timeout 25m

.PHONY: help
help: ## Explain the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/recon-dlq
	$(GO) build -trimpath -o $(BIN) ./cmd/recon-dlq

.PHONY: demo
demo: build ## Run the main job on an embedded broker (DEMO_FLAGS="--exit -o json")
	$(BIN) demo $(DEMO_FLAGS)

.PHONY: test
test: deps rules ## Test everything, Apache Kafka included; brings or names what is missing
	$(GO) vet ./...
	$(GO) test -race -run '^$$' ./... >/dev/null # compiles side by side
	REQUIRE_KAFKA=1 REQUIRE_POSTGRES=1 .ci/test -race $(TEST_FLAGS)
	SEEDS=20 $(GO) $(SIM) ./test/sim

# Not a verb of its own to remember: `make test` calls both.
.PHONY: deps
deps:
	@.ci/deps

.PHONY: rules
rules: deps
	promtool check config deploy/prometheus/prometheus.yml
	promtool test rules deploy/prometheus/tests/*.yml

.PHONY: lint
lint: $(GOLANGCI) ## Lint, plant forbidden imports and see them refused, look for known vulnerabilities
	$(GOLANGCI) config verify
	$(GOLANGCI) run ./...
	GOLANGCI_LINT=$(GOLANGCI) $(GO) test -count=1 ./test/lint
	@$(MAKE) --no-print-directory vulns

# The database is on the network. Without it nothing can be said, and that is said.
.PHONY: vulns
vulns:
	@if curl -sSfL --max-time 10 -o /dev/null "$(GOVULNDB)/index/db.json" 2>/dev/null; then \
	  $(MAKE) --no-print-directory $(GOVULNCHECK); $(GOVULNCHECK) ./...; \
	else \
	  echo "govulncheck: SKIPPED: no vulnerability database at $(GOVULNDB); set GOVULNDB to a copy that can be reached"; \
	fi

.PHONY: fuzz
fuzz: ## Run every fuzzer of the tree, FUZZTIME=30s each
	@found=0; \
	while IFS=: read -r file target; do \
	  found=1; echo "== $$target in $$(dirname $$file)"; \
	  $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file) </dev/null; \
	done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' --exclude-dir=.cache . | sed 's/:func /:/; s#^\./##' | sort); \
	[ $$found = 1 ] || { echo "no fuzzers found" >&2; exit 1; }

.PHONY: sim
sim: ## Simulate whole workers in virtual time with faults from a seed (SEEDS=200 SEED=1)
	SEEDS=$(SEEDS) SEED=$(SEED) $(GO) $(SIM) $(SIM_FLAGS) ./test/sim

.PHONY: mutants
mutants: ## Break the engine in one way after the other and see the quick suites go red for each (MUTANTS="name ...")
	$(GO) run ./test/mutants $(MUTANTS)

.PHONY: cases
cases: ## Run the faults that other systems' users met, each by its id
	$(GO) test -count=1 -run 'TestC[0-9]{3}' ./...

.PHONY: chaos
chaos: deps ## Hurt workers on Apache Kafka, then count the invariants (RECORDS=100000 KILLS=10, or FOR=10m; NODES=1|3 CHAOS_FLAGS=-help)
	$(GO) run ./test/chaos $(if $(FOR),-for $(FOR),-records $(RECORDS) -kills $(KILLS)) -nodes $(NODES) $(CHAOS_FLAGS)

# What is written is for whoever wants it in docs: see docs/benchmarks.md.
.PHONY: bench
bench: deps ## Measure the engine on Apache Kafka against loops written by hand (20 minutes; BENCH_FLAGS="-quick -only hop,stuck -reps 5 -nodes 3")
	@mkdir -p bin
	$(GO) run ./test/bench -save bin/bench.json $(BENCH_FLAGS)
	$(GO) run ./test/bench/chart bin/bench.json bin/bench.svg

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION), once (a minute or two)"
	GOBIN=$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

$(GOVULNCHECK):
	GOBIN=$(@D) $(GO) install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
