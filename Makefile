PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.torchloom-ready
WEB    := src/torchloom/web
PAGE   := $(VENV)/.page-ready

.PHONY: help setup demo test test-long test-kubernetes test-pythons check docs bench clean

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(STAMP) $(PAGE)  ## virtual environment, packages, native recorder, the page

$(STAMP): pyproject.toml constraints.txt requirements.lock scripts/setup.sh $(wildcard src/torchloom/*/native/*.cpp)
	PYTHON=$(PYTHON) VENV=$(VENV) bash scripts/setup.sh
	@touch $(STAMP)

$(PAGE): $(STAMP) scripts/build_page.sh $(WEB)/package-lock.json $(WEB)/index.html $(wildcard $(WEB)/*.ts $(WEB)/src/* $(WEB)/src/*/*)
	bash scripts/build_page.sh
	@touch $(PAGE)

demo: setup      ## a real job on 2 workers, with a real fault on the way
	$(BIN)/loom demo

test: setup      ## all tests
	$(BIN)/python -m compileall -q src  # else each of a thousand processes may do it for itself
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder  # the long ones first

test-long: setup ## the tests that take minutes
	$(BIN)/python -m pytest -q -m long

test-kubernetes: setup ## the chart on a real cluster: KUBECONFIG and LOOM_IMAGE name it and an image
	$(BIN)/python -m pytest -q -rs -s -m long tests/kubernetes/test_real_cluster.py

test-pythons:    ## what needs no torch, on every other Python that is here (3.12, 3.13, 3.14)
	bash scripts/test_pythons.sh

check: setup docs ## ruff, mypy --strict, import-linter, documentation, the page's types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	if [ -d $(WEB)/node_modules ]; then cd $(WEB) && npm run --silent check; fi

docs: setup      ## the documentation as a site in build/docs; a broken link is an error
	$(BIN)/sphinx-build -q -E -W --keep-going -n -b html docs build/docs

bench: setup     ## every benchmark, each goal beside its figure; SHORT=1: at most 15 min
	$(BIN)/python bench/suite.py $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY)) --render docs/measurements.md

clean:           ## remove everything make made
	rm -rf $(VENV) $(VENV)-* $(WEB)/dist $(WEB)/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
