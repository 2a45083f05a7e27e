"""The load generator's command line word for word, and what decides a load."""

import importlib.util
import json
from pathlib import Path

from serving_study.environments import ENGINE_SIDE
from serving_study.loads import Load, datasets
from serving_study.loads.datasets import Dataset
from serving_study.models import embedded

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


def test_lengths_are_spread_evenly_about_their_mean_in_an_order_of_each_cells_own():
    load = Load(4, 8, datasets.load(datasets.OWN, "own"), output_tokens=16, output_spread=0.5)
    first, second = load.lengths(0), load.lengths(1)
    assert sum(first) == 8 * 16 and sorted(first) == sorted(second) and first != second
    assert (min(first), max(first)) == (9, 23) and len(set(first)) == 8
    assert load.identity()["output_spread"] == 0.5
    assert "output_spread" not in Load(4, 8, load.dataset, output_tokens=16).identity()


def sent(load, repeat):
    """What the load generator is given to send, and its options."""
    words = load.arguments(url="http://x", model="m", tokenizer=str(embedded.folder()), repeat=repeat)
    lines = Path(words[words.index("--dataset-path") + 1]).read_text().splitlines()
    return [json.loads(line) for line in lines], words


def test_prompts_with_lengths_of_their_own_are_sent_as_drawn():
    load = Load(4, 8, datasets.load(datasets.OWN, "own"), output_tokens=16, output_spread=0.5)
    rows, options = sent(load, 3)
    assert (
        options[options.index("--dataset-name") + 1] == "custom"
        and options[options.index("--custom-output-len") + 1] == "-1"
    )
    assert [row["output_tokens"] for row in rows] == load.lengths(3) and len({row["prompt"] for row in rows}) == 8
    assert sent(load, 3)[0] == rows and sent(load, 4)[0] != rows


def test_the_client_is_late_only_while_requests_are_under_way():
    """Reading prompts before them, and adding up afterwards, keeps no request waiting."""
    place = importlib.util.spec_from_file_location("bench_worker", ENGINE_SIDE / "bench_worker.py")
    worker = importlib.util.module_from_spec(place)
    place.loader.exec_module(worker)
    result = {"start_times": [10.0, 10.1], "ttfts": [0.2, 0.2], "itls": [[0.1, 0.1], [0.3]]}
    ticks = [(9.7, 0.2), (9.97, 0.001), (10.1, 0.05), (10.58, 0.002), (10.61, 0.4)]
    assert worker._during(ticks, result) == [0.002, 0.05]
    assert worker._during(ticks, {}) == sorted(lag for _, lag in ticks)
