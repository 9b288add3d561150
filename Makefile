# Thin on purpose: scripts/ and the package do the work. `make` alone lists what there is.
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.anabranch-setup
WORKERS ?= 2
KILLS ?= 30
ROUNDS ?= 30
FRAMES ?= 100000
REQUESTS ?= 20000
CASES ?= 100000
FAULT_ROUNDS ?= 5
SEEDS ?= 10000
MINUTES ?= 10

# Every test starts processes, and each would compile the whole package again where nothing may be written beside it.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

.DEFAULT_GOAL := help
.PHONY: help setup test test-fast explore simulate services lint format bench bench-metadata bench-metadata-migration bench-bookkeeper bench-cluster bench-scalable bench-autoscale bench-topic-migration bench-console bench-sdk bench-kafka bench-spark bench-spark-pulsar soak soak-memory conformance demo clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## virtual environment in .venv with everything needed (done once)

$(STAMP): pyproject.toml setup.py constraints.txt scripts/setup.sh src/anabranch/protocol/codec/_native.c src/anabranch/protocol/_native.c src/anabranch/storage/_native.c
	@VENV=$(VENV) scripts/setup.sh

test: $(STAMP)  ## all tests but the soaks
	ANABRANCH_TEST_SECONDS_MAX=$${ANABRANCH_TEST_SECONDS_MAX:-400} $(PY) -m scripts.run_tests -q -n $(WORKERS) --dist loadfile -m "not soak" tests

test-fast: $(STAMP)  ## unit and property tests only
	$(PY) -m pytest -q -n $(WORKERS) -m "not slow and not soak" tests/unit tests/property

explore: $(STAMP)  ## property tests with new examples for MINUTES=10; `make test` repeats the same ones
	$(PY) -m scripts.explore --minutes $(MINUTES)

simulate: $(STAMP)  ## scalable topics under seeded faults, SEEDS=10000 of them; a failure prints its seed and a trace
	ANABRANCH_SEEDS=$(SEEDS) $(PY) -m pytest -q -n $(WORKERS) tests/simulation/test_controller_*.py

services: $(STAMP)  ## the real ZooKeeper, etcd, Oxia, bookies, pulsar-admin, Go and Java clients and Chromium for tests: got and built once, tried, listed
	@$(PY) -m scripts.services

lint: $(STAMP)  ## ruff and strict mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP)  ## let ruff fix and format the sources
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(STAMP)  ## benchmarks: a table for people, JSON in bench-results/
	$(PY) -m benchmarks

bench-metadata: $(STAMP)  ## the metadata stores against their peers, on real servers: one table, JSON in bench-results/
	$(PY) -m benchmarks.metadata

bench-metadata-migration: $(STAMP)  ## metadata moved between stores while brokers work: blocked time, speed, publish latency
	$(PY) -m benchmarks.metadata_migration

bench-scalable: $(STAMP)  ## splits, drains, rebalancing, failover and idle scalable topics: one table, JSON in bench-results/
	$(PY) -m benchmarks.scalable

bench-autoscale: $(STAMP)  ## automatic splits and merges: growth, reaction, pauses, steady segments, simulated days: one table, JSON in bench-results/
	$(PY) -m benchmarks.autoscale

bench-topic-migration: $(STAMP)  ## regular topics made scalable: command with up to 1,024 partitions, pause of a producer, bytes copied: one table, JSON in bench-results/
	$(PY) -m benchmarks.topic_migration

bench-console: $(STAMP)  ## the web console: sizes, paints, lists, a split until it is shown, what an open page costs the broker: one table, JSON in bench-results/
	$(PY) -m benchmarks.console

bench-bookkeeper: $(STAMP)  ## the broker on bookies against bare adds and reads, and a bookie that is killed: one table, JSON in bench-results/
	$(PY) -m benchmarks.bookkeeper

bench-cluster: $(STAMP)  ## takeover, planned moves, two brokers against one, 10,000 topics: one table, JSON in bench-results/
	$(PY) -m benchmarks.cluster

bench-sdk: $(STAMP)  ## the SDK against the stock wheel, single calls and bulk, through 100 splits, and a split at a stream consumer: tables, JSON in bench-results/
	$(PY) -m benchmarks.sdk_throughput
	$(PY) -m benchmarks.sdk_split
	$(PY) -m benchmarks.sdk_stream

bench-kafka: $(STAMP)  ## the SDK beside confluent-kafka on Kafka (installed and fetched once): one table, JSON in bench-results/
	$(PY) -m pip install -q -c constraints.txt -e '.[bench]'
	$(PY) -m benchmarks.sdk_kafka

bench-spark: $(STAMP)  ## Spark on topics against Parquet, its own Kafka source and sink (450 MB fetched once) and the rate source: one table, JSON in bench-results/
	$(PY) -m benchmarks.spark

bench-spark-pulsar: $(STAMP)  ## Spark on Apache Pulsar against our broker, Spark's Kafka source and sink, and the rate source: one table, JSON in bench-results/
	$(PY) -m benchmarks.spark_pulsar

soak: $(STAMP)  ## crash soak (KILLS=30), cluster soak (ROUNDS=30), fuzz of frames (FRAMES=100000) of REST and of credentials (REQUESTS=20000) against real broker processes; the C code under AddressSanitizer (CASES=100000); metadata stores under faults (FAULT_ROUNDS=5); migrations of every pair of stores and of topics, with faults at every step
	$(PY) -m tests.soak.crash_soak --kills $(KILLS)
	$(PY) -m tests.soak.cluster_soak --rounds $(ROUNDS)
	$(PY) -m tests.soak.cluster_soak --rounds $(ROUNDS) --metadata zk
	$(PY) -m tests.soak.fuzz --frames $(FRAMES)
	$(PY) -m tests.soak.fuzz_rest --requests $(REQUESTS)
	$(PY) -m tests.soak.fuzz_auth --attempts $(REQUESTS)
	$(PY) -m tests.soak.fuzz_codec --cases $(CASES)
	$(PY) -m tests.soak.fuzz_loops --cases $(CASES)
	ANABRANCH_FAULT_ROUNDS=$(FAULT_ROUNDS) $(PY) -m pytest -q -n $(WORKERS) --dist loadgroup tests/integration/metadata/test_faults*.py tests/e2e/broker/test_metadata_backends.py
	$(PY) -m pytest -q -n $(WORKERS) --dist load -m "soak or not soak" tests/integration/metadata/test_migration.py tests/integration/metadata/test_migration_server_faults.py
	$(PY) -m pytest -q -m "soak or not soak" tests/e2e/cluster/test_metadata_migration_faults.py tests/e2e/cluster/test_metadata_migration_chain.py tests/e2e/cluster/test_secured_metadata_migration.py
	$(PY) -m tests.soak.suites_on_bookkeeper
	$(PY) -m pytest -q -m "soak or not soak" tests/e2e/bookkeeper/test_hosts.py
	$(PY) -m pytest -q -m "soak or not soak" tests/integration/scalable/test_migration_races.py tests/e2e/scalable/test_migration_failover.py

conformance: $(STAMP)  ## tests of clients of Apache Pulsar that are too long for `make test`: policies on three brokers, Rust (built, for minutes), Spark
	$(PY) -m pytest -q -n $(WORKERS) --dist loadfile -m soak tests/e2e/stock tests/e2e/cluster/test_permissions.py tests/e2e/cluster/test_stock_clients.py tests/interop/test_rust.py

soak-memory: $(STAMP)  ## memory of a broker while 1,500 topics come and go, 20 rounds; fails if it grows by more than 3 MB
	$(PY) -m tests.soak.memory_soak
	$(PY) -m tests.soak.memory_soak --load

demo: $(STAMP)  ## brokers, keyed traffic while a topic splits and merges, kill -9 in the middle, a minute of auto-scaling, a pipeline on Spark, audit
	@$(PY) -m scripts.demo

clean:  ## remove everything that can be made again, .venv included
	rm -rf $(VENV) build dist bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
