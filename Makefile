# Every command sets up what it needs in .venv; nothing has to be installed by hand but Python 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

# Torch comes first and alone, at the pinned version: a looser wish may pull gigabytes of another build.
INSTALL = $(PIP) install --constraint constraints.txt torch && $(PIP) install --constraint constraints.txt --editable

# One thread that does not spin per process: two processes share two cores (see CONTRIBUTING.md).
QUIET_THREADS = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.PHONY: demo test check registry bench docs clean

demo: $(VENV)/.report
	rm -rf demo
	$(BIN)/bayesemble compare --out demo

test: $(VENV)/.test
	@! $(PIP) show torchvision > /dev/null 2>&1 || { echo "torchvision is installed in $(VENV): there is no build of" \
	"it for this torch, and packages that find it break. Say $(BIN)/pip uninstall torchvision, or make clean"; exit 1; }
	$(QUIET_THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(QUIET_THREADS) $(BIN)/python -m pytest tests/test_layout.py

registry: $(VENV)/.core
	$(BIN)/python scripts/registry.py

bench: $(VENV)/.core
	$(BIN)/python benchmarks/speed.py

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) "."
	touch $@

$(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) ".[$*]"
	$(PIP) install --no-deps "curvlinops-for-pytorch>=3,<4"
	touch $@
