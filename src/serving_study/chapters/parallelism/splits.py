"""What splitting a model over GPUs costs and buys, from section 5's cells: by model, against the arm with the fewest
GPUs.

The cells say how their arm is split (`tp`, `pp`, `dp`, `ep`, `replicas`), so that every function takes cells of any
host, the reference study's too (`of_reference`). What can mislead: a multiple of the arm with one GPU flatters a split
on a machine with two, whose other GPU would have idled; `accounts` counts those. `split_tables` shows it.

    >>> from serving_study.chapters.parallelism import splits
    >>> one = splits.Split("moe-a2.7b", tp=2, ep=True)
    >>> one.gpus, one.words
    (2, 'tp2-ep')
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pandas

from ... import files, paths
from ...analysis import claims, comparisons, host_tables, tables, verdicts
from ...errors import HostError, ModelError, ParameterError
from ...hardware import ceilings, hosts, prices
from ...models import checkpoints, shapes
from ...results import old_cells, reference, store
from ...servers.arm import COLUMNS
from ...theory import calibration, capacity, latency, prediction_errors

SECTION = 5
MODELS = {"7b": "qwen2.5-7b-instruct", "14b": "qwen2.5-14b-instruct", "moe-a2.7b": "qwen1.5-moe-a2.7b-chat"}
THROUGHPUT = "output_throughput"
FIGURES_OF_START = (
    "outcome weights_gib kv_cache_tokens kv_predicted max_concurrency gain startup_s failure_s reason"
).split()
REFERENCE_VERSIONS = {
    "a10gx4": "0.27.1",
    "l4x4": "0.28.0",
}  # the first as its 7b-tp1 tells (`capacity`), the second as the study states


@dataclass(frozen=True)
class Split:
    """How an arm is split; `group` is its model's short name, `distinction` what else sets it apart."""

    group: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    replicas: int = 1
    ep: bool = False
    distinction: str | None = None

    @property
    def words(self) -> str:
        """`tp2-pp2`, `tp2-ep`, `replicas2`: the arm's name behind its model's."""
        parts = [f"{name}{size}" for name in ("tp", "pp", "dp") if (size := getattr(self, name)) > 1]
        replicas = [f"replicas{self.replicas}"] if self.replicas > 1 else []
        parts = parts if parts or replicas else ["tp1"]
        return "-".join([*parts, *(["ep"] if self.ep else []), *replicas, *filter(None, [self.distinction])])

    @property
    def copies(self) -> int:
        return self.dp * self.replicas

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.copies


def of(columns: Mapping) -> Split:
    """The split of an arm whose columns (`servers.arm.COLUMNS`) these are."""
    sizes = {name: int(columns[name]) for name in ("tp", "pp", "dp", "replicas")}
    distinction = columns["distinction"] if isinstance(columns["distinction"], str) else None
    return Split(checkpoints.short(columns["model"]), ep=bool(columns["ep"]), distinction=distinction, **sizes)


def by_arm(frame: pandas.DataFrame) -> dict[str, Split]:
    """Each arm of the cells or starts, in their order, and how it is split."""
    return {row["arm"]: of(row) for row in frame.drop_duplicates("arm").to_dict("records")}


def of_reference(host: str = "a10gx4") -> pandas.DataFrame:
    """The reference study's cells of a host."""
    return verdicts.study(f"reference/{host}", SECTION).frame.assign(host=f"{host}, reference")


def others(cells: pandas.DataFrame) -> list[pandas.DataFrame]:
    """The published cells of each other host."""
    return [
        store.Store(name, SECTION, paths.RESULTS_PUBLISHED).newest()
        for name in host_tables.other_hosts(SECTION, set(cells["host"]))
    ]


def groups(frame: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The cells of each model, by its short name."""
    models = {arm: split.group for arm, split in by_arm(frame).items()}
    return {name: rows for name, rows in frame.groupby(frame["arm"].map(models), sort=False)}


def first_model(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells of the model whose smallest arm was measured again, which alone has something that bounds its noise."""
    arms = by_arm(frame)
    return groups(frame)[arms[next(iter(comparisons.repeats(frame)), next(iter(arms)))].group]


def baseline(frame: pandas.DataFrame) -> str:
    """The arm with the fewest GPUs; of several, in whatever order they are stored, one copy before several, tensors
    before a pipeline and plain before special.
    """
    arms = by_arm(comparisons.without_repeats(frame))

    def order(arm: str) -> tuple:
        split = arms[arm]
        return split.gpus, split.copies, split.pp, split.ep, split.distinction or ""

    return min(arms, key=order)


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


def starts(start_records: list[dict]) -> pandas.DataFrame:
    """One row an arm: `arm`, `outcome`, `weights_gib` (a rank), `kv_cache_tokens` and `max_concurrency` (of all
    copies), `gain` (of KV tokens over the arm with the fewest GPUs), `kv_predicted` (the same tokens by arithmetic),
    `startup_s`, `failure_s`, `reason`.
    """
    rows = []
    for start in start_records:
        columns = old_cells.arm_columns(start)
        split, figures = of(columns), start.get("figures") or {}
        whole = {
            name: figures[name] * split.copies if name in figures else math.nan
            for name in ("kv_cache_tokens", "max_concurrency")
        }
        rows.append(
            {
                "arm": start["arm"],
                **columns,
                "outcome": start["outcome"],
                "weights_gib": figures.get("weights_gib", math.nan),
                **whole,
                "kv_predicted": kv_tokens(start),
                "startup_s": figures.get("startup_s", math.nan),
                "failure_s": start.get("failure_s"),
                "reason": start.get("reason"),
            }
        )
    frame = pandas.DataFrame(rows, columns=["arm", *COLUMNS, *FIGURES_OF_START])
    for _, of_model in groups(frame[frame["kv_cache_tokens"].notna()]).items():
        first = of_model.set_index("arm")["kv_cache_tokens"][baseline(of_model)]
        frame.loc[of_model.index, "gain"] = of_model["kv_cache_tokens"] / first
    return frame[["arm", *FIGURES_OF_START]]


def verdicts_by_model(
    a: verdicts.Study, b: verdicts.Study, *, tolerance: float = verdicts.TOLERANCE
) -> pandas.DataFrame:
    """`reference.verdicts` model by model, each against the arm with the fewest GPUs that both have; a column more,
    `model`.
    """
    ours, theirs, model_verdicts = groups(a.frame), groups(b.frame), []
    for name in [name for name in ours if name in theirs]:
        shared = comparisons.without_repeats(ours[name][ours[name]["arm"].isin(theirs[name]["arm"])])
        if len(shared):
            sides = verdicts.Study(a.name, ours[name]), verdicts.Study(b.name, theirs[name])
            model_verdicts.append(
                verdicts.verdicts(*sides, tolerance=tolerance, baseline=baseline(shared)).assign(model=name)
            )
    return (
        pandas.concat(model_verdicts, ignore_index=True)
        if model_verdicts
        else pandas.DataFrame(
            columns=["kind", "metric", "arm", "concurrency", "a", "b", "change", "verdict", "why", "model"]
        )
    )


def pairs(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Pipelines over tensor parallelism at equal GPUs: `model`, `GPUs`, `concurrency` and the ratio (PP over TP) of
    throughput, TPOT, and TTFT's p99, with the ends of their intervals (`TPOT, low`, `TPOT, high`).
    """
    metrics = {"total_token_throughput": "throughput", "median_tpot_ms": "TPOT", "p99_ttft_ms": "TTFT p99"}
    metrics = {name: label for name, label in metrics.items() if name in frame}
    arms, parts = by_arm(comparisons.without_repeats(frame)), []
    for pipeline, split in arms.items():
        if split.pp == 1 or split.tp > 1:
            continue
        for tensor, other in arms.items():
            if (other.group, other.gpus, other.tp, other.ep, other.distinction) != (
                split.group,
                split.gpus,
                split.gpus,
                False,
                None,
            ):
                continue
            ratios = pandas.DataFrame(
                {
                    label: claims.of_arm(frame, name, pipeline, tensor)[column]
                    for name, shown in metrics.items()
                    for column, label in (("ratio", shown), ("low", f"{shown}, low"), ("high", f"{shown}, high"))
                },
                index=sorted(frame["concurrency"].unique()),
            )
            parts.append(ratios.rename_axis("concurrency").reset_index().assign(model=split.group, GPUs=split.gpus))
    ends = [f"{label}{end}" for label in metrics.values() for end in ("", ", low", ", high")]
    columns = ["model", "GPUs", "concurrency", *ends]
    return pandas.concat(parts, ignore_index=True)[columns] if parts else pandas.DataFrame(columns=columns)


def efficiency(frame: pandas.DataFrame, metric: str = THROUGHPUT) -> pandas.DataFrame:
    """`model`, `arm`, `gpus` (over those of the baseline), `concurrency`, `multiple` with what is claimed of it
    (`claims.CLAIMED`), and `efficiency` = multiple / gpus.
    """
    columns = ["model", "arm", "gpus", "concurrency", "multiple", *claims.CLAIMED]
    columns, parts = [*columns, "efficiency"], []
    for name, model_cells in groups(frame).items():
        first, gpus = baseline(model_cells), {arm: split.gpus for arm, split in by_arm(model_cells).items()}
        table = comparisons.without_repeats(claims.compare(model_cells, metric, first))
        more = table["arm"].map(gpus) / gpus[first]
        parts.append(
            table.assign(model=name, gpus=more, multiple=table["ratio"], efficiency=table["ratio"] / more)[columns]
        )
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=columns)


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
    arms = by_arm(frame)
    places = places or max([int(count[1]) if count else 1, *(split.gpus for split in arms.values())])
    price, rows = usd_per_gpu_hour(profile), []
    for row in comparisons.summary(comparisons.without_repeats(frame), metric).itertuples():
        split = arms[row.arm]
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
    columns = ["model", "arm", "used", "idle", "concurrency", metric, "a used one", "a paid one"]
    return pandas.DataFrame(rows, columns=columns + ["USD a million tokens"] * bool(price))


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
    on, rows = calibration.calibrated(place, probed=calibration.probed_rates(place)), []
    means = {
        name: comparisons.summary(cells, name).set_index(["arm", "concurrency"])["mean"]
        for name in ("median_tpot_ms", THROUGHPUT)
    }
    arms = by_arm(comparisons.without_repeats(cells))
    for cell in cells[cells["arm"].isin(arms)].drop_duplicates(["arm", "concurrency"]).itertuples():
        split, key = arms[cell.arm], (cell.arm, cell.concurrency)
        if split.distinction or split.group not in MODELS:
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


def published(metric: str = "total_token_throughput") -> pandas.DataFrame:
    """What `plots.beside` draws of the reference study's 7B: its arms' multiples, predicted and measured."""
    return groups(old_cells.with_arm_columns(prediction_errors.with_measured(SECTION, "a10gx4", metric)))["7b"]


def beside(cells: pandas.DataFrame, metric: str = "total_token_throughput") -> pandas.DataFrame:
    """What `plots.beside` draws: multiples of the model's arm with one GPU by split: predicted, measured here and the
    reference study's.

    The prediction is for this host where its ceilings are known, else for the reference study's; the model that is
    measured again stands for the host."""
    theirs = published(metric).assign(host="a10gx4, 7b")
    model_cells = first_model(cells) if len(cells) else cells
    rows, first, arms = [], baseline(model_cells) if len(model_cells) else "", by_arm(model_cells)
    if first and arms[first].gpus == 1:
        host_columns = {"host": f"{cells['host'].iloc[0]}, {arms[first].group}"}
        measured, expected = (
            efficiency(model_cells, metric),
            predicted(model_cells)
            .drop_duplicates(["arm", "concurrency"])
            .set_index(["arm", "concurrency"])[THROUGHPUT],
        )
        rows += [
            host_columns
            | {
                "arm": row.arm,
                "concurrency": int(row.concurrency),
                "source": "measured",
                "value": row.multiple,
                "low": row.low,
                "high": row.high,
                "labels": comparisons.kinds(model_cells[model_cells["arm"] == row.arm]),
            }
            for row in measured.itertuples()
        ]
        rows += [
            host_columns
            | {
                "arm": arm,
                "concurrency": concurrency,
                "source": "predicted",
                "value": value / expected[first, concurrency],
            }
            for (arm, concurrency), value in expected.items()
            if arm != first and (first, concurrency) in expected
        ]
        columns = list(dict.fromkeys([*theirs.columns, "low", "high"]))
        if len(expected):
            theirs = theirs[theirs["source"] != "predicted"]
    frame = (
        pandas.concat([theirs, pandas.DataFrame(rows, columns=columns)], ignore_index=True)
        if rows
        else theirs.reset_index(drop=True)
    )
    words = {arm: split.words for arm, split in (by_arm(theirs) | arms).items()}
    return frame.assign(arm=frame["arm"].map(words))


def kv_tokens(start: dict) -> float:
    """KV tokens of all copies that arithmetic expects of a start, from its host, its arm and its command line; NaN
    where something is not known.
    """
    split, words = of(old_cells.arm_columns(start)), start.get("command", [])
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
        prediction = capacity.predict(
            capacity.Deployment(model, gpu, tp=split.tp, pp=split.pp, version=start.get("vllm") or "0.32", **numbers)
        )
    except (HostError, ModelError, KeyError):
        return math.nan
    return split.copies * prediction.tokens if prediction.can_start else math.nan


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
    """A sentence a model: how many comparisons with its smallest arm have which claim, and whether, at the lowest and
    at the highest concurrency, the arm with most GPUs that makes most tokens is decided to be faster than the next.
    """
    said = []
    for name, model_cells in groups(cells).items():
        multiples = efficiency(model_cells)
        if multiples.empty:
            continue
        counts = claims.counted(multiples, THROUGHPUT)
        text = f"{name}: of {len(multiples)} comparisons with `{baseline(model_cells)}`, {counts}"
        gpus = model_cells["arm"].map({arm: split.gpus for arm, split in by_arm(model_cells).items()})
        most = int(gpus.max())
        means = comparisons.summary(comparisons.without_repeats(model_cells[gpus == most]), THROUGHPUT)
        best = []
        for concurrency in dict.fromkeys([means["concurrency"].min(), means["concurrency"].max()]):
            largest = means[means["concurrency"] == concurrency].nlargest(2, "mean")["arm"].tolist()
            if len(largest) < 2:
                continue
            row = claims.of_arm(model_cells, THROUGHPUT, *largest).loc[concurrency]
            best.append(
                f"at concurrency {int(concurrency)} `{largest[0]}` is against `{largest[1]}` "
                f"{claims.ratio_text(row)}, {claims.words(row, THROUGHPUT)}"
            )
        said.append("; ".join([text, *([f"with {most} {places(cells)}, {', '.join(best)}"] if best else [])]))
    return (
        f"Output throughput ({tables.labels(cells)}). " + ". ".join(said) + "."
        if said
        else f"There is nothing to compare yet ({tables.labels(cells)})."
    )


def places(frame: pandas.DataFrame) -> str:
    return "ranks" if frame["host"].map(hosts.is_cpu).all() else "GPUs"
