# Every target makes .venv first when it is absent. CPU or GPU follows the torch that constraints.txt pins.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install install-locked extras demo test coverage fuzz lint types style device speed docs wheel weaknesses clean

install: $(STAMP)

# torch is asked for by exact version first: a looser request can pull gigabytes of CUDA packages.
# Bytecode is made at the end, by all cores; pip would make it with one. Some packages hold files that cannot be compiled.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps torchvision
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev,dp,ray,slurm,docs,onnx]"
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true
	touch $(STAMP)

# The libraries whose integrations are tested when they are there, and skipped with a reason when not.
extras: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[lightning,huggingface]"

# The same versions by hash. pip refuses hashes together with an editable install, so this is a road of its own.
install-locked:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: install
	$(BIN)/leakscope audit configs/demo.yaml --store runs/store --out runs/demo

test: install
	$(MAKE) --no-print-directory --jobs 2 types style device
	$(BIN)/python -m pytest -n 2 --dist worksteal
	LEAKSCOPE_SIMULATED=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/simulated

# The same tests with lines counted, which takes a quarter longer.
coverage: install
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered --cov-fail-under=85

# Hostile files, settings and reports by the thousand; `make test` tries 2,000.
fuzz: install
	LEAKSCOPE_FUZZ=$${LEAKSCOPE_FUZZ:-20000} $(BIN)/python -m pytest -n 2 tests/security/test_fuzz.py \
		tests/security/test_fuzz_commands.py

lint: types style

types: install
	$(BIN)/mypy

style: install
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs README.md CONTRIBUTING.md CHANGELOG.md

# Compiled while types are checked; without a compiler its tests skip, and say so.
device: install
	$(BIN)/python -c "from leakscope.testing import device; print(device.unavailable() or 'simulated device: ready')"

speed: install
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# The wheel, and beside it a bill of materials (CycloneDX) of what it needs.
wheel: install
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python .ci/sbom.py dist

# Known weaknesses of what we depend on, where pip-audit and its advisories can be reached. Tells, and stops nothing.
weaknesses: install
	.ci/weaknesses $(BIN)/python

docs: install
	$(BIN)/python -c "import material" 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache

.PHONY: methods
methods: install
	$(BIN)/python docs/method_pages.py
	$(BIN)/python docs/reference_pages.py
	$(BIN)/python docs/update_readme.py
	$(BIN)/leakscope schema > docs/audit-config.schema.json
