# Every target first installs what it needs; `make` alone lists the targets.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
RACE := $(addprefix ./internal/,app apply ingest rebuild replay runs spool events lifecycle postgres processor providerapi objectscan reconcile refetch stream telemetry testkit versioning adminauth admin effects/jobs/runner effects/jobs/windows notify verify)
TIMEOUT ?= 25m
ARGS ?=
EACH ?= 5s
# How many packages are tested at a time: three on two processors, because most tests also wait.
PACKAGES ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN || echo 2); n=$$((n * 3 / 2)); \
	echo $$((n > 16 ? 16 : n)))
# Programs report their commit where git can tell it. Go's own stamp fails the build where git cannot
# (a checkout of another user), and omits the commit in a worktree.
COMMIT = $(shell git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null)
BUILD = go build -buildvcs=false -ldflags "-X github.com/postern-gateway/postern/internal/telemetry.commit=$(COMMIT)"

.DEFAULT_GOAL := help
.PHONY: help docs dev playground test test-browser test-long check race fuzz vuln bench bench-quick bench-profile bench-gate bench-verify bench-console bench-record docs-reference chaos chaos-short chaos-mutants mutants build image pictures console-pictures prerequisites servers

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Not `go run`, which neither forwards signals nor returns the exit status.
dev: servers ## run everything in one process, state in .postern (ARGS="--listen ... --dir ...")
	@echo "building, about two minutes the first time"
	$(BUILD) -o bin/dev/postern ./cmd/postern
	@exec bin/dev/postern dev $(ARGS)

playground: servers ## try reconciliation without an account, against fake APIs: docs/tutorial/3-survive-a-bad-day.md
	@echo "building, about two minutes the first time"
	@$(BUILD) -o bin/dev/ ./cmd/postern ./test/playground
	@exec bin/dev/playground $(ARGS)

# Packages run in the given order: first those that wait longest, so that none of them is left alone.
# Without debugging information (-w), linking takes a third less time; stack traces are the same.
test: prerequisites ## run all tests, with a private PostgreSQL and JetStream, and against official SDKs
	go test -short -timeout $(TIMEOUT) -p $(PACKAGES) -ldflags=-w ./test/... ./...
	cd test/oracles && go test -short -timeout $(TIMEOUT) . -rapid.seed=20261121
	cd bench && go test -short -timeout $(TIMEOUT) ./...

test-browser: prerequisites ## operate the console with Chromium: clicks, keys, hostile events, foreign pages, accessibility
	cd test/browser && go test -count=1 -timeout $(TIMEOUT) .

test-long: prerequisites ## all tests for nights and releases: all histories, race detector, ten minutes of chaos, mutants (ARGS="STEP..." runs some steps)
	.ci/long $(ARGS)

check: ## format, vet, staticcheck, architecture, modules, generated pages: what CI runs after the tests
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "run gofmt -w on:"; echo "$$bad"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go test -count=1 ./internal/archtest
	go mod tidy -diff
	cd test/oracles && go vet ./... && go run $(STATICCHECK) ./... && go mod tidy -diff
	cd test/browser && go vet ./... && go run $(STATICCHECK) ./... && go mod tidy -diff
	cd bench && go vet ./... && go run $(STATICCHECK) ./... && go mod tidy -diff
	@if [ -d internal/config/gendoc ]; then echo "go run ./internal/config/gendoc -check"; go run ./internal/config/gendoc -check; fi

docs-reference: servers ## write the generated pages of docs/reference again (metrics, schema and commands need the servers)
	go run ./internal/config/gendoc
	go test -count=1 ./internal/provider/all ./internal/provider/hmac -run Page -update
	go test -count=1 ./internal/admin ./cmd/postern -run TestReference -update
	go test -count=1 ./migrations -run TestSchema -update
	go test -count=1 ./internal/app -run TestMetrics_page -update

race: servers ## run the tests of everything concurrent under the race detector (needs a C compiler)
	go test -race -short -timeout $(TIMEOUT) $(foreach dir,$(RACE),$(if $(wildcard $(dir)/*.go),$(dir)))

fuzz: ## fuzz each parser of untrusted input 20,000 times (EACH=...), some minutes
	.ci/fuzz 86400 $(or $(EACH),20000)

vuln: ## look for known vulnerabilities in what the programs call; asks a database over the network
	.ci/vuln

# Built first: `go run` hides the exit status, and a build must not run during the measurement.
BENCH = cd bench && go build -buildvcs=false -o ../bin/bench . && exec ../bin/bench

bench: servers ## measure everything and the references, about an hour and twenty minutes (ARGS="-dir ... -only ... -rounds ..."): docs/benchmarks.md
	@$(BENCH) $(ARGS)

bench-quick: servers ## the main rows, short: under three minutes
	@$(BENCH) -quick $(ARGS)

bench-profile: servers ## profiles of gateway, processor and references under load, into bench/out/profiles
	@$(BENCH) -profile out/profiles $(ARGS)

bench-verify: servers ## measure postern verify on EVENTS events (10,000,000; 16 GB in memory or below TMPDIR, less with ARGS="-verify.text 40")
	cd internal/verify && go test -run xxx -bench Verify -benchtime 1x -verify.objects $$(($(EVENTS) / 10)) -timeout 6h . $(ARGS)

bench-console: servers ## measure pages of the console over EVENTS events (10,000,000; 14 GB in memory or below TMPDIR)
	go test ./internal/console -run xxx -bench Pages -benchtime 1x -console.events $(EVENTS) -timeout 2h $(ARGS)

EVENTS ?= 10000000

bench-gate: servers ## a minute of benchmarks against bench/gate.json: fails if something became much slower
	@$(BENCH) -gate $(ARGS)

bench-record: servers ## write bench/gate.json again
	@$(BENCH) -gate-record $(ARGS)

# Not in bin/, which contains only released programs.
CHAOS = go build -buildvcs=false -o bin/dev/chaos ./test/chaos && exec bin/dev/chaos

chaos: servers ## inject faults for ten minutes under load, then compare receipts with stored data (ARGS="-seed N -for 60s"): docs/explanation/guarantees.md
	@$(CHAOS) $(ARGS)

chaos-short: servers ## the same for one minute
	@$(CHAOS) -for 60s $(ARGS)

chaos-mutants: servers ## break the product on purpose in several ways: chaos must notice each
	@$(CHAOS) -mutants $(ARGS)

mutants: servers ## break the product's logic in many ways: a test must fail for each (ARGS="-only NAME -o FILE"): docs/reference/mutants.md
	go run ./test/mutants $(ARGS)

build: ## build the programs into bin/
	$(BUILD) -o bin/ ./cmd/...

image: servers ## build the container image with the local Go, localhost/postern:latest (IMAGE=... names another)
	deploy/container/build.sh $(IMAGE)

pictures: ## draw the pictures of the explanation pages again (needs Graphviz: apt-get install graphviz)
	docs/explanation/pictures/draw.sh

console-pictures: prerequisites ## take the pictures of docs/how-to/use-the-console.md again (needs Chromium)
	@$(BUILD) -o bin/dev/ ./cmd/postern
	cd test/browser && go run ./pictures ../../bin/dev/postern ../../docs/how-to/pictures

prerequisites: ## install what is missing of PostgreSQL, buildah, Python, Node, SDKs and API descriptions; check Go
	@.ci/prerequisites

# Only the tests need 300 MB of SDKs and API descriptions.
servers:
	@.ci/prerequisites without-sdks

# The generator reads the pages below its own folder, where its modules are found.
docs: ## build the documents as HTML with search into docs/site/bin/html (needs Node 20)
	@.ci/prerequisites only-site
	@rm -rf docs/site/bin && mkdir -p docs/site/bin/pages
	@git ls-files '*.md' 'docs/*.svg' 'docs/*.webp' ':!bench' ':!internal' ':!test' | tar -cf - -T - | tar -xf - -C docs/site/bin/pages
	@cd docs/site && npx vitepress build .
	@echo "to read the pages: python3 -m http.server --directory docs/site/bin/html 8000"
