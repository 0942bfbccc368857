# The commands for developers and build servers. scripts/with-engine provides the engine and the images, and checks for
# leaks.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
CARGO ?= cargo
# The build profile of the programs: release, or dev, which builds faster.
PROFILE ?= release
CARGO_TARGET_DIR ?= target

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the service and its client (PROFILE=dev: faster to build)
	$(CARGO) build --profile $(PROFILE)
	@if [[ $(PROFILE) == release ]]; then scripts/split-symbols "$${CARGO_TARGET_DIR:-target}"/release/{sandboxd,sandboxctl}; fi

image: build ## Build the base image of the default profile on the engine that the service would use
	$(CARGO_TARGET_DIR)/$(patsubst dev,debug,$(PROFILE))/sandboxctl image base

demo: build ## Run the demo: a chat gets its sandbox, uses it, and the sandbox is removed
	PROFILE=$(PROFILE) scripts/with-engine scripts/demo

test: ## Run all tests on a real engine, and check for leaks
	$(CARGO) test --workspace --features crash-points --no-run
	scripts/with-engine $(CARGO) test --workspace --features crash-points

bench: ## Run the benchmarks on a real engine: target/bench/report.md (SANDBOXD_BENCH=quick: a short run)
	CARGO=$(CARGO) scripts/bench

ci: fmt-check lint deny doc test ## Run every check of a change

fmt: ## Format the code
	$(CARGO) fmt --all

fmt-check: ## Check the formatting
	$(CARGO) fmt --all --check

lint: ## Run clippy and shellcheck
	$(CARGO) clippy --workspace --all-targets --features crash-points -- -D warnings
	scripts/tools shellcheck scripts/* tests/support/*.sh .ci/run

deny: ## Check the licences and the sources of all dependencies
	scripts/tools cargo-deny --workspace check licenses bans sources

doc: ## Build the documentation of the code, including private items
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --features crash-points --no-deps --document-private-items

engine: ## Find an engine or start the private one, which keeps running
	scripts/engine up

engine-down: ## Stop the private engine
	scripts/engine down

images: engine ## Build the images of the tests and the demo
	scripts/images

clean: ## Remove the build output, and the private engine with its data
	scripts/engine down --purge
	rm -rf .run
	$(CARGO) clean

.PHONY: help build image demo test bench ci fmt fmt-check lint deny doc engine engine-down images clean
