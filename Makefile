# What follows ## is what make help prints.

.DEFAULT_GOAL := help

GO ?= go

# The race detector needs a C compiler; go env reports 0 where there is none.
RACE := $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)

# pgrun is built, not run by go run: a SIGTERM to go run would not reach it.
PGRUN := .bin/pgrun
PGMATRIX := .bin/pgmatrix
DEMO := .bin/demo
BENCH := .bin/bench

# `make test PKG=./memory/...` tests a part.
PKG ?= ./...

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## */\1:/p' Makefile | awk -F: '{ printf "make %-12s %s\n", $$1, substr($$0, length($$1) + 2) }'

.PHONY: test
test: lint have-postgres ## everything that must be green: lint, all tests with -race, and the database tests in a second exec mode
ifeq ($(RACE),)
	@echo "no C compiler: the tests run without the race detector"
endif
	$(PGRUN) $(GO) test -vet=off $(RACE) $(PKG)
	WORKLEASE_EXEC_MODE=simple_protocol $(PGRUN) $(GO) test -vet=off $(RACE) -short -count=1 ./pgxbackend/... ./conformance/...

.PHONY: lint
lint: ## gofmt, go vet, staticcheck (pinned in .ci/tools.mod, which no user's build reads)
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt -w $$files"; exit 1; }
	$(GO) vet ./...
	$(GO) tool -modfile=.ci/tools.mod staticcheck ./...

.PHONY: test-matrix
test-matrix: $(PGRUN) $(PGMATRIX) node_modules/.done ## the database tests on PostgreSQL 12 to 18, and in all exec modes
	$(PGMATRIX) $(PGRUN) $(GO) test -vet=off -short -count=1 ./conformance/... ./pgxbackend/... ./migrations/...

# One package at a time: they measure time, and each has parallel tests of its own.
FAULTS := . ./internal/fault ./internal/tenure ./pgxbackend ./leader ./pool ./worker ./examples

.PHONY: test-faults
test-faults: have-postgres ## kills, freezes, cuts, lost replies, crashes and random ends, as long as it takes to trust them
	WORKLEASE_SOAK=1 $(PGRUN) $(GO) test -vet=off $(RACE) -count=1 -p 1 -timeout 90m $(FAULTS)

# How long each target of `make fuzz` runs.
FUZZTIME ?= 20s

# Which goroutine runs when makes coverage differ, and an input that cannot be minimized would
# otherwise be minimized for a minute. The end of the time may interrupt an input; go test then
# says "context deadline exceeded" and names none: that is no failure.
.PHONY: fuzz
fuzz: have-postgres ## every fuzz target for FUZZTIME (20s); what fails stays below testdata/fuzz, and in every make test
	@grep -ro --include='*_test.go' --exclude-dir=node_modules '^func Fuzz[A-Za-z]*' . | sort | \
	sed 's|/[^/]*:func | |' | while read -r dir target; do \
		echo "$$target of $$dir"; \
		$(PGRUN) $(GO) test -vet=off -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$dir </dev/null 2>&1 | tee .bin/fuzz.log; \
		grep -q '^ok' .bin/fuzz.log || \
			{ grep -q '^    context deadline exceeded$$' .bin/fuzz.log && ! grep -q 'Failing input' .bin/fuzz.log; } || exit 1; \
	done

.PHONY: deps
deps: $(PGRUN) ## install PostgreSQL if this machine has none: Debian's when root, otherwise npm packages below node_modules
	@MAKE='$(MAKE)' .ci/deps

# make test finds out first: installing is for machines that have nothing.
.PHONY: have-postgres
have-postgres: $(PGRUN)
	@test -n "$$DATABASE_URL" || $(PGRUN) >/dev/null 2>&1 || $(MAKE) deps

# Its flags are NAIVE=1, KEEP=1, WORKERS=n, KILLS=n, BATCH=n, SEED=n, DIR="tree tree".
.PHONY: demo
demo: have-postgres $(DEMO) ## half a minute of kills, freezes and handovers, and not a line lost or doubled (NAIVE=1: doubled)
	@$(DEMO) $(if $(NAIVE),-naive) $(if $(KEEP),-keep) $(if $(WORKERS),-workers $(WORKERS)) $(if $(KILLS),-kills $(KILLS)) \
		$(if $(BATCH),-batch $(BATCH)) $(if $(SEED),-seed $(SEED)) $(foreach dir,$(DIR),-dir $(dir))

# Its flags are ROWS=P1,P6, SHORT=1, OUT=file.md.
.PHONY: bench
bench: have-postgres $(BENCH) ## every promise about speed beside its yardstick, in a quarter of an hour (SHORT=1: about a minute)
	@$(BENCH) $(if $(ROWS),-rows $(ROWS)) $(if $(SHORT),-short) $(if $(OUT),-o $(OUT))

.PHONY: $(BENCH)
$(BENCH):
	@$(GO) build -o $@ ./bench

# Go knows best whether they are up to date.
.PHONY: $(PGRUN) $(PGMATRIX) $(DEMO)
$(PGRUN) $(PGMATRIX) $(DEMO):
	@$(GO) build -o $@ ./internal/cmd/$(@F)

# npm's own install scripts recreate the packages' symbolic links, but not every npm runs them
# unasked, so they are run here.
node_modules/.done: package-lock.json
	npm ci --ignore-scripts --no-audit --no-fund
	@for dir in node_modules/pg*; do (cd "$$dir" && node scripts/hydrate-symlinks.js) || exit 1; done
	@touch $@
