# Two commands to start with: `make demo` and `make test`. Both create .venv once and then use it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
SPHINX := $(VENV)/.sphinx
# Beside the other packages, since it asks for pillow below 13; it runs with 13, too.
TRACKIO := trackio==0.43.0 gradio_client==2.7.2 huggingface_hub==2.4.0 fsspec==2026.9.0 filelock==4.2.10 \
	orjson==3.13.0 brotli==1.2.1 tqdm==4.70.1 httpx2==2.16.0 httpcore2==2.16.0 truststore==0.10.5

.PHONY: demo test trackers lint docs campaign bench bench-peers flower chaos chaos-flower chaos-hosts clean help

help:
	@echo "make demo    compare six methods on built-in data (offline, under a minute)"
	@echo "make test    ruff, mypy --strict and pytest"
	@echo "make docs    the documentation as a site, in build/site (offline, half a minute)"
	@echo "make trackers  the trackers' tests with trackio, too, which it installs beside the rest (33 MB, a minute)"
	@echo "make campaign  the papers' items on real data, in order of value, niced and resumable (days; FEDALLOY_DATA)"
	@echo "make bench   speed and memory: the pool, growth, loops in plain PyTorch, every method (half an hour)"
	@echo "make bench-peers  the same rounds in pfl and in Flower's simulation, which it installs (a few minutes)"
	@echo "make flower  the same bits through Flower's simulation and at three sites with TLS, and what it costs (half an hour)"
	@echo "make chaos   kills, damage, hostile replies and fuzzed input by the ten thousand; writes docs/reliability.md (hours)"
	@echo "make chaos-flower  everything that can happen to a deployment, on 127.0.0.1 (half an hour)"
	@echo "make chaos-hosts  a deployment between hosts of their own: links cut and slow, a reboot (root; a quarter of an hour)"
	@echo "make clean   remove .venv and what the demo wrote"

demo: $(READY)
	$(BIN)/fedalloy demo

test: lint
	$(BIN)/python -m pytest -n 2

trackers: $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/trackio $(TRACKIO)
	FEDALLOY_TRACKIO=1 PYTHONPATH=$(VENV)/trackio $(BIN)/python -m pytest tests/report/test_trackers.py

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(SPHINX)
	$(BIN)/python -m sphinx -b html -n -W -E -a --keep-going -q -d build/doctrees -c docs . build/site

campaign: $(TOOLS)
	$(BIN)/python tools/campaign.py

bench: $(READY)
	$(BIN)/python bench/engine.py
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/round_cost.py
	$(BIN)/python bench/distillation.py
	$(BIN)/python bench/dafkd.py
	$(BIN)/python bench/methods.py
	$(BIN)/python bench/batched.py

bench-peers: $(READY)
	$(BIN)/python bench/peers.py

flower: $(TOOLS)
	FEDALLOY_RAY=1 $(BIN)/python -m pytest tests/flower/test_simulation.py
	$(BIN)/python bench/flower.py bits
	$(BIN)/python bench/flower.py cost
	$(BIN)/python bench/flower.py network
	$(BIN)/python bench/deployment.py bits
	$(BIN)/python bench/deployment.py cost

chaos: $(TOOLS)
	$(BIN)/python chaos/replies.py --count 100000 --save
	$(BIN)/python chaos/sites.py --count 10000 --save
	$(BIN)/python chaos/oracle.py --count 1000 --save
	$(BIN)/python chaos/curious_server.py --count 200 --save
	$(BIN)/python chaos/memory.py --save
	$(BIN)/python chaos/gate_price.py --save
	$(BIN)/python chaos/configs.py --count 100000 --save
	$(BIN)/python chaos/files.py --count 20000 --save
	$(BIN)/python chaos/site_files.py --count 10000 --save
	$(BIN)/python chaos/run_folders.py --count 10304 --save
	$(BIN)/python chaos/commands.py --count 500 --save
	$(BIN)/python chaos/checkpoints.py --count 10000 --save
	$(BIN)/python chaos/commits.py --save
	$(BIN)/python chaos/kills.py --kills 1000 --save
	$(BIN)/python chaos/exactness.py --save
	$(BIN)/fedalloy bench-attacks rounds=40 --seeds 3 --out results/attacks.json
	$(BIN)/python chaos/page.py

chaos-flower: $(TOOLS)
	$(BIN)/python chaos/flower.py

chaos-hosts: $(TOOLS)
	$(BIN)/python chaos/hosts.py --save

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedalloy needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $(READY)

$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,privacy,flower,files,optuna,tensorboard,mlflow,wandb]'
	touch $(TOOLS)

$(SPHINX): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $(SPHINX)

clean:
	rm -rf $(VENV) build fedalloy-demo*
