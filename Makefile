# On a fresh clone each target sets up all that it needs: Python 3.11 or newer, Java 17 or 21 and make are enough.
.PHONY: help demo drill test soak up down lint bench browser clean
READY := .venv/.ready
WEIR := .venv/bin/weir

help:
	@echo "make demo   run the shop for a day: stream, batch, comparison, report"
	@echo "make test   check the code and run all tests"
	@echo "make soak   the slow tests beside them"
	@echo "make drill  inject every fault into a day, and see each named and repaired"
	@echo "make up     start Kafka and Airflow on this machine and leave them running (make down stops them)"
	@echo "make bench  measure throughput and latency against bare Spark, what quality costs, what the night costs, what all views hold, how old views are at a steady rate, how fast pages answer, what more executors bring, what an event costs"

$(READY): prepare.py requirements.lock pyproject.toml ivy.xml
	@python3 prepare.py

demo: $(READY)
	@$(WEIR) demo

drill: $(READY)
	@$(WEIR) drill

up: $(READY)
	@$(WEIR) up

down: $(READY)
	@$(WEIR) down

lint: $(READY)
	@.venv/bin/ruff check --no-cache .
	@.venv/bin/ruff format --no-cache --check .
	@.venv/bin/mypy
	@PYTHONPATH=plugins .venv/bin/lint-imports --no-logo

# The tests of the pages need a browser, and none of them is skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && echo "weir: installing Chromium for the tests of the pages" && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || { echo "weir: the tests of the pages need Chromium: install it (Debian: apt-get install chromium)" >&2; exit 2; }

test: lint browser
	@.venv/bin/python -m pytest --durations=30 --durations-min=5

soak: $(READY) browser
	@.venv/bin/python -m pytest -m soak

bench: $(READY)
	@.venv/bin/python benchmarks/throughput.py
	@.venv/bin/python benchmarks/quality.py
	@.venv/bin/python benchmarks/nightly.py
	@.venv/bin/python benchmarks/latency.py
	@.venv/bin/python benchmarks/views.py
	@.venv/bin/python benchmarks/steady.py
	@.venv/bin/python benchmarks/pages.py
	@.venv/bin/python benchmarks/scale.py
	@.venv/bin/python benchmarks/sizing.py

clean:
	rm -rf .weir
