# SPDX-License-Identifier: Apache-2.0
#
# make help lists the targets. GO=… names another go command.

# First the pinned toolchain, which scripts/fetch-go.sh unpacks where there is no other; one unpacked where Go's own
# instructions put it needs no setting.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH):/usr/local/go/bin
GO ?= go
# The environment's CC may be a cross compiler or clang; both can build all of this.
CC ?= gcc

# urfave_cli_no_docs: the CLI library without its documentation generator, 0.4 ms of start-up. The others: tests, which are built with cgo
# for the race detector, compile the same net and os/user as the programs, which are not.
TAGS := urfave_cli_no_docs,netgo,osusergo

# The tag or commit, else the newest heading of the changelog (a source archive has no git).
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || sed -n 's/^\#\# \[\([0-9][^]]*\)\].*/\1/p' CHANGELOG.md 2>/dev/null | head -n1)
LDFLAGS := -s -w -X main.version=$(or $(VERSION),unknown)

PREFIX ?= /usr/local
STUB := runtime/internal/stub/stub.bin
EARLY := internal/early/code_$(shell $(GO) env GOARCH).s
OUT := test/out

# The same for programs and tests: each difference compiles all of Go's library and of what is depended on once more.
export GOFLAGS := -trimpath -tags=$(TAGS)

.PHONY: oci test-engines test-engines-vm test-kubernetes test-kubernetes-vm test-validation test-bats test-agents test-agents-long help run build gateway safety image man probe crowd test test-unit test-vm attack hostile bench lint fuzz faults install clean deps deps-test bare packages test-packages

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t12

run: deps build ## install what is missing, build, run the example agent in ring 3
	cd examples && ../bin/agentrun exec --ring 3 --on-breach record -- agent.py

deps:
	@bash scripts/install-deps.sh run

# Without cgo: no libc has to set itself up at each start (40 questions to the processor, which a hypervisor answers), threads are the kernel's
# alone, and Go can drop the privileges of those that it has made itself.
build: $(STUB) $(EARLY) gateway safety image oci ## bin/agentrun, bin/agentrun-gateway, bin/agentrun-safety, bin/agentrun-image and bin/agentrun-oci
	CGO_ENABLED=0 $(GO) build -ldflags "$(LDFLAGS) -E agentrun_entry" -o bin/agentrun ./cmd/agentrun

gateway:
	CGO_ENABLED=0 $(GO) build -ldflags "$(LDFLAGS)" -o bin/agentrun-gateway ./cmd/agentrun-gateway

# Like the gateway static by itself: it goes where only an MCP client is.
safety:
	CGO_ENABLED=0 $(GO) build -ldflags "$(LDFLAGS)" -o bin/agentrun-safety ./cmd/agentrun-safety

# What fetches images speaks HTTP and reads strangers' archives: neither belongs into what is started for each run.
image:
	CGO_ENABLED=0 $(GO) build -ldflags "$(LDFLAGS)" -o bin/agentrun-image ./cmd/agentrun-image

# What container engines start in the place of runc.
oci:
	CGO_ENABLED=0 $(GO) build -ldflags "$(LDFLAGS)" -o bin/agentrun-oci ./cmd/agentrun-oci

# Pid 1 of every sandbox, embedded by go:embed: any go command on the module needs it.
$(STUB): runtime/internal/stub/build.sh $(wildcard runtime/internal/stub/c/*)
	sh runtime/internal/stub/build.sh

# What runs before Go does, as assembly, for the program that begins with it.
$(EARLY): internal/early/build.sh $(wildcard internal/early/c/*) runtime/internal/stub/c/sys.h
	sh internal/early/build.sh

# From what the program says of itself: no flag can be missing, and the program carries no generator.
man: build ## the man pages, in bin/man
	$(GO) run ./tools/man bin/agentrun bin/man

probe: bin/probe

# The program that the integration suite runs inside sandboxes; static, so that any root will do.
bin/probe: $(wildcard test/probe/*)
	@mkdir -p bin
	$(CC) -static -O1 -o $@ test/probe/probe.c

deps-test:
	@bash scripts/install-deps.sh test

test: deps-test build probe ## everything CI runs: checks, unit tests, both kernels, fuzz, benches
	@GO="$(GO)" bash test/run.sh

test-unit: $(STUB) ## unit tests with the race detector
	$(GO) test -race $$($(GO) list ./... | grep -vE '/test/(integration|compat)$$')

test-vm: build probe ## the suites on Debian's kernel with cgroup v2 only, with what CI has no time for
	@GO="$(GO)" AGENTRUN_VM_WHOLE=1 bash test/run.sh vm

test-vagrant: build probe ## the same suites in a machine with systemd that Vagrant brings up, from a box made of Debian's packages
	@bash scripts/install-deps.sh vagrant
	@GO="$(GO)" bash test/run.sh vagrant

bare: ## make run on a Debian that has only git and make, in a folder below .cache/bare
	@test/bare/run.sh

attack: build probe ## what is tried from inside, on both kernels, as root and as a user; writes docs/attacks.md
	@GO="$(GO)" bash test/run.sh attack

bench: build probe ## agentrun against bwrap, runc and a static floor; one table from one run
	@bash scripts/install-deps.sh test
	$(GO) run ./test/bench $(BENCHFLAGS)

test-engines: build ## Debian's Docker, Podman and containerd with agentrun as their runtime, with daemons and folders of the test's own
	@bash scripts/install-deps.sh engines
	@bash test/engines/run.sh
	@bash test/engines/images.sh

test-kubernetes: build ## a Kubernetes of one node, built from Go modules, whose pods agentrun runs; PARTS="cri" or PARTS=measure chooses parts
	@bash scripts/install-deps.sh kubernetes
	@bash test/kubernetes/run.sh $(PARTS)

test-kubernetes-vm: build ## the same on Debian's kernel with cgroup v2 only
	@bash scripts/install-deps.sh kubernetes
	@bash test/kubernetes/vm.sh $(PARTS)

test-engines-vm: build ## the engines on Debian's kernel with cgroup v2 only, and Docker with systemd's cgroups there
	@bash scripts/install-deps.sh engines
	@bash test/engines/vm.sh
	@bash test/engines/vm.sh systemd

test-validation: build ## runtime-tools' validation programs on Debian's runc and on agentrun-oci, compared with test/engines/validation.txt
	@bash scripts/install-deps.sh engines
	@bash test/engines/validation.sh

test-bats: build ## runc's own tests and Podman's on Debian's runc and on agentrun-oci, or FILES="runc/exec podman/080-pause", compared with test/engines/bats.txt
	@bash scripts/install-deps.sh engines
	@bash test/engines/bats.sh $(FILES)

test-agents: build probe ## the six coding agents from npm by agentrun host, or AGENTS="claude pi"; all six write the table of docs/coding-agents.md
	bash test/agents/install.sh .cache/agents $(AGENTS)
	AGENTRUN_TEST_AGENTS=$(CURDIR)/.cache/agents $(GO) test -tags $(TAGS),agents -count 1 -v -timeout 60m -run 'TestRealAgents/^($(or $(subst $() ,|,$(AGENTS)),.*))$$' ./test/integration

test-agents-long: build probe ## Claude Code for half an hour on a lease that is extended, with bursts of memory
	bash test/agents/install.sh .cache/agents claude
	AGENTRUN_TEST_AGENTS=$(CURDIR)/.cache/agents AGENTRUN_TEST_SLOW=25 $(GO) test -tags $(TAGS),agents -count 1 -v -timeout 60m -run TestRealAgentForHalfAnHour ./test/integration

crowd: build probe ## CROWD (500) idle sandboxes at once in one daemon with its defaults, none refused; then as many that are kept, a tenth busy
	AGENTRUN_TEST_SERVE_CROWD=$(or $(CROWD),500) AGENTRUN_TEST_MUST_RUN=1 $(GO) test -count=1 -v -timeout 30m -run '^(TestServeCrowd|TestM23ManyKeptSandboxes)$$' ./test/integration

fuzz: $(STUB) ## each fuzz target for FUZZTIME (default 1m)
	@GO="$(GO)" FUZZTIME="$(or $(FUZZTIME),1m)" bash test/run.sh fuzz

faults: build probe ## each error, SIGKILL and a delay at each point of the real binary that has one, some minutes
	AGENTRUN_TEST_FAULTS=all $(GO) test -count 1 -timeout 40m -run 'TestFault|TestM5.*Step' ./test/integration

hostile: build probe ## twenty hostile runs at this machine for HOSTILETIME (default 1h), and what the quiet ones feel of it
	$(GO) run ./test/hostile -time $(or $(HOSTILETIME),1h)

# Its own bin folder: the linter's version must not depend on what the machine has.
GOLANGCI := .cache/bin/golangci-lint
GOLANGCI_VERSION := v2.15.0

lint: $(STUB) $(GOLANGCI) ## gofmt, vet, shellcheck, golangci-lint
	@GO="$(GO)" bash test/run.sh lint
	$(GOLANGCI) run --build-tags $(TAGS) ./...

$(GOLANGCI):
	GOFLAGS= GOBIN=$(CURDIR)/.cache/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

install: man ## programs to $(DESTDIR)$(PREFIX)/bin, man pages to share/man, units of systemd to lib/systemd/system
	install -D -m 0755 bin/agentrun $(DESTDIR)$(PREFIX)/bin/agentrun
	install -D -m 0755 bin/agentrun-gateway $(DESTDIR)$(PREFIX)/bin/agentrun-gateway
	install -D -m 0755 bin/agentrun-safety $(DESTDIR)$(PREFIX)/bin/agentrun-safety
	install -D -m 0755 bin/agentrun-image $(DESTDIR)$(PREFIX)/bin/agentrun-image
	install -D -m 0755 bin/agentrun-oci $(DESTDIR)$(PREFIX)/bin/agentrun-oci
	for ring in 1 2 3; do ln -sf agentrun-oci $(DESTDIR)$(PREFIX)/bin/agentrun-ring$$ring; done
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/man/man1 bin/man/*.1
	install -D -m 0644 packaging/systemd/agentrun.socket $(DESTDIR)$(PREFIX)/lib/systemd/system/agentrun.socket
	sed 's#/usr/local/bin#$(PREFIX)/bin#' packaging/systemd/agentrun.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/agentrun.service

# Built like the linter, so that what it needs is none of the product's modules. Newer ones have a packager for Windows and its modules.
NFPM := .cache/bin/nfpm
NFPM_VERSION := v2.45.0
PACKAGES := .cache/packages
# A release's version, else one below every release that grows with the commits.
PACKAGE_VERSION ?= $(or $(shell git describe --tags --exact-match 2>/dev/null | sed 's/^v//'),$(shell git log -1 --format=0.0.0~git%cd.%h --date=format:%Y%m%d%H%M%S 2>/dev/null),0.0.0)
PACKAGE_MAINTAINER ?= agentrun

packages: $(NFPM) ## a .deb and an .rpm, in bin/
	rm -rf $(PACKAGES) && mkdir -p $(PACKAGES)
	$(MAKE) install DESTDIR=$(CURDIR)/$(PACKAGES)/root PREFIX=/usr
	gzip -9n $(PACKAGES)/root/usr/share/man/man1/*.1
	for s in bash zsh fish; do bin/agentrun completion $$s >$(PACKAGES)/agentrun.$$s || exit 1; done
	for p in deb rpm; do PACKAGE_VERSION='$(PACKAGE_VERSION)' PACKAGE_MAINTAINER='$(PACKAGE_MAINTAINER)' $(NFPM) package -f packaging/nfpm.yaml -p $$p -t bin/ || exit 1; done

test-packages: packages ## both packages installed, upgraded under a daemon, removed, purged: in a bare Debian, and in the VM under systemd
	bash test/bare/packages.sh
	bash test/vm/packages.sh

$(NFPM):
	GOFLAGS=-trimpath GOBIN=$(CURDIR)/.cache/bin $(GO) install -tags netgo,osusergo github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)

clean: ## all that was built, but not the VM image (.cache/vm)
	rm -rf bin $(OUT) $(STUB) $(EARLY) .cache/bin
