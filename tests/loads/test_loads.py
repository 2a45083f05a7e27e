"""The load generator's command line word for word, and what decides a load."""

from pathlib import Path

from serving_study.loads import Load
from serving_study.loads.datasets import Dataset

DATASET = Dataset("own", Path("/data/conversations.json"), "ab", 300)
COMMON = (
    "--backend vllm --endpoint /v1/completions --base-url http://127.0.0.1:8000 --model m --tokenizer /t "
    "--dataset-name sharegpt --dataset-path /data/conversations.json "
    "--num-prompts 16 --max-concurrency 8 --seed {} --percentile-metrics ttft,tpot,itl,e2el "
    "--metric-percentiles 50,95,99 "
    "--save-detailed --disable-tqdm --ready-check-timeout-sec 0 --header Connection=close"
)


def words(load, repeat=0):
    return " ".join(load.arguments(url="http://127.0.0.1:8000", model="m", tokenizer="/t", repeat=repeat))


def test_fixed_lengths_greedy():
    load = Load(8, 16, DATASET, output_tokens=24, temperature=0.0)
    assert words(load) == COMMON.format(load.seed_of(0)) + " --sharegpt-output-len 24 --temperature 0.0 --ignore-eos"
    assert load.name == "concurrency=8"


def test_the_datasets_own_lengths_and_the_servers_sampling():
    load = Load(8, 16, DATASET, ignore_eos=False)
    assert words(load, 2) == COMMON.format(load.seed_of(2))


def test_every_cell_has_a_seed_of_its_own_that_all_arms_share():
    seeds = {
        (concurrency, repeat, seed): Load(concurrency, 16, DATASET, seed=seed).seed_of(repeat)
        for concurrency in (1, 8)
        for repeat in range(3)
        for seed in (42, 43)
    }
    assert len(set(seeds.values())) == 12
    assert Load(8, 99, DATASET, temperature=0.7).seed_of(1) == seeds[8, 1, 42]


def test_identity_has_the_datasets_digest_and_not_its_place():
    load = Load(8, 16, DATASET, output_tokens=24)
    assert load.identity() == {
        "concurrency": 8,
        "prompts": 16,
        "dataset": {"name": "own", "sha256": "ab"},
        "output_tokens": 24,
        "temperature": None,
        "ignore_eos": True,
        "seed": 42,
    }
