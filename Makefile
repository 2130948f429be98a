# The project's commands. Each prepares what it needs (tools/bootstrap.sh) and does nothing twice.
PYTHON := .venv/bin/python
ARGS ?=
FUZZERS := cmake --preset fuzz && cmake --build --preset fuzz

.PHONY: help wheels train test soak trust fuzz bench bench-paging bench-e2e bench-sign bench-sign-network bench-quality gpu-check gpu-bundle docs note release-check build clang asan tsan arm format clean

help: ## list these commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-20s  %s\n", $$1, $$2 }'

train: ## train a small LLaMA with torch's AdamW and with Lowtide's (ARGS="..." goes to the script)
	@tools/bootstrap.sh --native --extras examples
	@$(PYTHON) examples/train_llama.py $(ARGS)

test: ## build everything, then run all C++ and Python tests
	@python3 tools/run_tests.py

soak: ## run all cases of the long tests, with new seeds, optimized as a release (ARGS="--soak 5")
	@python3 tools/run_tests.py --soak 1 $(ARGS)

trust: ## run the tests of TRUST.md that have not passed yet (ARGS="T3 T17" or ARGS=--all: again)
	@python3 tools/run_tests.py --prepare
	@tools/bootstrap.sh --no-package --extras fuzz
	@$(FUZZERS)
	@python3 tools/make_trust.py $(ARGS)

fuzz: ## fuzz every parser until it has 10,000,000 executions (ARGS="votes --fresh"; goes on where it was)
	@tools/bootstrap.sh --extras fuzz
	@$(FUZZERS)
	@$(PYTHON) tools/fuzz.py $(ARGS)

bench: ## measure a step against other optimizers (ARGS="..." goes to the script)
	@tools/bootstrap.sh --extras bench
	@$(PYTHON) bench/step/run.py $(ARGS)

bench-paging: ## measure what state on disk costs (ARGS="--disk DIR")
	@tools/bootstrap.sh --extras bench
	@$(PYTHON) bench/paging/run.py $(ARGS)

bench-e2e: ## train with every optimizer that is installed, whole steps, in turns: speed, memory, losses (ARGS="--model Qwen3-0.6B --device cuda")
	@tools/bootstrap.sh --extras bench,examples
	@$(PYTHON) bench/e2e/run.py $(ARGS)

bench-sign: ## measure signs to bits, back, and votes against memory, numpy and torch (ARGS="--json FILE")
	@tools/bootstrap.sh --extras bench
	@$(PYTHON) bench/sign/throughput.py $(ARGS)

bench-sign-network: ## measure a vote beside all-reduce over a limited network (as root; ARGS="--workers 4")
	@tools/bootstrap.sh --extras bench
	@$(PYTHON) bench/sign/network.py $(ARGS)

bench-quality: ## train a small model with every state format, and compare (ARGS="--variants fp32,dynamic8")
	@tools/bootstrap.sh --extras bench
	@$(PYTHON) bench/quality/run.py $(ARGS)

gpu-check: ## on a machine with a GPU: test and measure the CUDA backend (ARGS="run --seconds 280"; docs/project/gpu-check.md)
	@python3 tools/gpu_check.py $(or $(ARGS),plan)

gpu-bundle: ## build and collect what gpu-check needs on a machine with a GPU (ARGS="--python 3.13")
	@tools/bootstrap.sh --no-package
	@$(PYTHON) tools/gpu_bundle.py $(ARGS)

docs: ## build the documentation site into build/site (ARGS="--site-dir DIR")
	@tools/bootstrap.sh --no-package --only --extras docs
	@$(PYTHON) -m mkdocs build --strict $(ARGS)
	@echo "Open build/site/index.html, or index.html in the folder that ARGS names."

note: docs ## print docs/evidence.md with its charts as build/lowtide-evidence.pdf (needs Chromium)
	@sed -E -e 's/(<a [^>]*)href="[^"]*"/\1/g' -e 's|</h1>|&<p>The Lowtide authors. $(VERSION), revision $(shell git log -1 --format="%h of %cs").</p>|' \
	    build/site/evidence.html > build/site/note.html
	@browser=$$(command -v chromium-headless-shell chromium chromium-browser google-chrome | head -n 1); \
	test -n "$$browser" || { echo "note: got no Chromium, wanted one: sudo apt-get install chromium-headless-shell" >&2; exit 1; }; \
	"$$browser" --headless --no-sandbox --no-pdf-header-footer --print-to-pdf=build/lowtide-evidence.pdf "file://$(CURDIR)/build/site/note.html"

wheels: ## make, audit and try wheels, into dist (ARGS="--arch x86_64 --python 3.11")
	@tools/bootstrap.sh --system-only --extras wheels
	@python3 tools/make_wheels.py $(ARGS)

RELEASE_ARGS_soak := --soak 5
RELEASE_ARGS_trust := --all
RELEASE_ARGS_fuzz := --fresh
RELEASE_ARGS_wheels := --torch --plugins cuda13,sycl
PASSED := build/release/$(shell git rev-parse HEAD 2>&1)
VERSION := v$(shell awk '/define LOWTIDE_VERSION_(MAJOR|MINOR|PATCH)/ { printf "%s%s", dot, $$3; dot = "." }' include/lowtide/version.h)

release-check: $(addprefix $(PASSED)/,test clang asan tsan arm docs soak trust fuzz wheels) ## everything that a release promises, from a clean clone: hours (goes on where it was); dist gets wheels and hashes (TAG=v0.1.0: this version)
	@cd dist && sha256sum *.whl *.tar.gz > SHA256SUMS

$(PASSED)/%:
	@test -z "$$(git status --porcelain)" || { echo "release-check: got uncommitted changes, wanted a clean clone" >&2; exit 1; }
	@test "$(or $(TAG),$(VERSION))" = "$(VERSION)" || { echo "release-check: got TAG=$(TAG), wanted $(VERSION)" >&2; exit 1; }
	@$(MAKE) $* ARGS="$(RELEASE_ARGS_$*)"
	@mkdir -p $(@D) && touch $@

build: ## build the C++ library and its tests into build/dev
	@tools/bootstrap.sh --system-only
	@cmake --preset dev $(CMAKE_ARGS)
	@cmake --build --preset dev

clang: ## C++ tests of a build by clang, whose warnings are errors (CMAKE_ARGS="-DCMAKE_CXX_COMPILER=clang++-19")
	@tools/bootstrap.sh --system-only --clang
	@cmake --preset clang $(CMAKE_ARGS)
	@cmake --build --preset clang
	@ctest --preset clang

asan: ## C++ tests under the address and undefined-behaviour sanitizers
	@tools/bootstrap.sh --system-only
	@cmake --preset asan $(CMAKE_ARGS)
	@cmake --build --preset asan
	@ctest --preset asan

tsan: ## C++ tests under the thread sanitizer
	@tools/bootstrap.sh --system-only
	@cmake --preset tsan $(CMAKE_ARGS)
	@cmake --build --preset tsan
	@ctest --preset tsan

arm: ## C++ tests of a build for ARM64, under qemu-user (ARGS="-R golden_functions": some; CMAKE_ARGS)
	@tools/bootstrap.sh --system-only --extras arm
	@python3 tools/arm_packages.py
	@cmake --preset arm $(CMAKE_ARGS)
	@cmake --build --preset arm
	@ctest --preset arm $(ARGS)

format: ## format all C and C++ sources with clang-format
	@git ls-files -co --exclude-standard -- '*.h' '*.c' '*.cpp' '*.inc' | xargs -r clang-format -i

clean: ## remove all build results (keeps .venv)
	rm -rf build dist
