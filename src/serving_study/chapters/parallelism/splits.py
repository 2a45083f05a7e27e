"""What splitting a model over GPUs costs and buys, from section 5's cells: by model, against the arm with the fewest
GPUs.

An arm's name says how it is split (`7b-tp2`, `14b-pp2`, `7b-replicas2`), so that every function takes cells of any
host, the reference study's too (`of_reference`). What can mislead: a multiple of the arm with one GPU flatters a split
on a machine with two, whose other GPU would have idled; `accounts` counts those. `split_tables` shows it.

    >>> from serving_study.chapters.parallelism import splits
    >>> splits.of("7b-tp2-pp2").gpus, splits.of("moe-a2.7b-tp2-ep").group
    (4, 'moe-a2.7b')
"""

import math
import re
from dataclasses import dataclass

import pandas

from ... import files, paths
from ...analysis import comparisons, tables, verdicts
from ...errors import HostError, ModelError, ParameterError
from ...hardware import ceilings, hosts, prices
from ...models import shapes
from ...results import reference, store
from ...theory import calibration, capacity, latency, predictions

SECTION = 5
NAME = re.compile(r"(?P<group>.+?)-(?P<split>(?:(?:tp|pp|dp|replicas)\d+-?)+)(?P<ep>-?ep)?(?P<rest>.*)")
MODELS = {"7b": "qwen2.5-7b-instruct", "14b": "qwen2.5-14b-instruct", "moe-a2.7b": "qwen1.5-moe-a2.7b-chat"}
THROUGHPUT = "output_throughput"
REFERENCE_VERSIONS = {
    "a10gx4": "0.27.1",
    "l4x4": "0.28.0",
}  # the first as its 7b-tp1 tells (`capacity`), the second as the study states


@dataclass(frozen=True)
class Split:
    """How an arm is split, from its name."""

    group: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    replicas: int = 1
    ep: bool = False
    rest: str = ""

    @property
    def copies(self) -> int:
        return self.dp * self.replicas

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.copies


def of(arm: str) -> Split:
    """Raises ParameterError for a name that does not say it."""
    found = NAME.fullmatch(arm)
    if not found:
        raise ParameterError(
            "an arm that is no split",
            value=arm,
            allowed="MODEL-tp2, MODEL-pp2, MODEL-dp2, MODEL-replicas2 and combinations",
        )
    sizes = {name: int(number) for name, number in re.findall(r"(tp|pp|dp|replicas)(\d+)", found["split"])}
    return Split(found["group"], ep=bool(found["ep"]), rest=found["rest"].strip("-"), **sizes)


def of_reference(host: str = "a10gx4") -> pandas.DataFrame:
    """The reference study's cells of a host."""
    return verdicts.study(f"reference/{host}", SECTION).frame.assign(host=f"{host}, reference")


def others(cells: pandas.DataFrame) -> list[pandas.DataFrame]:
    """The published cells of each other host."""
    return [
        store.Store(name, SECTION, paths.RESULTS_PUBLISHED).newest()
        for name in tables.other_hosts(SECTION, set(cells["host"]))
    ]


def groups(frame: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The cells of each model, by its short name."""
    return {name: rows for name, rows in frame.groupby(frame["arm"].map(lambda arm: of(arm).group), sort=False)}


def first_model(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells of the model whose smallest arm was measured again, which alone has a noise floor."""
    again = [arm for arm in dict.fromkeys(frame["arm"]) if arm.endswith(comparisons.AGAIN)]
    return groups(frame)[of((again or list(frame["arm"]))[0]).group]


def baseline(arms) -> str:
    """The arm with the fewest GPUs; of several, in whatever order they are stored, one copy before several, tensors
    before a pipeline and plain before special.
    """
    order = lambda split: (split.gpus, split.copies, split.pp, split.ep, split.rest)  # noqa: E731
    return min(
        (arm for arm in dict.fromkeys(arms) if not arm.endswith(comparisons.AGAIN)), key=lambda arm: order(of(arm))
    )


def records(results) -> list[dict]:
    """The newest start of each arm of a plan, in its order."""
    known = results.store.starts_by_key()
    return [
        known[key] | {"vllm": results.plan.environment.vllm}
        for key in map(results.plan.arm_key, results.plan.arms)
        if key in known
    ]


def published_records(host: str) -> list[dict]:
    """The newest start of each arm of a published host."""
    known = store.Store(host, SECTION, paths.RESULTS_PUBLISHED)
    versions = {
        run.name: files.read(run.folder / "run.json")["provenance"]["environment"]["vllm"] for run in known.runs()
    }
    return [start | {"vllm": versions[start["run"]]} for start in known.newest_starts().values()]


def starts(found: list[dict]) -> pandas.DataFrame:
    """One row an arm: `arm`, `outcome`, `weights_gib` (a rank), `kv_cache_tokens` and `max_concurrency` (of all
    copies), `gain` (of KV tokens over the arm with the fewest GPUs), `kv_predicted` (the same tokens by arithmetic),
    `startup_s`, `failure_s`, `reason`.
    """
    rows = []
    for start in found:
        split, figures = of(start["arm"]), start.get("figures") or {}
        whole = {
            name: figures[name] * split.copies if name in figures else math.nan
            for name in ("kv_cache_tokens", "max_concurrency")
        }
        rows.append(
            {
                "arm": start["arm"],
                "outcome": start["outcome"],
                "weights_gib": figures.get("weights_gib", math.nan),
                **whole,
                "kv_predicted": kv_tokens(start),
                "startup_s": figures.get("startup_s", math.nan),
                "failure_s": start.get("failure_s"),
                "reason": start.get("reason"),
            }
        )
    columns = [
        "arm",
        "outcome",
        "weights_gib",
        "kv_cache_tokens",
        "kv_predicted",
        "max_concurrency",
        "gain",
        "startup_s",
        "failure_s",
        "reason",
    ]
    frame = pandas.DataFrame(rows).reindex(columns=columns)
    for _, mine in groups(frame[frame["kv_cache_tokens"].notna()]).items():
        first = mine.set_index("arm")["kv_cache_tokens"][baseline(mine["arm"])]
        frame.loc[mine.index, "gain"] = mine["kv_cache_tokens"] / first
    return frame


def verdicts_by_model(
    a: verdicts.Study, b: verdicts.Study, *, tolerance: float = verdicts.TOLERANCE
) -> pandas.DataFrame:
    """`reference.verdicts` model by model, each against the arm with the fewest GPUs that both have; a column more,
    `model`.
    """
    ours, theirs, found = groups(a.frame), groups(b.frame), []
    for name in [name for name in ours if name in theirs]:
        shared = [
            arm
            for arm in dict.fromkeys(ours[name]["arm"])
            if arm in set(theirs[name]["arm"]) and not arm.endswith(comparisons.AGAIN)
        ]
        if shared:
            sides = verdicts.Study(a.name, ours[name]), verdicts.Study(b.name, theirs[name])
            found.append(verdicts.verdicts(*sides, tolerance=tolerance, baseline=baseline(shared)).assign(model=name))
    return (
        pandas.concat(found, ignore_index=True)
        if found
        else pandas.DataFrame(
            columns=["kind", "metric", "arm", "concurrency", "a", "b", "change", "verdict", "why", "model"]
        )
    )


def pairs(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Pipelines over tensor parallelism at equal GPUs: `model`, `GPUs`, `concurrency` and the ratio (PP over TP) of
    throughput, TPOT, and TTFT's p99.
    """
    metrics = {"total_token_throughput": "throughput", "median_tpot_ms": "TPOT", "p99_ttft_ms": "TTFT p99"}
    metrics = {name: label for name, label in metrics.items() if name in frame}
    means = {name: comparisons.summary(frame, name).set_index(["arm", "concurrency"])["mean"] for name in metrics}
    arms, rows = {arm: of(arm) for arm in dict.fromkeys(frame["arm"]) if not arm.endswith(comparisons.AGAIN)}, []
    for pipeline, split in arms.items():
        if split.pp == 1 or split.tp > 1:
            continue
        for tensor, other in arms.items():
            if (other.group, other.gpus, other.tp, other.ep, other.rest) != (
                split.group,
                split.gpus,
                split.gpus,
                False,
                "",
            ):
                continue
            for concurrency in sorted(frame["concurrency"].unique()):
                ratios = {
                    label: means[name].get((pipeline, concurrency), math.nan)
                    / means[name].get((tensor, concurrency), math.nan)
                    for name, label in metrics.items()
                }
                rows.append({"model": split.group, "GPUs": split.gpus, "concurrency": int(concurrency)} | ratios)
    return pandas.DataFrame(rows, columns=["model", "GPUs", "concurrency", *metrics.values()])


def efficiency(frame: pandas.DataFrame, metric: str = THROUGHPUT) -> pandas.DataFrame:
    """`model`, `arm`, `gpus` (over those of the baseline), `concurrency`, `multiple` with the interval's ends `low` and
    `high`, and `efficiency` = multiple / gpus.
    """
    columns, parts = ["model", "arm", "gpus", "concurrency", "multiple", "low", "high", "efficiency"], []
    for name, mine in groups(frame).items():
        first = baseline(mine["arm"])
        table = comparisons.compare(mine, metric, first)
        more = table["arm"].map(lambda arm: of(arm).gpus) / of(first).gpus
        parts.append(
            table.assign(model=name, gpus=more, multiple=table["ratio"], efficiency=table["ratio"] / more)[columns]
        )
    found = pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=columns)
    return found[~found["arm"].str.endswith(comparisons.AGAIN)].reset_index(drop=True)


def usd_per_gpu_hour(profile: str) -> tuple[float, str] | None:
    """What a GPU of this kind costs an hour, and of which instance type it is a share; None where no price is known."""
    try:
        place = ceilings.of_host(profile)
    except HostError:
        return None
    own = prices.instance_of(profile)
    for known in (
        [ceilings.instances()[own]]
        if own
        else [instance for instance in ceilings.instances().values() if instance.gpu == place.gpu]
    ):
        if price := prices.known(known.name):
            return price.usd_per_hour / known.count, known.name
    return None


def accounts(frame: pandas.DataFrame, places: int | None = None, metric: str = THROUGHPUT) -> pandas.DataFrame:
    """Equal resources: `model`, `arm`, `used`, `idle`, `concurrency`, `output_throughput`, `a used one`, `a paid one`
    (idle ones counted), and `USD a million tokens` of all of them where a price is known. `places` is how many GPUs are
    paid for, those of the profile when None; on a CPU host as many parts of its cores as its largest arm has ranks.
    """
    profile = frame["host"].iloc[0].split(",")[0]
    count = re.search(r"x(\d+)$", profile)
    places = places or max([int(count[1]) if count else 1, *(of(arm).gpus for arm in frame["arm"])])
    price, rows = usd_per_gpu_hour(profile), []
    for row in comparisons.summary(frame[~frame["arm"].str.endswith(comparisons.AGAIN)], metric).itertuples():
        split = of(row.arm)
        usd = {"USD a million tokens": price[0] * places / 3600 / row.mean * 1e6} if price else {}
        rows.append(
            {
                "model": split.group,
                "arm": row.arm,
                "used": split.gpus,
                "idle": places - split.gpus,
                "concurrency": int(row.concurrency),
                metric: row.mean,
                "a used one": row.mean / split.gpus,
                "a paid one": row.mean / places,
            }
            | usd
        )
    return pandas.DataFrame(rows)


def predicted(cells: pandas.DataFrame) -> pandas.DataFrame:
    """What theory expects of cells beside what was measured: `arm`, `concurrency`, `tpot_ms`, `output_throughput` and
    the measured means of both.

    Copies share out the requests evenly. Empty on a host without ceilings; models with experts, and those that are not
    in MODELS, are left out."""
    columns = ["arm", "concurrency", "tpot_ms", THROUGHPUT, "measured_tpot_ms", "measured_output_throughput"]
    try:
        place = ceilings.of_host(cells["host"].iloc[0])
    except HostError:
        return pandas.DataFrame(columns=columns)
    on, rows = calibration.machine(place, probed=calibration.probed_rates(place)), []
    means = {
        name: comparisons.summary(cells, name).set_index(["arm", "concurrency"])["mean"]
        for name in ("median_tpot_ms", THROUGHPUT)
    }
    for cell in cells.drop_duplicates(["arm", "concurrency"]).itertuples():
        split, key = of(cell.arm), (cell.arm, cell.concurrency)
        if split.rest or split.group not in MODELS:
            continue
        try:
            work = calibration.work(shapes.load(MODELS[split.group]), split.tp, split.pp)
        except ParameterError:
            continue
        prompts, each = store.read_cell(cell.file)["asked"]["prompts"], max(1, cell.concurrency // split.copies)
        seen = latency.closed_loop(
            calibration.lengths(cell.concurrency, prompts)[: max(1, prompts * each // cell.concurrency)], each, work, on
        )
        measured = {
            f"measured_{label}": means[name].get(key, math.nan)
            for name, label in (("median_tpot_ms", "tpot_ms"), (THROUGHPUT, THROUGHPUT))
        }
        rows.append(
            {
                "arm": cell.arm,
                "concurrency": int(cell.concurrency),
                "tpot_ms": seen["median_tpot_ms"],
                THROUGHPUT: seen[THROUGHPUT] * cell.concurrency / each,
            }
            | measured
        )
    return pandas.DataFrame(rows, columns=columns)


def beside(cells: pandas.DataFrame, metric: str = "total_token_throughput") -> pandas.DataFrame:
    """What `plots.beside` draws: by split, multiples of the model's arm with one GPU, predicted, of the reference study
    and measured here.

    The prediction is for this host where its ceilings are known, else for the reference study's; the model that is
    measured again stands for the host."""
    theirs = predictions.beside(SECTION, "a10gx4", metric)
    theirs = theirs[theirs["arm"].str.startswith("7b-")].assign(host="a10gx4, 7b")
    mine = first_model(cells) if len(cells) else cells
    rows, first = [], baseline(mine["arm"]) if len(mine) else ""
    if first and of(first).gpus == 1:
        about = {"host": f"{cells['host'].iloc[0]}, {of(first).group}"}
        measured, expected = (
            efficiency(mine, metric),
            predicted(mine).drop_duplicates(["arm", "concurrency"]).set_index(["arm", "concurrency"])[THROUGHPUT],
        )
        rows += [
            about
            | {
                "arm": row.arm,
                "concurrency": int(row.concurrency),
                "source": "measured",
                "value": row.multiple,
                "labels": comparisons.kinds(mine[mine["arm"] == row.arm]),
            }
            for row in measured.itertuples()
        ]
        rows += [
            about
            | {
                "arm": arm,
                "concurrency": concurrency,
                "source": "predicted",
                "value": value / expected[first, concurrency],
            }
            for (arm, concurrency), value in expected.items()
            if arm != first and (first, concurrency) in expected
        ]
        if len(expected):
            theirs = theirs[theirs["source"] != "predicted"]
    frame = (
        pandas.concat([theirs, pandas.DataFrame(rows, columns=theirs.columns)], ignore_index=True)
        if rows
        else theirs.reset_index(drop=True)
    )
    return frame.assign(arm=[arm.removeprefix(f"{of(arm).group}-") for arm in frame["arm"]])


def kv_tokens(start: dict) -> float:
    """KV tokens of all copies that arithmetic expects of a start, from its host, its arm and its command line; NaN
    where something is not known.
    """
    split, words = of(start["arm"]), start.get("command", [])
    given = {
        name: words[words.index(flag) + 1]
        for name, flag in (
            ("utilization", "--gpu-memory-utilization"),
            ("max_model_len", "--max-model-len"),
            ("max_num_seqs", "--max-num-seqs"),
        )
        if flag in words
    }
    try:
        gpu, model = ceilings.of_host(start["host"]).gpu, shapes.load(MODELS[split.group])
        numbers = {name: float(value) if name == "utilization" else int(value) for name, value in given.items()}
        found = capacity.predict(
            capacity.Server(model, gpu, tp=split.tp, pp=split.pp, version=start.get("vllm") or "0.32", **numbers)
        )
    except (HostError, ModelError, KeyError):
        return math.nan
    return split.copies * found.tokens if found.starts else math.nan


def figures(cells: pandas.DataFrame) -> dict[str, float]:
    """The figures that section 5's prose uses: the reference study's, then this host's largest differences."""
    theirs = efficiency(of_reference(), "total_token_throughput").set_index(["arm", "concurrency"])
    ratios, figures_of = (
        pairs(of_reference()).set_index("concurrency"),
        reference.load(SECTION).query("host == 'a10gx4'"),
    )
    tokens = figures_of[figures_of["metric"] == "kv_cache_tokens"].set_index("arm")["value"]
    weights = shapes.load(MODELS["7b"]).weights_gib()
    own = efficiency(cells)
    widest = own.loc[own["multiple"].idxmax()] if len(own) else None
    return {
        "ref_tp2_low": theirs.loc[("7b-tp2", 1), "multiple"],
        "ref_tp2_high": theirs.loc[("7b-tp2", 32), "multiple"],
        "ref_tp4_low": theirs.loc[("7b-tp4", 1), "multiple"],
        "ref_tp4_high": theirs.loc[("7b-tp4", 32), "multiple"],
        "ref_kv_gain": tokens["7b-tp4"] / tokens["7b-tp1"],
        "ref_weights": weights,
        "ref_pp_tpot": ratios.loc[1, "TPOT"],
        "ref_pp_ttft": ratios.loc[32, "TTFT p99"],
        "own_best": float(widest["multiple"]) if widest is not None else math.nan,
        "own_best_concurrency": float(widest["concurrency"]) if widest is not None else math.nan,
        "own_best_efficiency": float(widest["efficiency"]) if widest is not None else math.nan,
    }


def finding(cells: pandas.DataFrame) -> str:
    """One sentence a model: which of the arms with most GPUs makes most tokens at the lowest and at the highest
    concurrency; none inside the noise floor.
    """
    said = []
    for name, mine in groups(cells).items():
        most = max(of(arm).gpus for arm in mine["arm"])
        largest = mine[mine["arm"].map(lambda arm: of(arm).gpus == most)]  # noqa: B023
        means = comparisons.summary(largest, THROUGHPUT)
        if len(set(means["arm"])) < 2:
            continue
        floors, values = comparisons.floor(mine, THROUGHPUT), comparisons.by_cell(largest, THROUGHPUT)
        best = []
        for concurrency in (means["concurrency"].min(), means["concurrency"].max()):
            first, second, *_ = means[means["concurrency"] == concurrency].nlargest(2, "mean").itertuples()
            noise = floors.get(concurrency, math.nan)
            clear = comparisons.differs(
                *comparisons.ratio(values[first.arm, concurrency], values[second.arm, concurrency], noise), noise
            )
            best.append(f"{f'`{first.arm}`' if clear else 'none certainly'} at concurrency {int(concurrency)}")
        said.append(f"{name} with {most} {places(cells)}: most output tokens with {best[0]}, {best[1]}")
    return (
        "; ".join(said) + f" ({tables.labels(cells)})."
        if said
        else f"No two arms of equal size have certified figures ({tables.labels(cells)})."
    )


def places(frame: pandas.DataFrame) -> str:
    return "ranks" if frame["host"].map(hosts.is_cpu).all() else "GPUs"
