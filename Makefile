# aspis: see README.md. `make help` lists what can be made.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO      ?= go
BIN     := bin
PREFIX  ?= /usr/local

# With -trimpath and without a build id from outside, the same source gives the
# same bytes on every machine that has the same toolchain. Containers are born
# by C code, so aspis needs cgo; it is linked statically, so that it runs on any
# Linux and starts without a dynamic loader.
LDFLAGS := -s -w -X main.version=$(VERSION)
GOBUILD := $(GO) build -trimpath -ldflags "$(LDFLAGS)"
STATIC  := CGO_ENABLED=1 $(GO) build -trimpath -tags "netgo osusergo" -ldflags "$(LDFLAGS) -linkmode external -extldflags -static"

# A test run that fails must not be hidden by the report that reads it.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

.DEFAULT_GOAL := build
.PHONY: build install demo test test-tools vm-test bench lint fuzz clean help needs

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

needs:
	@./scripts/needs.sh gcc git libc6-dev

build: needs ## build bin/aspis and the providers beside it, all static
	$(STATIC) -o $(BIN)/aspis ./cmd/aspis
	CGO_ENABLED=0 $(GOBUILD) -o $(BIN)/aspis-hygiene ./cmd/aspis-hygiene
	CGO_ENABLED=0 $(GOBUILD) -o $(BIN)/aspis-tool ./cmd/aspis-tool
	CGO_ENABLED=0 $(GOBUILD) -o $(BIN)/aspis-probe ./cmd/aspis-probe
	CGO_ENABLED=0 $(GOBUILD) -o $(BIN)/aspis-testprovider ./integration/testprovider

install: build ## install below PREFIX (/usr/local)
	install -D -m 755 $(BIN)/aspis $(DESTDIR)$(PREFIX)/bin/aspis
	install -D -m 755 $(BIN)/aspis-hygiene $(DESTDIR)$(PREFIX)/libexec/aspis/aspis-hygiene
	install -D -m 755 $(BIN)/aspis-tool $(DESTDIR)$(PREFIX)/libexec/aspis/aspis-tool
	install -D -m 755 $(BIN)/aspis-probe $(DESTDIR)$(PREFIX)/libexec/aspis/aspis-probe
	install -D -m 755 $(BIN)/aspis-testprovider $(DESTDIR)$(PREFIX)/libexec/aspis/aspis-testprovider

demo: build ## judge a clean change and one that leaks keys, in a small real repository
	@./scripts/demo.sh $(BIN)

test: build ## run every test; as root all of them can run
	$(GO) vet ./...
	$(GO) test -json -count=1 -timeout 15m ./... | $(GO) run ./integration/testreport

test-tools: ## run the presets on every tool that is in PATH; takes minutes
	ASPIS_TEST_TOOLS=all $(GO) test -count=1 -timeout 30m -run TestRealTools -v ./cmd/aspis-tool

vm-test: build ## boot kinds of machine in software and try isolation on each (VM=v2-root,... for some)
	@./scripts/needs.sh qemu-system-x86 e2fsprogs xz-utils uidmap
	$(GO) run ./integration/vm -bin $(BIN) -work $(BIN)/vm -only "$(VM)"

bench: build ## measure beside bwrap, crun and runc, in one run
	@./scripts/needs.sh bubblewrap crun runc || echo "measuring without what is missing"
	$(STATIC) -o $(BIN)/bench ./integration/bench
	CGO_ENABLED=0 $(GOBUILD) -o $(BIN)/bench-byte ./integration/bench/byte
	CGO_ENABLED=0 $(GOBUILD) -o $(BIN)/bench-provider ./integration/testprovider
	$(BIN)/bench -bin $(BIN) -json bench.json

lint: ## gofmt, go vet and golangci-lint
	@./scripts/lint.sh

fuzz: ## run every fuzz target for a few seconds (FUZZTIME=5s)
	@./scripts/fuzz.sh $(or $(FUZZTIME),5s)

clean: ## remove what was built
	rm -rf $(BIN) bench.json
