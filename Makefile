# Each target sets up what it needs and says what it skips. ARGS="…" is passed on to the program behind it.
SHELL := /bin/bash
PYTHON ?=
ARGS ?=
VENV := .venv/bin/python

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint matrix differential bench install uninstall packages

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: packages .venv/ready ## a container loses its GPU and gets it back (as an ordinary user: on a simulated node)
	@$(VENV) -m tests.lab.demo $(ARGS)

test: packages lint ## all checks and all tests that can run here, e.g. ARGS="-k status"
	@[ -n "$(ARGS)" ] || $(VENV) -m tests.lab.distribution || echo "Tests on other distributions are skipped."
	@$(VENV) -m pytest $(ARGS)

matrix: packages .venv/ready ## the main job on Debian 11, 12 and 13, which are built first (root, some 10 minutes)
	@$(VENV) -m tests.lab.distribution
	@$(VENV) -m pytest -m matrix $(ARGS)

differential: packages .venv/ready ## ask the kernel and gpuguard the same, e.g. ARGS="--comparisons 1000000 --seed 7" (root)
	@$(VENV) -m tests.kernel.differential $(ARGS)

lint: .venv/ready ## format, lint, types, shell scripts, and which module may import which
	$(VENV) -m ruff check
	$(VENV) -m ruff format --check
	$(VENV) -m mypy
	.venv/bin/lint-imports
	.venv/bin/shellcheck --external-sources tools/* .ci/run

bench: packages .venv/ready ## measure outages and what gpuguard costs (root, an hour for all), e.g. ARGS="first-loss --samples 500"
	@$(VENV) -m tests.bench $(ARGS)

install: ## install on this machine and start guarding it; needs root and systemd
	@tools/install

uninstall: ## remove what install installed; the configuration stays
	@tools/uninstall

packages:
	@tools/packages

.venv/ready: pyproject.toml tools/venv
	@PYTHON="$(PYTHON)" tools/venv
