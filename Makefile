# Thin verbs; the logic is in src/serving_study. `make` alone prints this help.
PYTHON ?= python3
STUDY := .venv/harness/bin/serving-study
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run plan doctor compare predict advise price book test bench lint clean

help:  ## show this help
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16
	@echo "  SECTION=3 names a section; ARGS='-p repeats=2 --fresh' goes to serving-study; PYTHON=python3.12 chooses the interpreter;"
	@echo "  VLLM_PYTHON=/path/to/python uses a vLLM that is already there."

setup: .venv/harness/lock.sha256  ## make the harness's environment (the other verbs do this themselves)

.venv/harness/lock.sha256: env/harness.lock pyproject.toml
	@PYTHONPATH=src $(PYTHON) -m serving_study.environments harness
	@touch $@

run: setup section  ## measure a section on this machine and build the book: make run SECTION=3
	@$(STUDY) run $(SECTION) $(ARGS)

plan: setup section  ## say what `make run` would measure, and how long it takes
	@$(STUDY) run $(SECTION) --dry-run $(ARGS)

.PHONY: section
section: setup
	@test -n "$(SECTION)" || { echo "which section? make run SECTION=N, with N one of:"; $(STUDY) sections; exit 2; }

doctor: setup  ## look for every known trap before anything starts: make doctor, or make doctor SECTION=3
	@$(STUDY) doctor $(SECTION) $(ARGS)

compare: setup  ## say which figures of one study reproduce another's: make compare A=h200x1 B=reference/l4x1
	@$(STUDY) compare $(A) $(B) $(ARGS)

predict: setup  ## say what arithmetic expects on a host: make predict HOST=g6.xlarge SECTION=3
	@$(STUDY) predict --host $(HOST) $(if $(SECTION),--section $(SECTION)) $(ARGS)

advise: setup  ## rank the measured arms that meet targets: make advise SLO='ttft_p99_ms=500 tpot_p50_ms=40'
	@$(STUDY) advise $(foreach slo,$(SLO),--slo $(slo)) $(if $(HOST),--host $(HOST)) $(if $(SECTION),--section $(SECTION)) $(ARGS)

price: setup  ## say what instances cost an hour, by AWS or by the table that ships: make price HOST=g6.xlarge, or make price
	@$(STUDY) price $(HOST) $(ARGS)

book: setup  ## build the book from the published chapters
	@$(STUDY) book

# What is marked `alone` drives a browser or runs the real engine on every core; the rest runs two at a time.
test: setup  ## run all tests: each room's, with the real CPU engine, the book in a real browser; ARGS goes to pytest
	@.venv/harness/bin/python tests/prepare.py
ifeq ($(strip $(ARGS)),)
	@failed=0; for tests in "-n 2 --dist loadfile -m not\ alone" "-m alone"; do eval .venv/harness/bin/python -m pytest $$tests || failed=1; done; exit $$failed
else
	@.venv/harness/bin/python -m pytest $(ARGS)
endif

bench: setup  ## compare with `vllm bench sweep` over the same arms and minutes: intervals, and what is said of equal arms
	@.venv/harness/bin/python benchmarks/against_bench_sweep.py $(ARGS)

LINTED := src tests benchmarks book/_ext data/prompts notebooks
lint: setup  ## check the code's style, notebooks included, and which room imports which; .ci/run does this first
	@failed=0; for check in "ruff format --check $(LINTED)" "ruff check $(LINTED)" "lint-imports --no-logo"; do .venv/harness/bin/$$check || failed=1; done; exit $$failed

clean:  ## remove the built book and caches; results and environments stay
	@rm -rf _build .pytest_cache .ruff_cache
