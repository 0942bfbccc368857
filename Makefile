# Everything a developer or a build server runs. The engine, the images and what must be left afterwards are the
# business of scripts/with-engine.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
CARGO ?= cargo
# Of the programs: release, or dev, which builds faster.
PROFILE ?= release
CARGO_TARGET_DIR ?= target

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the service and its client (PROFILE=dev: faster to build)
	$(CARGO) build --profile $(PROFILE)
	@if [[ $(PROFILE) == release ]]; then scripts/split-symbols "$${CARGO_TARGET_DIR:-target}"/release/{sandboxd,sandboxctl}; fi

image: build ## Make the base image, which the default profile names, on the engine that the service would use
	$(CARGO_TARGET_DIR)/$(patsubst dev,debug,$(PROFILE))/sandboxctl image base

demo: build ## See it work: a chat gets its sandbox, uses it, and leaves nothing behind
	PROFILE=$(PROFILE) scripts/with-engine scripts/demo

test: ## Run all tests on a real engine, and check that they leave nothing behind
	$(CARGO) test --workspace --no-run
	scripts/with-engine $(CARGO) test --workspace

bench: ## Run the benchmarks on a real engine: target/bench/report.md (SANDBOXD_BENCH=quick: only show that they run)
	CARGO=$(CARGO) scripts/bench

ci: fmt-check lint doc test ## All that a change has to pass

fmt: ## Format the code
	$(CARGO) fmt --all

fmt-check: ## Check the formatting
	$(CARGO) fmt --all --check

lint: ## Run clippy, and shellcheck where it is installed
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@if command -v shellcheck >/dev/null; then shellcheck scripts/* tests/support/*.sh .ci/run; fi

doc: ## Build the documentation of the code, private items included, which may then be linked to
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items

engine: ## Find an engine or start the private one, which then stays
	scripts/engine up

engine-down: ## Stop the private engine
	scripts/engine down

images: engine ## Make the images of the tests and the demo
	scripts/images

clean: ## Delete all that was built, and the private engine with its data
	scripts/engine down --purge
	rm -rf .run
	$(CARGO) clean

.PHONY: help build image demo test bench ci fmt fmt-check lint doc engine engine-down images clean
