# Two commands are enough on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out/demo

.PHONY: architectures browser docs model reference release setup torture demo demo-real demo-seeds smoke slurm slurm-programs test quick check bench bench-full clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || (echo "Python 3.11 or newer is needed: make PYTHON=python3.12" && false)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[gguf,studies]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	@touch $@

demo: $(VENV)/.installed            ## the main job on the embedded task: audit, train, audit, report
	$(BIN)/flip-flop demo --out $(OUT) --overwrite

# A small real model, and sentences of movie reviews. What is downloaded once is not downloaded again.
SMOLLM2 := models/SmolLM2-135M-Instruct
MOVIES := examples/movies
REAL := out/demo-real
ON_MOVIES := --model $(SMOLLM2) --task $(MOVIES)/task.yaml --chat-template off

model: $(SMOLLM2)                   ## download SmolLM2-135M-Instruct (100 to 270 MB) into models/

$(SMOLLM2): | $(VENV)/.installed
	$(BIN)/python $(MOVIES)/fetch.py model $@

$(MOVIES)/test.jsonl: | $(VENV)/.installed
	$(BIN)/python $(MOVIES)/fetch.py reviews $(MOVIES)

demo-real: $(SMOLLM2) $(MOVIES)/test.jsonl  ## audit, train, audit, report with the real model; fifteen minutes on two cores
	rm -rf $(REAL)
	$(BIN)/flip-flop audit $(ON_MOVIES) --out $(REAL)/base
	$(BIN)/flip-flop audit $(ON_MOVIES) --templates held_out --out $(REAL)/base_held_out
	$(BIN)/flip-flop train $(ON_MOVIES) --config $(MOVIES)/train.yaml --out $(REAL)/f2c
	$(BIN)/flip-flop audit $(ON_MOVIES) --adapter $(REAL)/f2c/adapter --out $(REAL)/after
	$(BIN)/flip-flop audit $(ON_MOVIES) --adapter $(REAL)/f2c/adapter --templates held_out --out $(REAL)/after_held_out
	$(BIN)/flip-flop report $(addprefix $(REAL)/,base after base_held_out after_held_out) --out $(REAL)/report.html

# PromptSource's templates come through pip; where that fails, the tests that need them are skipped by name.
CACHE := $(CURDIR)/$(VENV)/cache
# Each worker imports torch and our modules with type checks: seconds with bytecode, half a minute without.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 XDG_CACHE_HOME=$(CACHE) $(BIN)/pytest --quiet --dist loadgroup

test: check                         ## everything CI runs: style, types, tests, docstring examples
	-XDG_CACHE_HOME=$(CACHE) $(BIN)/flip-flop templates fetch
	$(PYTEST) -n 3 -m "not slurm"

quick: check                        ## for each change, two minutes on two cores: all but what is slow or needs Slurm
	$(PYTEST) -n 2 -m "not slow and not slurm"

check: $(VENV)/.installed-dev       ## style and types alone
	$(BIN)/ruff check src tests benchmarks evidence torture examples docs/*.py
	$(BIN)/ruff format --check src tests benchmarks evidence torture examples docs/*.py
	$(BIN)/mypy

demo-seeds: $(VENV)/.installed      ## the demo for three seeds; minutes
	for seed in 0 1 2; do $(BIN)/flip-flop demo --out out/demo-seed-$$seed --seed $$seed --overwrite --quiet; done

smoke: $(VENV)/.installed           ## a study end to end on the embedded model: grid, tables, figures; minutes
	$(BIN)/flip-flop study run smoke

SHARE := 1
torture: $(VENV)/.installed-dev     ## signals, damaged files, full disks, races; hours (SHARE=0.02: minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m torture --share $(SHARE)

# Root alone may start Slurm's daemons, and install them where they are not: Debian's and Ubuntu's packages.
SLURM_PATH := $(PATH):/usr/sbin:/sbin

slurm-programs:
	@(for program in slurmctld slurmd munged sbatch; do PATH="$(SLURM_PATH)" command -v $$program || exit 1; done) > /dev/null || \
	  (timeout 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq slurmctld slurmd slurm-client munge) > /dev/null

# Root alone may install it. Tests of the report's script open the page in it.
browser:
	@command -v chromium > /dev/null || \
	  (timeout 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq chromium) > /dev/null

slurm: slurm-programs $(VENV)/.installed-dev  ## a study on a real Slurm of two nodes on this machine, one of which is lost; minutes
	PATH="$(SLURM_PATH)" $(BIN)/pytest --quiet -rs -m slurm

# Scoring and the training step against their peers, interleaved, with equality checked; see benchmarks/README.md.
# glibc is told to keep what is freed: else each large tensor is given back, and its pages are asked for again.
KEEP_MEMORY := MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=8000000000
bench: $(VENV)/.installed-dev       ## the toy model against its peers; about half an hour on two cores
	$(KEEP_MEMORY) $(BIN)/python -m benchmarks.run --model toy --out out/bench/toy.json

bench-full: $(VENV)/.installed-dev  ## the shape of a 0.5B model; about an hour on two cores
	$(KEEP_MEMORY) $(BIN)/python -m benchmarks.run --model 0.5b --out out/bench/0.5b.json

architectures: $(VENV)/.installed-dev ## benchmarks/ARCHITECTURES.md: every causal language model of transformers, tiny; ten minutes
	$(BIN)/python -m benchmarks.architectures --out benchmarks/ARCHITECTURES.md

docs: $(VENV)/.installed            ## the site, from docs/, README.md and the docstrings, into out/site; a warning is an error
	$(BIN)/pip install --quiet --constraint constraints.txt --group docs
	$(BIN)/python docs/site.py out/pages
	$(BIN)/mkdocs build

reference: $(VENV)/.installed       ## docs/reference: the generated text, after a change of an option, a setting or an error
	$(BIN)/python docs/site.py

# The tools have an environment of their own, and the wheel a new one: nothing of the checkout is in it.
RELEASE := out/release
release:                            ## dist/: sdist and wheel, built, checked, installed, and used in an empty folder
	rm -rf dist $(RELEASE) && mkdir -p $(RELEASE)/empty
	$(PYTHON) -m venv $(RELEASE)/tools && $(PYTHON) -m venv $(RELEASE)/venv
	$(RELEASE)/tools/bin/pip install --quiet --upgrade "pip>=25.1"
	$(RELEASE)/tools/bin/pip install --quiet --group release
	$(RELEASE)/tools/bin/python -m build --outdir dist
	$(RELEASE)/tools/bin/twine check --strict dist/*
	$(RELEASE)/tools/bin/cffconvert --validate
	$(RELEASE)/venv/bin/pip install --quiet --constraint constraints.txt dist/*.whl
	cp examples/reviews/labelled.csv $(RELEASE)/empty/reviews.csv
	cd $(RELEASE)/empty && ../venv/bin/flip-flop --help > help.txt && ../venv/bin/flip-flop init reviews.csv < /dev/null \
	  && ../venv/bin/flip-flop audit --model demo --task task.yaml --out before --quiet \
	  && ../venv/bin/flip-flop report before --out report.html

clean:
	rm -rf $(VENV) out dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
