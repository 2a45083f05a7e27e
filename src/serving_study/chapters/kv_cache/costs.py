"""What requests and tokens cost: the price of an hour over a rate that was measured. Frames of section 7; their tables
are in `prefix_views`.

    USD a request = USD an hour / (3600 × requests a second)

What can mislead: a rate is of one load, model and machine, and so is its cost; an hour is paid whether requests come or
not, so that a server which is busy half of the time costs twice as much a request; and dollars a request, an output
token and a prompt token are the same dollars read three times, never to be added. A part of an instance (`h200x1` is an
eighth of p5en.48xlarge) has that share of its price, which nobody rents out: beside `usd_…`, of the share, stands
`rented_…`, of the whole instance that has to be rented for it.

    >>> from serving_study.chapters.kv_cache import costs
    >>> costs.price_of("l4x1").instance, costs.price_of("cpu"), round(costs.price_of("cpu", 3.6).per_thousand(2.0), 4)
    ('g6.xlarge', None, 0.5)
"""

import math
from pathlib import Path

import pandas

from ... import files, paths
from ...analysis import comparisons, tables, verdicts
from ...hardware import ceilings, prices
from ...models import shapes
from ...results import reference, store
from ...theory import budgets
from .prefixes import CONTROL, shared_loads

SERVED = {"8B": "meta-llama-3-8b", "70B": "meta-llama-3-70b"}  # what `instances` says of each: requests in flight of
LENGTH = 8192  # tokens
SECTIONS = (3, 5)  # whose loads are of many requests at once
TOTAL = "total_token_throughput"


def price_of(host: str, usd_per_hour: float | None = None) -> prices.Price | None:
    """What an hour of a host costs: as given, else of its instance type, else its share of a larger one; None where no
    price is known.
    """
    return prices.given(host, usd_per_hour) if usd_per_hour else prices.known(host) or prices.share(host)


def of_cells(frame: pandas.DataFrame, price: prices.Price | None) -> pandas.DataFrame:
    """Section 7's loads under concurrency, by arm: `arm`, `prefix_tokens`, `share`, `hit_rate`, `requests_s` (mean over
    repeats of cells that did not fail), `rented_thousand` requests, by the instance rented whole, `usd_thousand` by
    this host's share of it, `usd_million_output` and `usd_million_prompt` tokens (found or computed) likewise, and
    `against`, the cost over the control's. Empty without a price.
    """
    columns = [
        "host",
        "arm",
        "prefix_tokens",
        "share",
        "concurrency",
        "hit_rate",
        "requests_s",
        "rented_thousand",
        "usd_thousand",
        "usd_million_output",
        "usd_million_prompt",
        "against",
    ]
    cells, rows = shared_loads(frame), []
    cells = cells if price else cells[:0]
    for (prefix, share), same in cells.groupby(["prefix_tokens", "share"]):
        means = (
            comparisons.without_repeats(same)
            .groupby("arm", sort=False)[["request_throughput", "output_throughput", TOTAL, "concurrency", "hit_rate"]]
            .mean()
        )
        for arm, rate in means.iterrows():
            control = means["request_throughput"].get(CONTROL, math.nan)
            cost = {
                "rented_thousand": price.rented.per_thousand(rate["request_throughput"]),
                "usd_thousand": price.per_thousand(rate["request_throughput"]),
                "usd_million_output": price.per_million(rate["output_throughput"]),
                "usd_million_prompt": price.per_million(rate[TOTAL] - rate["output_throughput"]),
            }
            rows.append(
                {
                    "host": tables.labels(same),
                    "arm": arm,
                    "prefix_tokens": int(prefix),
                    "share": share,
                    "concurrency": int(rate["concurrency"]),
                    "hit_rate": rate["hit_rate"],
                    "requests_s": rate["request_throughput"],
                    **cost,
                    "against": control / rate["request_throughput"],
                }
            )
    return pandas.DataFrame(rows, columns=columns)


def measured(root: Path | None = None) -> pandas.DataFrame:
    """Instance by instance what sections 3 and 5 measured, where a price is known: the reference study's hosts, then
    those with published results.

    One row a host, model and arm at the concurrency with its highest rate: `instance`, `host` (with what must be said
    of its figures), `section`, `model`, `arm`, `concurrency`, `tokens_s` (read and written), `rented_million` of these,
    by the instance rented whole, `usd_million` by this host's share of its GPUs, and where requests and output tokens
    were counted `usd_million_output` and `usd_thousand` requests, by the share too."""
    rows = []
    for section in SECTIONS:
        figures = reference.load(section).query("metric == @TOTAL")
        for (host, model, arm), arm_figures in figures.groupby(["host", "model", "arm"], sort=False):
            best = arm_figures.loc[arm_figures["value"].idxmax()]
            rows.append(_row(host, f"{host}, reference", section, model, arm, int(best["concurrency"]), best["value"]))
    root = root or paths.RESULTS_PUBLISHED
    for section in SECTIONS:
        for host in filter(price_of, store.measured_hosts(section, root)):
            frame = comparisons.usable(store.Store(host, section, root).newest())
            frame = comparisons.without_repeats(frame)
            for arm, arm_cells in frame.groupby("arm", sort=False):
                means = arm_cells.groupby("concurrency")[[TOTAL, "output_throughput", "request_throughput"]].mean()
                best = means.loc[means[TOTAL].idxmax()]
                rows.append(
                    _row(
                        host,
                        tables.labels(arm_cells),
                        section,
                        _model(arm_cells),
                        arm,
                        int(best.name),
                        best[TOTAL],
                        best["output_throughput"],
                        best["request_throughput"],
                    )
                )
    columns = [
        "instance",
        "host",
        "section",
        "model",
        "arm",
        "concurrency",
        "tokens_s",
        "rented_million",
        "usd_million",
        "usd_million_output",
        "usd_thousand",
    ]
    return pandas.DataFrame([row for row in rows if row], columns=columns)


def _row(
    host, label, section, model, arm, concurrency, tokens_s, output_s=math.nan, requests_s=math.nan
) -> dict | None:
    price = price_of(host)
    if price is None:
        return None
    instance = prices.instance_of(host) or price.source.partition(", which")[0]
    return {
        "instance": instance,
        "host": label,
        "section": section,
        "model": model,
        "arm": arm,
        "concurrency": concurrency,
        "tokens_s": tokens_s,
        "rented_million": price.rented.per_million(tokens_s),
        "usd_million": price.per_million(tokens_s),
        "usd_million_output": price.per_million(output_s),
        "usd_thousand": price.per_thousand(requests_s),
    }


def _model(frame: pandas.DataFrame) -> str | None:
    """The target of these cells, in the reference study's words; None where the run had several, which its arms' names
    tell.
    """
    file = Path(frame["file"].iloc[0])
    model = files.read(file).get("model") or files.read(file.parents[3] / "run.json")["parameters"].get("model")
    return verdicts.shape_name(model) if model else None


def instances(region: str = prices.REGION) -> pandas.DataFrame:
    """Every instance type of `data/hardware`: `gpu`, `gpus`, `memory_gib` of one, `usd_per_hour`, `usd_per_gpu_hour`,
    `date` (missing where no price is known), and for each model of SERVED the requests of 8,192 tokens that fit at once
    over all of its GPUs (predicted; missing where the model does not).
    """
    fits = budgets.fits(list(SERVED.values()), list(ceilings.instances()), [LENGTH]).set_index(["model", "host"])[
        LENGTH
    ]
    rows = []
    for name, place in ceilings.instances().items():
        price = prices.known(name, region)
        row = {
            "instance": name,
            "gpu": place.gpu.name.upper(),
            "gpus": place.count,
            "memory_gib": place.gpu.memory_gib,
            "usd_per_hour": price.usd_per_hour if price else math.nan,
        }
        fitting = {
            short: float(fits[model, name]) if fits[model, name] >= 1 else math.nan for short, model in SERVED.items()
        }
        rows.append(
            row
            | {"usd_per_gpu_hour": row["usd_per_hour"] / place.count, "date": price.date if price else None}
            | fitting
        )
    return pandas.DataFrame(rows)


def instance_values() -> dict[str, float | str]:
    """What section 7's sentences say about which instance to rent, by the names that they use."""
    table = instances().set_index("instance")
    small, large, l4 = (table.loc[name] for name in ("p4d.24xlarge", "p4de.24xlarge", "g6.xlarge"))
    return {
        "priced": table["usd_per_hour"].notna().sum(),
        "instance_types": len(table),
        "p4d_gpus": small["gpus"],
        "p4de_gpus": large["gpus"],
        "p4d_gib": small["memory_gib"],
        "p4de_gib": large["memory_gib"],
        "p4d_usd": small["usd_per_hour"],
        "p4de_usd": large["usd_per_hour"],
        "p4de_more": large["70B"] / small["70B"],
        "big_billion": shapes.load(SERVED["70B"]).parameters / 1e9,
        "p4d_over_l4": small["usd_per_hour"] / l4["usd_per_hour"],
        "p4d_name": small.name,
        "p4de_name": large.name,
        "l4_name": l4.name,
        "oldest": table["date"].dropna().min(),
        "newest": table["date"].dropna().max(),
    }


def basis(paid: dict[str, prices.Price | None]) -> str:
    """In sentences: which price is taken for which host, and what to do where none is known."""
    words = [
        f"`{host}`: {price.usd_per_hour:.4g} US dollars an hour "
        f"({price.source}{f', {price.region}, {price.date}' if price.date else ''})."
        for host, price in paid.items()
        if price
    ]
    none = ", ".join(f"`{host}`" for host, price in paid.items() if price is None)
    if none:
        words.append(
            f"No price is known for {none}, and none is made up: set `price_per_hour` in the header to what "
            "an hour costs you; `serving-study price` says what instances cost."
        )
    return " ".join(words)
