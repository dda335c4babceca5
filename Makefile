# One command for each thing a person does here. `make` alone lists them.
#
# Needs Python >= 3.10, a C compiler and make; everything else is installed, pinned with hashes, into .venv.
# Each installation leaves a stamp, so that it runs once, and again only when what it depends on has changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
FRAMEWORKS := .venv-frameworks
DOCS := .venv-docs
FLINK := .venv-flink
BIN := $(VENV)/bin
PACKAGES := telemetry instrumentation checkpoint diagnosis agents transport processors simulator grafana commands evaluation
# What the training process runs, and what reads it: this is what depends on the version of torch.
OLDEST_TESTS := $(addprefix tests/instrumentation/,test_ring_writer.py test_input_checks.py test_run_delay.py test_collectives_coverage.py test_collectives_failures.py test_jobs.py test_loss.py test_optimizer_edges.py test_phases.py test_steps.py) \
  tests/checkpoint/test_state_layout.py
# Whole jobs, simulated or real ones that a test needs once: no clock is watched, but each takes seconds.
JOB_TESTS := $(addprefix tests/simulator/,test_company.py test_findings.py test_findings_grounds.py test_findings_intra.py \
    test_idle_sensors.py test_rules.py test_shared_mechanisms.py test_sound_days.py test_tie.py) \
  $(addprefix tests/evaluation/,bench test_bench_suites.py test_simulate.py test_straggler_trace.py) \
  $(addprefix tests/benchmarks/,test_faultbench_fill.py test_faultbench_record.py test_fit_confidence.py) \
  tests/commands/report tests/commands/test_goodput_files.py tests/diagnosis/flight_recorder/test_real_dumps.py \
  tests/same_incidents/test_simulated.py
# These need no clock, no job and no service: any number of them beside each other.
CHECK_TESTS := $(addprefix tests/,diagnosis golden house processors same_incidents scoreboard simulator telemetry transport) \
  tests/evaluation/reference tests/benchmarks/test_published_figures.py tests/commands/test_views.py \
  $(addprefix tests/commands/notify/,test_pages.py test_receivers.py test_routes.py) \
  $(addprefix tests/commands/respond/,test_desk.py test_hooks.py test_plan.py) \
  $(addprefix tests/agents/,test_evidence_requests.py test_no_secret_leaves.py test_observability_export.py test_outbox.py) \
  $(addprefix tests/agents/collectors/,test_gpu_bus.py test_gpu_values.py test_network_collector.py test_topology_collector.py) \
  $(addprefix tests/grafana/,test_annotate.py test_dashboards.py test_paging.py test_rules.py test_runbooks.py test_sync.py) \
  $(addprefix tests/scenarios/,test_draw.py test_judge.py test_outputs.py test_verdicts_again.py)
# These watch the clock, so they have the machine for themselves.
CLOCK_TESTS := tests/clock
# Everything that ends up in the optional C modules, and what names the entry points.
PACKAGE_SOURCES := pyproject.toml $(wildcard setup.py) $(wildcard instrumentation/*.c) $(wildcard telemetry/*.[ch]) $(wildcard diagnosis/*.c) __init__.py
# Some of them wait for a moment, so that more run than there are cores.
CHECK_WORKERS := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) * 3 / 2)))
# So many of the slowest tests are told.
DURATIONS ?= 15
# Two cores are shared by up to six ranks: one thread each.
export OMP_NUM_THREADS := 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# $(call environment,FOLDER): an empty virtual environment, or one line that says what is missing.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "whichrank needs Python 3.10 or later; '$(PYTHON)' is not (choose another: make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing: install it (Debian and Ubuntu: the package python3-venv), then run make again" >&2; exit 1; }
	@[ -x $(1)/bin/python ] || { echo "making the environment $(1)"; $(PYTHON) -m venv $(1); }
endef

# $(call install,FOLDER,ARGUMENTS): uv installs about five times faster than pip; where it has no build, pip does it.
# Bytecode is made here, as pip does, else the four ranks of the first job would all make it at once.
define install
	@[ -x $(1)/bin/uv ] || { $(1)/bin/python -m pip --version >/dev/null 2>&1 || $(1)/bin/python -m ensurepip >/dev/null; \
	  $(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt \
	  || echo "uv cannot be installed here; pip does the rest, more slowly"; }
	@if [ -x $(1)/bin/uv ]; then $(1)/bin/uv pip install --quiet --compile-bytecode --python $(1)/bin/python $(2); \
	  else $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2); fi
endef

$(VENV)/.requirements: requirements/newest.txt requirements/bootstrap.txt
	$(call environment,$(VENV))
	@echo "installing requirements/newest.txt (torch among them: a few minutes the first time)"
	$(call install,$(VENV),--require-hashes -r requirements/newest.txt)
	@touch $@

$(VENV)/.package: $(VENV)/.requirements $(PACKAGE_SOURCES)
	$(call install,$(VENV),--no-deps --no-build-isolation --editable .)
	@mkdir -p $(VENV)/typing && ln -sfn $(CURDIR) $(VENV)/typing/whichrank
	@touch $@

$(OLDEST)/.requirements: requirements/oldest.txt requirements/bootstrap.txt
	$(call environment,$(OLDEST))
	@echo "installing requirements/oldest.txt (torch 2.6: a few minutes the first time)"
	$(call install,$(OLDEST),--require-hashes -r requirements/oldest.txt)
	@touch $@

# After .venv's own: both builds of the C module land in the same place, and are equal (stable ABI).
$(OLDEST)/.package: $(OLDEST)/.requirements $(VENV)/.package
	$(call install,$(OLDEST),--no-deps --no-build-isolation --editable .)
	@touch $@

$(FRAMEWORKS)/.requirements: requirements/frameworks.txt requirements/bootstrap.txt
	$(call environment,$(FRAMEWORKS))
	@echo "installing requirements/frameworks.txt (torch and six frameworks: some minutes the first time)"
	$(call install,$(FRAMEWORKS),--require-hashes -r requirements/frameworks.txt)
	@touch $@

$(FRAMEWORKS)/.package: $(FRAMEWORKS)/.requirements $(VENV)/.package
	$(call install,$(FRAMEWORKS),--no-deps --no-build-isolation --editable .)
	@touch $@

# Flink's packages have builds for Python 3.10 to 3.12.
$(FLINK)/.requirements: requirements/flink.txt requirements/bootstrap.txt
	$(call environment,$(FLINK))
	@$(FLINK)/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
	  || { rm -rf $(FLINK); echo "Flink has no build for this Python: choose 3.10 to 3.12 with PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "installing requirements/flink.txt (700 MB: a minute the first time)"
	$(call install,$(FLINK),--require-hashes -r requirements/flink.txt)
	@touch $@

$(FLINK)/.package: $(FLINK)/.requirements $(VENV)/.package
	$(call install,$(FLINK),--no-deps --no-build-isolation --editable .)
	@mkdir -p $(FLINK)/path && ln -sfn $(CURDIR) $(FLINK)/path/whichrank
	@touch $@

$(FLINK)/jars/.fetched: deploy/flink/pom.xml deploy/flink/jars.sha256 deploy/flink/fetch.sh
	@deploy/flink/fetch.sh $(FLINK)/jars
	@touch $@

$(DOCS)/.requirements: requirements/docs.txt requirements/bootstrap.txt
	$(call environment,$(DOCS))
	@echo "installing requirements/docs.txt"
	$(call install,$(DOCS),--require-hashes -r requirements/docs.txt)
	@touch $@

.PHONY: setup
setup: $(VENV)/.package ## install everything into .venv (the other targets do it too)

.PHONY: setup-oldest
setup-oldest: $(OLDEST)/.package ## install the oldest supported torch into .venv-oldest

.PHONY: setup-frameworks
setup-frameworks: $(FRAMEWORKS)/.package ## install Lightning, HF, DeepSpeed, Megatron, torchtitan into .venv-frameworks

.PHONY: setup-flink
setup-flink: $(FLINK)/.package $(FLINK)/jars/.fetched ## install Flink for Python into .venv-flink, and its Kafka connector (Java 17, Maven)

.PHONY: demo
demo: setup ## a real 4-rank job with a fault drawn at random; checks that whichrank finds it
	@$(BIN)/whichrank demo

# torch 2.6 has no build for Python 3.14 and later.
HAS_OLDEST := $(shell $(PYTHON) -c 'import sys; print(int(sys.version_info < (3, 14)))' 2>/dev/null)
SETUP_OLDEST := $(if $(filter 1,$(HAS_OLDEST)),setup-oldest)

.PHONY: check
check: lint ## lint, types, and all tests that need no clock, no job (real or simulated) and no service: minutes
	@$(BIN)/python -m pytest $(CHECK_TESTS) $(addprefix --ignore=,$(JOB_TESTS)) -n $(CHECK_WORKERS) --dist loadfile --no-loadscope-reorder --durations=$(DURATIONS)

.PHONY: test
test: setup $(SETUP_OLDEST) ## the tests, and those of the instrumentation on the oldest torch
	@$(BIN)/python -m pytest $(CHECK_TESTS) $(JOB_TESTS) -n $(CHECK_WORKERS) --dist loadfile --no-loadscope-reorder --durations=$(DURATIONS)
	@$(BIN)/python -m pytest tests $(addprefix --ignore=,$(CHECK_TESTS) $(JOB_TESTS) $(CLOCK_TESTS) tests/stack tests/compose tests/installed) \
	  -n auto --dist loadfile --no-loadscope-reorder --durations=$(DURATIONS)
	@$(BIN)/python -m pytest $(CLOCK_TESTS) --durations=$(DURATIONS)
ifeq ($(HAS_OLDEST),1)
	@echo "the instrumentation on the oldest supported torch:"
	@$(OLDEST)/bin/python -m pytest $(OLDEST_TESTS) --durations=$(DURATIONS)
else
	@echo "NOT RUN: the tests on torch 2.6, which has no build for this Python"
endif

.PHONY: wheel-test
wheel-test: setup ## the wheel in empty environments, with each extra alone, and the README's own job with the oldest and newest torch
	@$(BIN)/python -m pytest tests/installed -n 2 --dist loadfile --no-loadscope-reorder --durations=$(DURATIONS)

.PHONY: test-long
test-long: setup ## what `make test` leaves out: simulated runs of minutes, and the tests of the job operator with all blocks gathered
	@LONG_TESTS=1 $(BIN)/python -m pytest tests/simulator tests/processors/flink tests/commands/report/test_page.py --durations=15
	@GATHER_ALL=1 $(BIN)/python -m pytest tests/processors/job --durations=5

.PHONY: stack
stack: setup ## real Kafka, Collector, Prometheus, VictoriaLogs and Jaeger (Java, Maven, Go; the first time some 10 minutes; LONG_TESTS=1: more cases)
	@$(BIN)/python -m pytest tests/stack --ignore=tests/stack/flink -n 2 --dist loadfile --no-loadscope-reorder --durations=$(DURATIONS)

# Apart: eight virtual machines of Java starve the tests beside them where there are two cores.
.PHONY: stack-flink
stack-flink: setup setup-flink ## the operators on a real Flink cluster and broker, one TaskManager killed (Java, Maven; some minutes)
	@$(BIN)/python -m pytest tests/stack/flink --durations=$(DURATIONS)

.PHONY: compose-test
compose-test: setup ## docker compose up for real: own engine, images made here (root; docker.io, debootstrap; 20 GB)
	@$(BIN)/python -m pytest tests/compose -v --durations=5

.PHONY: stack-faults
stack-faults: setup ## faults on the road over a real Kafka, each at random moments, against an oracle (SEED=7, MINUTES=30; needs root)
	@$(BIN)/python -m tests.stack.faults $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

.PHONY: stack-nodes
stack-nodes: setup ## three nodes over a real Kafka, an agent each: what comes of each fault (SEED=7, MINUTES=30; needs root)
	@$(BIN)/python -m tests.stack.nodes $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

.PHONY: lint
lint: setup ## ruff and mypy --strict over source and tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@MYPYPATH=$(VENV)/typing $(BIN)/mypy --explicit-package-bases \
	  $(addprefix $(VENV)/typing/whichrank/,$(PACKAGES)) $(wildcard tests benchmarks)

.PHONY: packages
packages: setup ## build/packages: a deb and an rpm with units of systemd (Go; PACKAGE_PYTHON=3.12: of which Python; docs/agent.md)
	@deploy/packages/build.sh build/packages $(PACKAGE_PYTHON)

.PHONY: dashboards
dashboards: setup ## grafana/dashboards and the rules of Prometheus and Grafana anew, from grafana/
	@$(BIN)/python -m whichrank.grafana.generate

.PHONY: reference
reference: setup ## docs/reference.md anew: every metric, span, event, topic, setting and command, from the code
	@$(BIN)/python -m whichrank.evaluation.reference.reference_page

.PHONY: docs
docs: $(DOCS)/.requirements ## the documents as a site in build/site; fails on a link that leads nowhere
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --clean
	@echo "build/site/index.html"

.PHONY: pictures
pictures: setup ## docs/pictures anew, from real jobs of four ranks on this machine (Chromium for the report)
	@$(BIN)/python -m tests.pictures

.PHONY: format
format: setup ## let ruff put format and imports right
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format --quiet .

.PHONY: scenarios
scenarios: setup ## every scenario, 3 repeats each, resumable (SEED=7 for other draws, PART=1/4 for a quarter, MINUTES=30)
	@$(BIN)/python tests/scenarios/run.py $(if $(SEED),--seed $(SEED)) $(if $(PART),--part $(PART)) $(if $(MINUTES),--minutes $(MINUTES))

.PHONY: frameworks
frameworks: setup-frameworks ## what is seen of Lightning, Hugging Face, DeepSpeed, Megatron, torchtitan: real jobs, counted
	@$(FRAMEWORKS)/bin/python tests/frameworks/run.py

.PHONY: scoreboard
scoreboard: setup ## labelled cases of public projects (../shared/corpora), scored file by file: k of n
	@$(BIN)/python -m tests.scoreboard

.PHONY: bench
bench: setup $(SETUP_OLDEST) ## each headline number of the README, measured here (QUICK=1: a look, not a result)
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

FAULTBENCH = $(or $(RESULTS),build/faultbench)

.PHONY: faultbench
faultbench: setup ## simulated faults of every kind: how often the cause is named, k of n (RANKS=64, RUNS=3, SEED=1, RESULTS=DIR)
	@$(BIN)/python -m benchmarks.faultbench_record unpack $(FAULTBENCH)
	@$(BIN)/whichrank bench --held-out --results $(FAULTBENCH) $(if $(RANKS),--ranks $(RANKS)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) >/dev/null || [ $$? -eq 1 ]
	@$(BIN)/python -m benchmarks.faultbench --results $(FAULTBENCH) $(if $(RANKS),--ranks $(RANKS))

.PHONY: faultbench-whole
faultbench-whole: setup ## all runs that the lines of make faultbench ask for and nobody has made yet: tens of core-hours (JOBS=cores, RESULTS=DIR)
	@$(BIN)/python -m benchmarks.faultbench_fill $(FAULTBENCH) $(if $(JOBS),--jobs $(JOBS)) || [ $$? -eq 1 ]
	@$(BIN)/python -m benchmarks.faultbench --results $(FAULTBENCH)

.PHONY: outside
outside: setup ## logs, loops and sound jobs of other people, k of n (RESULTS=DIR, MINUTES=30 of jobs, SEED=1, PUBLIC=snapshots PUBLIC_PYTHON=their python)
	@$(BIN)/python -m tests.outside --results $(or $(RESULTS),build/outside) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(PUBLIC),--public $(PUBLIC)) $(if $(PUBLIC_PYTHON),--python $(PUBLIC_PYTHON))

.PHONY: house
house: setup ## circles, arrows, sizes, types, names, docstrings: what a program can count of the code's form, k of n (PLACES=all: where)
	@$(BIN)/python -m tests.house $(if $(PLACES),--places "$(PLACES)")

.PHONY: attacks
attacks: setup ## attacks of users, peers and texts on the real agent, judge and services: which held (root; ONLY=A1,C4 FUZZ_S=20)
	@$(BIN)/python -m tests.attacks --jobs 3 $(if $(ONLY),--only $(ONLY)) $(if $(FUZZ_S),--fuzz-s $(FUZZ_S))

.PHONY: attacks-long
attacks-long: setup ## the same with those that take minutes: floods, a noisy owner, strace of the agent, fuzz (root)
	@$(BIN)/python -m tests.attacks --long $(if $(ONLY),--only $(ONLY)) $(if $(FUZZ_S),--fuzz-s $(FUZZ_S))

.PHONY: same-incidents
same-incidents: setup ## simulated runs and captures of real ones judged again: the same incidents as the golden lines? (RESULTS=DIR of make outside)
	@$(BIN)/python -m tests.same_incidents --texts build/other-sentences.txt $(if $(RESULTS),--runs $(RESULTS))

.PHONY: newcomer
newcomer: setup ## clones into an empty folder with empty caches and follows the README: seconds until a rank is named
	@$(BIN)/python -m tests.newcomer

.PHONY: tie
tie: setup ## faults in real jobs and in simulated ones: the same finding, the same waits, k of n (REPEATS=1, SEED=1)
	@$(BIN)/python -m tests.simulator.tie $(if $(REPEATS),--repeats $(REPEATS)) $(if $(SEED),--seed $(SEED))

.PHONY: pins
pins: setup ## requirements/*.txt anew from pyproject.toml and requirements/*.in (UPGRADE=1: newest versions too)
	@compile() { out=requirements/$$1.txt; shift; \
	  $(BIN)/uv pip compile --quiet $(if $(UPGRADE),--upgrade) --universal --python-version 3.10 --generate-hashes \
	    --no-header --no-annotate "$$@" --output-file $$out >/dev/null; \
	  { echo "# Pinned with hashes for Python 3.10 and later. Written by: make pins"; cat $$out; } > $$out.new; mv $$out.new $$out; }; \
	compile bootstrap requirements/bootstrap.in; \
	compile oldest requirements/oldest.in pyproject.toml --extra all; \
	compile docs requirements/docs.in; \
	compile frameworks requirements/frameworks.in pyproject.toml --extra all; \
	compile image requirements/build.in pyproject.toml --extra all --extra confluent --extra grpc; \
	compile flink requirements/build.in pyproject.toml --extra flink; \
	compile newest requirements/build.in pyproject.toml --extra all --extra confluent --extra grpc --extra dev --extra torch

.PHONY: clean
clean: ## remove the environments and everything that was built
	rm -rf $(VENV) $(OLDEST) $(FRAMEWORKS) $(DOCS) $(FLINK) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f instrumentation/*.so telemetry/*.so diagnosis/*.so
