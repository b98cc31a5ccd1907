# Each target does all the set-up it needs: `make test` and `make reproduce` work in a fresh clone.
#   make setup                       virtual environment in .venv with everything installed
#   make reproduce [SCALE=smoke]     the core's experiments, from data and weights to tables and ledger
#   make reproduce SCALE=gpu ONLY=types_paper      some experiments alone, by name
#   make plan MODEL=llama-2-70b SCALE=cluster   what an experiment needs: memory, hours, devices
#   make test | lint | report | clean

PYTHON ?= python3
SCALE  ?=
ONLY   ?=
VENV   ?= .venv
# Installed before anything else, so that no dependency brings another build of it.
TORCH  ?= torch==2.13.0
TEST   ?= tests
WORKERS ?= 2

BIN   := $(abspath $(VENV))/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip -q -q --disable-pip-version-check

# Nothing here asks a hub or reports home unless the caller says so (FOCUS_HUB=1 allows the hub).
export HF_HUB_OFFLINE          ?= $(if $(FOCUS_HUB),0,1)
export HF_HUB_DISABLE_TELEMETRY ?= 1
export DO_NOT_TRACK            ?= 1
export DVC_NO_ANALYTICS        ?= 1
export TOKENIZERS_PARALLELISM  ?= false
export PATH := $(BIN):$(PATH)
# A scale runs in another folder.
ifdef FOCUS_DATA
export FOCUS_DATA := $(abspath $(FOCUS_DATA))
endif

.PHONY: setup reproduce core plan test lint report clean
.DEFAULT_GOAL := setup

# --no-compile: compiling every module takes a minute, and few are imported; Python compiles those then.
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH), then the rest, into $(VENV) (some minutes the first time)"
	$(PIP) install --no-compile "$(TORCH)"
	$(PIP) install --no-compile -e ".[experiments,dev]" -c constraints.txt
	touch $@

# What dvc.lock and the committed results say is up to date is not run again; delete a result, and it
# is made again. At another scale than params.yaml's it runs in a copy under build/, which stays there,
# so that no tracked file changes and a second run goes on from the first.
reproduce: $(STAMP)
	folder=$$($(BIN)/python -m experiments.scale $(SCALE)) && $(MAKE) -C "$$folder" core BIN=$(BIN) ONLY="$(ONLY)"

# The settings are checked first, whatever is asked for: dvc says less of what is wrong.
core:
	core=$$($(BIN)/python -m experiments.settings --targets core) && \
	$(BIN)/dvc repro $(if $(ONLY),$(addprefix read@,$(ONLY)),$$core)
	$(BIN)/dvc repro --single-item analysis

# Counted without weights, in seconds; all models at once: python -m experiments.stages.cost --all
plan: $(STAMP)
	$(BIN)/python -m experiments.stages.cost $(MODEL) $(if $(SCALE),--scale $(SCALE))

# Two files of tests at a time. xdist would start with the files of the most tests and end with the
# longest, on one worker: --no-loadscope-reorder. WORKERS=0: one process, as `pytest` alone does.
test: $(STAMP)
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tables, figures, ledger and page again, from the result files that are there.
report: $(STAMP)
	$(BIN)/python -m analysis

clean:
	rm -rf $(VENV) data checkpoints build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
