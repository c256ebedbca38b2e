# One command a purpose; .ci/run calls the same ones.
#
#   make verify [BACKENDS="numpy torch jax"]   verify backends, with only what they need installed
#   make test                                  every check of the project: format, lint, types, tests
#   make lint, make types, make pytest         one of them
#   make browser                               what the tests of the HTML report open it in, where that can be installed
#   make services                              what the tests of `--scheduler mpi` and `--database` talk to, likewise
#   make format                                let ruff rewrite what it can
#   make bench                                 the benchmarks, in the environment of the tests
#   make conformance [LIBRARIES="torch flax"]  verify published libraries, an environment each, with the tests that need
#                                              them, and write docs/conformance.md and docs/models.md
#   make clean                                 remove what these commands made
#
# BACKENDS takes whatever `blocklaws verify` takes: registered names, package.module:attribute, path/to/file.py:attribute,
# mapping files. Of those only torch and jax bring a framework; another one is asked for with EXTRAS (EXTRAS=torch).
# ARGS is handed on: make verify ARGS="--profile quick", make pytest ARGS="tests/test_house.py -n 0".

PYTHON ?= python3
BACKENDS ?= numpy
EXTRAS ?=
LIBRARIES ?=
ARGS ?=
WORKERS ?= 2

# A block of a test is far too small to share among threads, and the workers of pytest-xdist already fill the cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

# Paths stay relative, so a folder with any name will do, spaces included.
VERIFY := .venv-verify
TEST := .venv-test
PIP_INSTALL := -m pip --disable-pip-version-check -q install -c constraints.txt

# One stamp for each set of extras: asking for torch later adds it to what is there, and asking again costs nothing.
empty :=
comma := ,
space := $(empty) $(empty)
extras := $(sort $(filter torch jax,$(BACKENDS)) $(EXTRAS))
verify_stamp := $(VERIFY)/installed-$(subst $(space),-,$(strip base $(extras)))
test_stamp := $(TEST)/installed

.PHONY: verify test lint types pytest browser services format bench conformance clean
.DEFAULT_GOAL := verify

verify: $(verify_stamp)
	@$(VERIFY)/bin/blocklaws verify $(BACKENDS) --workers $(WORKERS) $(ARGS)

# The tests come last, so that their closing line is the last thing printed.
test: lint types pytest

lint: $(test_stamp)
	@$(TEST)/bin/python -m ruff format --check .
	@$(TEST)/bin/python -m ruff check .

# mypy reads files and not import hooks, so it is shown the folders where an installation would put them.
types: $(test_stamp)
	@rm -rf build/types && mkdir -p build/types/blocklaws
	@ln -s "$(CURDIR)"/blocklaws/* "$(CURDIR)/spec" "$(CURDIR)/backends" "$(CURDIR)/properties" build/types/blocklaws/
	@$(TEST)/bin/python -m mypy

pytest: $(test_stamp) browser services
	@$(TEST)/bin/python -m pytest -q -n $(WORKERS) --hypothesis-profile=ci $(ARGS)

# Debian's Chromium, installed once, by root alone. Where there is none, the tests that need it are skipped and say so.
browser:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium for the tests of the HTML report" >&2; \
	    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	      apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 \
	      || echo "chromium could not be installed; the tests that need it will be skipped" >&2; \
	  fi; }

# Debian's Open MPI and Redis, in the same way. The tests start and end what they need of them, on the loopback interface.
services:
	@{ command -v mpiexec && command -v redis-server; } >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing openmpi and redis for the tests of --scheduler and --database" >&2; \
	    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	      apt-get -qq install -y --no-install-recommends openmpi-bin redis-server; } >/dev/null 2>&1 \
	      || echo "openmpi and redis could not be installed; the tests that need them will be skipped" >&2; \
	  fi; }

format: $(test_stamp)
	@$(TEST)/bin/python -m ruff format .
	@$(TEST)/bin/python -m ruff check --fix .

bench: $(test_stamp)
	@$(TEST)/bin/python $(PIP_INSTALL) -e ".[bench]"
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(TEST)/bin/python "$$script" $(ARGS); done

conformance: $(test_stamp)
	@$(TEST)/bin/python conformance/run.py $(LIBRARIES) --workers $(WORKERS) $(ARGS)

clean:
	@rm -rf $(VERIFY) $(TEST) .venv-conformance-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VERIFY)/created $(TEST)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "blocklaws needs Python 3.11 or newer, and '$(PYTHON)' is not: name another one, as in make PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv --clear $(@D)
	@touch $@

$(VERIFY)/installed-%: $(VERIFY)/created pyproject.toml constraints.txt
	@echo "installing blocklaws$(if $(extras), with $(extras)) into $(VERIFY)" >&2
	@$(VERIFY)/bin/python $(PIP_INSTALL) -e ".$(if $(extras),[$(subst $(space),$(comma),$(extras))])"
	@touch $@

$(test_stamp): $(TEST)/created pyproject.toml constraints.txt
	@echo "installing blocklaws with everything its tests need into $(TEST)" >&2
	@$(TEST)/bin/python $(PIP_INSTALL) -e ".[test]"
	@touch $@
