# make finetune   fine-tune a small Mixture of Experts on real chats (MODEL=path DATA=file: your own)
# make test       every test that passes without a GPU
# make build      the engine alone          make lint    format, layers, sizes, spelling
# make bench      speed next to Transformers
# make fuzz       the readers of foreign bytes, 60 s each          make sanitize  unit tests under asan and ubsan
# Each target sets up what it needs: Debian packages when run as root, Python packages in .venv.

PRESET ?= $(shell command -v nvcc >/dev/null && nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
RUN := PYTHONPATH=python $(PYTHON)
SYSTEM_PACKAGES := g++ libgtest-dev ccache python3-venv

.PHONY: finetune test build lint bench fuzz sanitize system

finetune: build
ifdef MODEL
	$(RUN) -m automoe finetune --model $(MODEL) --data $(DATA) $(ARGS)
else
	$(RUN) -m automoe.quickstart $(ARGS)
endif

test: build
	.venv/bin/cmake --build build/$(PRESET) -j $(JOBS)
	.venv/bin/ctest --test-dir build/$(PRESET) --output-on-failure -j $(JOBS)
	$(RUN) -m pytest -n $(JOBS) tests

build: .venv/ready
	@test -f build/$(PRESET)/build.ninja || .venv/bin/cmake --preset $(PRESET)
	@test -f build/$(PRESET)/libautomoe.so || echo "automoe: compiling the engine ($(PRESET)); about 6 minutes on 2 cores, once"
	@.venv/bin/cmake --build build/$(PRESET) --target automoe -j $(JOBS)
	@mkdir -p python/automoe/lib && ln -sfn ../../../build/$(PRESET)/libautomoe.so python/automoe/lib/libautomoe.so

lint: .venv/ready
	tools/lint.sh

bench: build
	$(RUN) benchmarks/step.py $(ARGS)

fuzz: .venv/ready
	@tools/system_packages.sh clang libclang-rt-dev
	tools/fuzz.sh 60

# Readers of foreign bytes and what they stand on; the rest is tensor code whose memory is libtorch's.
SANITIZED := core hub
sanitize: .venv/ready
	@test -f build/asan/build.ninja || .venv/bin/cmake --preset asan
	.venv/bin/cmake --build build/asan --target $(addsuffix _test,$(SANITIZED)) -j $(JOBS)
	@for name in $(SANITIZED); do \
	  ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0 build/asan/$${name}_test --gtest_brief=1 || exit 1; done

.venv/ready: tools/requirements.txt | system
	@echo "automoe: setting up .venv (torch, transformers, build tools); about 2 minutes, 6 GB, once"
	python3 -m venv .venv
	.venv/bin/pip install -q -r tools/requirements.txt
	@printf '%s\n' '#!/bin/sh' 'here=$$(dirname "$$(readlink -f "$$0")")' \
	  'PYTHONPATH="$$here/../../python" exec "$$here/python" -m automoe "$$@"' > .venv/bin/automoe
	@chmod +x .venv/bin/automoe
	@touch $@

system:
	@tools/system_packages.sh $(SYSTEM_PACKAGES)
