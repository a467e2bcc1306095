# `make demo` and `make test` need Python >= 3.11 with its headers, a C compiler, make, and a package index.
# The newest suitable interpreter is taken; `make PYTHON=/path/to/python3 demo` chooses another.

SUITABLE := import sys, os, sysconfig, venv, ensurepip; \
  sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
ifndef PYTHON
PYTHON := $(firstword $(foreach name,python3.14 python3.13 python3.12 python3.11 python3,\
  $(shell command -v $(name) >/dev/null 2>&1 && $(name) -c '$(SUITABLE)' 2>/dev/null && command -v $(name))))
endif

VENV := .venv
PY := $(VENV)/bin/python
PEER_VENV := .venv-peer
CASES ?= 5000
SEED ?= 1
SECONDS ?= 900
DEMO_TRACE ?= traces/chat-shared-prefix.jsonl
# Requirements stand in pyproject.toml alone; this prints one list of them, quoted for the shell.
REQUIREMENTS = $(PY) -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*(repr(r) for r in eval(sys.argv[1], {"p": p})))'

.PHONY: help venv build demo test goldens debug lint types bench bench-peer instructions instructions-update peer fuzz-peer fuzz-readers golden-update dist clean

help:
	@echo "demo           build, install and replay a shipped trace, with its summary on the screen"
	@echo "test           build, install and run every test"
	@echo "goldens        check tests/goldens with the command itself; report in build/goldens.xml"
	@echo "lint, types    style of Python and Cython; types and stubs"
	@echo "debug          the tests against a build with all checks on"
	@echo "bench          benchmarks, release build only"
	@echo "instructions   count instructions of hot paths with valgrind; fails 5 % above the stored figures"
	@echo "instructions-update  store the counts anew, with the compiler they were made with"
	@echo "bench-peer     race the reference on TRACE=FILE, every target of docs/performance.md"
	@echo "fuzz-peer      compare CASES=5000 random cases with the reference (installs it beside)"
	@echo "fuzz-readers   random bytes for every reader of traces, for SECONDS=900 (installs atheris)"
	@echo "peer           the reference in .venv-peer, for the tests that ask it (MR_PEER_PYTHON)"
	@echo "golden-update  write the golden files anew; read the diff before you commit it"
	@echo "dist           sdist and wheel"
	@echo "venv, build, clean"

$(PY):
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 with venv, pip and Python.h found (PYTHON=... names one)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

PIP_INSTALL := $(PY) -m pip install -q --disable-pip-version-check

$(VENV)/.buildable: $(PY) pyproject.toml
	$(PIP_INSTALL) $$($(REQUIREMENTS) 'p["build-system"]["requires"]' | xargs -n1 echo)
	@touch $@

# Editable, over the modules that are already built in place: pip would compile them once more.
$(VENV)/.installed: $(VENV)/.buildable setup.py
	MR_PREBUILT=1 $(PIP_INSTALL) --no-build-isolation -e '.[test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP_INSTALL) $$($(REQUIREMENTS) 'p["project"]["optional-dependencies"]["lint"]' | xargs -n1 echo)
	@touch $@

venv: $(VENV)/.installed

build: $(VENV)/.buildable
	@echo "building the core (the first time takes a minute or two)"
	$(PY) setup.py -q build_ext --inplace
	@$(MAKE) --no-print-directory venv

demo: build
	$(VENV)/bin/mocker-replay run $(DEMO_TRACE)

test: build
	$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder

goldens: build
	$(VENV)/bin/mocker-replay golden check --dir tests/goldens --junit build/goldens.xml

debug: build
	MR_DEBUG=1 $(PY) setup.py -q build_ext --inplace --force
	MR_DEBUG=1 $(PY) -m pytest -n auto --dist loadfile -m 'not packaging and not bench'; status=$$?; \
	  $(PY) setup.py -q build_ext --inplace --force && exit $$status

lint: build $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint _core
	$(PY) .ci/build_log.py
	@$(MAKE) --no-print-directory types

types: build $(VENV)/.lint
	$(VENV)/bin/mypy
	$(VENV)/bin/stubtest mocker_replay._core --allowlist .ci/stubtest_allow.txt

bench: build
	$(PY) -m pytest tests/bench -m bench --benchmark-enable

instructions: build
	$(PY) benchmarks/instructions.py --check

instructions-update: build
	$(PY) benchmarks/instructions.py --update

# The reference wheel in an environment of its own, for the tests that ask it.
ifdef MR_PEER_PYTHON
PEER := $(MR_PEER_PYTHON)
else
PEER := $(CURDIR)/$(PEER_VENV)/bin/python
$(PEER): $(PY)
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER) -m pip install -q --disable-pip-version-check $$($(REQUIREMENTS) 'p["project"]["optional-dependencies"]["peer"]' | xargs -n1 echo)
endif

peer: $(PEER)

# TRACE is the public conversation trace of Mooncake.
bench-peer: build $(PEER)
	MR_PEER_PYTHON=$(PEER) $(PY) benchmarks/peer.py $(TRACE)

fuzz-peer: build $(PEER)
	MR_PEER_PYTHON=$(PEER) $(PY) -m tests.fuzz.peer --cases $(CASES) --seed $(SEED)

# What is new goes into build/fuzz-corpus, a find is kept as build/fuzz-failures/crash-...
fuzz-readers: build
	$(PIP_INSTALL) $$($(REQUIREMENTS) 'p["project"]["optional-dependencies"]["fuzz"]' | xargs -n1 echo)
	@mkdir -p build/fuzz-corpus build/fuzz-failures
	$(PY) -m tests.fuzz_readers.harness build/fuzz-corpus tests/fuzz_readers/corpus -max_total_time=$(SECONDS) \
	  -rss_limit_mb=1500 -max_len=4096 -artifact_prefix=build/fuzz-failures/

golden-update: build
	$(VENV)/bin/mocker-replay golden update --dir tests/goldens '*'
	GOLDEN_UPDATE=1 $(PY) -m pytest tests/golden

dist: $(VENV)/.buildable
	$(PIP_INSTALL) build
	$(PY) -m build --no-isolation --outdir dist

clean:
	rm -rf build dist $(VENV) $(PEER_VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f _core/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
