# All that a developer does. The first run makes .venv; `make help` says what there is.
.PHONY: help venv demo engines collected test test-pythons test-firefox lint pure check lock audit bench soak wheels docs clean pages-build pages

# Supervisors, agents and commands are started hundreds of times by the tests: compiled once, each starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

# PYTEST_ARGS: arguments for pytest, as in PYTEST_ARGS='-x tests/unit/db'. KEEP=1: leave the demo running.
PYTEST_ARGS ?=
SEEDS ?= 10000
SEED ?= 0
# BENCH_ARGS: arguments for tests/bench/run.py.
BENCH_ARGS ?=
# pure: folders with tests for `make check`.
# all: every test, those that wait for engines, sites and deadlines first, and those that only compute last.
# tests/support/worker_groups.py distributes them over six processes. alone: a test that needs a certain pid.
all = $(addprefix tests/,docker slurm systemd chaos web site integration examples simulation packaging contracts unit architecture)
alone = tests/chaos/test_kill_others.py::test_a_pid_that_is_another_process_by_now
pure = $(addprefix tests/,unit architecture contracts simulation)
python = .venv/bin/python
# tests that the processes of `make test` repeated
reruns = build/reruns
# the modules that benchmarks share with the tests
bench = PYTHONPATH=$(subst $() ,:,$(wildcard tests/*/support)) $(python)

help:
	@echo "make demo    run a real computation through a fresh supervisor (KEEP=1 leaves it running)"
	@echo "make test    everything that is tested, packaging included; says at its end what was left out and why"
	@echo "make lint    format, lint, types and import contracts"
	@echo "make check   the same, and every test that needs no real process: a minute or two"
	@echo "make test-pythons  the fast tests under each Python from 3.11 to 3.14 that is installed"
	@echo "make test-firefox  the tests of pages in Debian's Firefox instead of Chromium"
	@echo "make lock    pin the dependencies of setup.py in etc/requirements (UPGRADE=1: the newest versions)"
	@echo "make audit   known vulnerabilities of the pinned versions"
	@echo "make soak    crashes, kills, faults and the simulator at full length: hours (SEEDS: lives of the simulator, SEED: where chance begins)"
	@echo "make bench   speed, beside a floor and five other systems in the same run (BENCH_ARGS=--quick: a short comparison)"
	@echo "make wheels  the wheels of jobscribe and of its executor plug-in for Snakemake, in build/wheels"
	@echo "make docs    the documentation as a searchable site, in build/docs; a broken link fails"
	@echo "make pages-build  types, lint and tests of the pages, then web/static/app from web/pages; needs node and npm"
	@echo "make pages   screenshots of each page in build/pages"
	@echo "make venv    make or update .venv, as all of these do by themselves"
	@echo "make clean   remove what was built, .venv included"

venv:
	@etc/venv.sh

demo: venv
	@.venv/bin/jobscribe demo

# What tests meet besides this project: without it (and without root to install it) those tests are left out, and say so.
engines: venv
	@etc/engines/chromium.sh || true
	@etc/engines/lammps.sh || true
	@etc/engines/systemd.sh check || true
	@etc/engines/command.sh curl || true
	@etc/engines/command.sh jq || true
	@etc/engines/command.sh strace || true
	@etc/engines/command.sh ip iproute2 || true
	@etc/engines/command.sh mkfs.btrfs btrfs-progs || true
	@etc/engines/unpacked.sh install prometheus promtool prometheus || true
	@etc/engines/unpacked.sh install nginx nginx || true
	@etc/engines/glewlwyd.sh install || true
	@etc/engines/postgres.sh install || true
	@etc/engines/patroni.sh install || true
	@etc/engines/pam_matrix.sh install || true
	@PYTHON=$(python) etc/engines/docker.sh install || true
	@etc/engines/registry.sh install || true
	@etc/engines/journald.sh install || true
	@PYTHON=$(python) etc/engines/snakemake.sh install || true
	@etc/engines/slurm.sh install slurm sshd mpi || true

# Compiles all tests once. In a fresh clone, each pytest process of `make test` would do it.
collected: venv
	@$(python) -m pytest --collect-only --quiet $(all) >/dev/null

test: venv engines
ifneq (,$(findstring tests/,$(PYTEST_ARGS)))
	$(python) -m pytest $(PYTEST_ARGS)
else
	@mkdir -p build; rm -f $(reruns); export TEST_RERUNS=$(abspath $(reruns)); \
	export TEST_MEMORY="$$(etc/test_tmp.sh)"; \
	TMPDIR=$$TEST_MEMORY $(python) -m pytest -n 6 --dist loadgroup $(all) --deselect=$(alone) $(PYTEST_ARGS); all=$$?; \
	TMPDIR=$$TEST_MEMORY $(python) -m pytest $(alone) $(PYTEST_ARGS); alone=$$?; \
	$(python) tests/support/rerun_count.py $(reruns); reruns=$$?; \
	[ "$$all$$alone$$reruns" = 000 ]
endif

lint: venv
	$(python) etc/requirements/lock.py --check
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	PYTHONPATH=.types $(python) -P -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())' --no-cache --config pyproject.toml

# The tests without the marker `process` (tests/conftest.py): they need no child process, no engine and no root.
pure: venv
	LIVES=20 $(python) -m pytest -q -n 3 --dist worksteal -m "not process" $(pure) $(PYTEST_ARGS)

# both at a time: lint is done when the tests have been collected
check: venv
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint pure

# The tests of pages in Debian's Firefox instead of Chromium: some minutes, most of them for its starts.
firefox = $(addprefix tests/web/test_page_,jobs.py job_parts.py shell.py submit.py account.py operations.py clusters.py apps.py apps_shown.py)
test-firefox: venv
	@etc/engines/command.sh firefox-esr
	BROWSER=firefox $(python) -m pytest $(firefox) $(PYTEST_ARGS)

# In one environment for each Python, below build/pythons. PYTHONS='3.12 3.13' chooses some.
test-pythons:
	@etc/test_pythons.sh $(PYTEST_ARGS)

# Without .venv, which cannot be made while a lock file is older than setup.py.
lock:
	@$(or $(PYTHON),python3) etc/requirements/lock.py $(if $(UPGRADE),--upgrade)

audit: venv
	@$(python) etc/requirements/audit.py

# What these tests do a little of in every run, as often as the guarantees say; bounds in seconds as they stand. Examples of properties are
# others in each of its runs, and in none of `make test`.
soak: venv engines
	@PYTHON=$(python) etc/engines/python_tests.sh install || true
	SOAK=1 SEED=$(SEED) $(python) -m pytest --hypothesis-profile=default tests/chaos tests/unit tests/simulation tests/contracts tests/docker tests/slurm tests/integration tests/systemd tests/web $(PYTEST_ARGS)
	$(python) tests/simulation/support/run_seeds.py --seeds $(SEEDS)

bench: venv
	@PYTHON=$(python) etc/engines/peers.sh install || true
	$(bench) tests/bench/run.py $(BENCH_ARGS)
	$(bench) tests/bench/supervisor_bench.py
	$(bench) tests/bench/scale_bench.py
	$(bench) tests/bench/fair_bench.py
	$(bench) tests/bench/front_bench.py
	$(bench) tests/bench/live_bench.py
	$(bench) tests/bench/pages_bench.py
	$(bench) tests/bench/roles_bench.py
	$(bench) tests/bench/operate_bench.py
	$(bench) tests/bench/docker_bench.py
	$(bench) tests/bench/slurm_bench.py
	$(bench) tests/bench/monitor_bench.py

# Both from copies of their sources, because a build writes beside its source.
wheels: venv
	@rm -rf build/wheels; mkdir -p build/wheels; sources=$$(mktemp -d) && trap 'rm -rf "$$sources"' EXIT && \
	git archive HEAD | tar -x -C "$$sources" && \
	$(python) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheels "$$sources" "$$sources/etc/snakemake" && \
	ls build/wheels/*.whl

# The variable silences a notice about MkDocs 2; setup.py keeps MkDocs below 2.
docs: venv
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --quiet --strict --config-file etc/docs/mkdocs.yml
	@echo "the site is in build/docs; to read and search it at http://localhost:8000, run:"
	@echo "  .venv/bin/python -m http.server --directory build/docs 8000"

# The result is committed, so that nobody else needs node.
pages-build:
	cd web/pages && npm ci --no-audit --no-fund && npm run check && npm run build

pages: venv
	@$(python) tests/web/support/page_screenshots.py build/pages

clean:
	rm -rf web/pages/node_modules .venv .types build dist jobscribe.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
