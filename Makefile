# SPDX-License-Identifier: Apache-2.0
# make demo     train a GPT on a simulated Trainium and report
# make test     formatting, lint, types, layers, tests
# make test-all the same, with the tests that take long (CONTRIBUTING.md lists them)
# make bench    the speed table
# make attack  what docs/trust.md promises, attacked: poisoned caches, hostile folders and names, kills, faults
# make opdb     PyTorch's own operator tests on the chip, and the table of operators
# make jaxgrid  functions of JAX on the chip, and their table
# make versions  each supported PyTorch, JAX, TensorFlow and Python, in an environment of its own, and the table of versions
# make wheel    a wheel with the simulator's loops compiled, for this system and any processor of the last ten years
# make site     the documentation as a site, in .site/; a link that leads nowhere fails it
# make release  wheel and source distribution, tried in empty environments, with their sums, in dist/
# make zoo      models of other packages, trained on the chip, and the table of models (an environment of its own)
# make sweep    models of other packages in real sizes, estimated, and judged (the environment of make zoo)
# make scripts  scripts of others on the chip and on the CPU, and their table (an environment of its own; SOURCES=folder)
# Each makes .venv first if it is not there, with what it needs and no more; a second call starts at once.

TARGET ?= trn1.2xlarge
# Each process gets half of the tests in their order, so that what a file prepares is prepared in one of them, and then
# takes over from the other what is left.
PYTEST_ARGS ?= -n 2 --dist worksteal
test: CHOSEN = -m "not slow"

# The first Python from 3.11 on that can make virtual environments.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; \
	done)
# PyTorch's own index has wheels without CUDA, a tenth of the size; where it cannot be reached the usual index serves.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := torch==2.13.0

BIN := .venv/bin
DEMO := .venv/.demo
READY := .venv/.ready
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

LOOPS := $(BIN)/python -m trnlab.loops

.PHONY: demo test test-all check attack bench opdb jaxgrid versions zoo sweep scripts site wheel release format clean

demo: $(DEMO)
	@$(LOOPS)
	$(BIN)/trnlab run --target $(TARGET) examples/train_gpt.py

# Bytecode first: many tests start processes, each of which would compile all modules of the package where the
# environment has Python keep none (PYTHONDONTWRITEBYTECODE), or together with others at the start.
test test-all: check
	@$(BIN)/python -m compileall -q src
	@$(LOOPS)
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(CHOSEN)

check: $(READY)
	$(BIN)/ruff format --check src tests tools examples
	$(BIN)/ruff check src tests tools examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	$(BIN)/python tools/bench.py

zoo: .venv-zoo/.ready
	.venv-zoo/bin/python -m tools.zoo --page
	.venv-zoo/bin/python -m pytest tests/zoo

sweep: .venv-zoo/.ready
	.venv-zoo/bin/python -m tools.sweep

.venv-zoo/.ready: pyproject.toml
	@test -x .venv-zoo/bin/python || $(PYTHON) -m venv .venv-zoo
	@echo "installing into .venv-zoo"
	@.venv-zoo/bin/python -m pip install -q --disable-pip-version-check --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH) torchvision
	@.venv-zoo/bin/python -m pip install -q --disable-pip-version-check -e . transformers timm diffusers accelerate peft e3nn jax pytest
	@touch $@

scripts: .venv-scripts/.ready
	.venv-scripts/bin/python -m tools.scripts --page $(if $(SOURCES),--sources $(SOURCES))

.venv-scripts/.ready: pyproject.toml setup.py src/trnlab.pth
	@test -x .venv-scripts/bin/python || $(PYTHON) -m venv .venv-scripts
	@echo "installing into .venv-scripts"
	@.venv-scripts/bin/python -m pip install -q --disable-pip-version-check --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH) torchvision
	@.venv-scripts/bin/python -m pip install -q --disable-pip-version-check -e '.[test-frameworks]' transformers datasets evaluate accelerate trl peft lightning stable-baselines3 gymnasium h5py scikit-learn tensorboard matplotlib requests tiktoken pillow six torchdata tyro einops
	@.venv-scripts/bin/python -m pip install -q --no-deps --target .venv-scripts/transformers-4.44 transformers==4.44.0 tokenizers==0.19.1 huggingface-hub==0.24.5
	@.venv-scripts/bin/python -m pip install -q --no-deps --target .venv-scripts/triton triton==3.9.0
	@.venv-scripts/bin/python -m pip install -q --no-deps --target .venv-scripts/transformers-4.53 transformers==4.53.3 tokenizers==0.21.2 huggingface-hub==0.32.4 accelerate==1.7.0 datasets==2.21.0 dill==0.3.8 multiprocess==0.70.16
	@touch $@

attack: $(READY)
	$(BIN)/python -m tools.attack

opdb: $(READY)
	$(BIN)/python -m tools.opdb --jobs 2 --json .opdb_cache/results.jsonl
	$(BIN)/python -m tools.opdb.table .opdb_cache/results.jsonl

jaxgrid: $(READY)
	$(BIN)/python -m tools.jaxgrid --page

versions: $(READY)
	$(BIN)/python -m tools.versions

site: $(READY)
	$(BIN)/python -m tools.site

format: $(READY)
	$(BIN)/ruff format src tests tools examples
	$(BIN)/ruff check --fix src tests tools examples

# What the demo needs: PyTorch and the core. PyTorch comes first and by itself, so that no other package is looked for
# on its index.
$(DEMO): pyproject.toml setup.py src/trnlab.pth constraints.txt
	@test -n "$(PYTHON)" || { echo "trnlab needs Python 3.11 or later with venv; set PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing PyTorch and trnlab into .venv (about 1.2 GB, once)"
	@$(PIP) --retries 1 --no-deps --extra-index-url $(TORCH_INDEX) $(TORCH)
	@$(PIP) -e '.[torch]'
	@touch $@

$(READY): $(DEMO)
	@echo "installing what the tests need into .venv (about 2.7 GB more, once)"
	@$(PIP) -e '.[dev]'
	@touch $@

# x86-64-v3: with AVX2 and FMA. A machine that has less compiles the loops itself, as one of another system does.
wheel: $(DEMO)
	$(LOOPS) --processor x86-64-v3
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .
	@rm -r src/trnlab/loops/made build

release: $(READY)
	$(BIN)/python -m tools.release

clean:
	rm -rf .site src/trnlab/loops/made .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
