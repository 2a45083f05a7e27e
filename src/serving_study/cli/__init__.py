"""The command line: `serving-study run | doctor | predict | advise | price | compare | certify | book | sections`.

serving-study run 3 --dry-run
serving-study run 3 -p repeats=2 -y '{concurrencies: [1, 8], prompts: [8, 32]}'
"""

import ast
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import paths
from ..doctor import findings
from ..errors import ParameterError, StudyError

# Imported by the commands that need them: what is left above starts in a tenth of a second.
if TYPE_CHECKING:
    from ..chapters import sections
    from ..hardware import prices
    from ..measure.plan import Plan

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__.splitlines()[0]
)

SectionNumber = Annotated[
    str, typer.Argument(metavar="SECTION", help="the section's number, as `serving-study sections` lists them")
]
HourlyPrice = Annotated[
    float | None,
    typer.Option(
        "--price", help="US dollars an hour, for the cost of a million output tokens; the known price when not given"
    ),
]
FetchPrice = Annotated[
    bool,
    typer.Option("--fetch-price", help="ask the AWS Price List (needs credentials and a network), and keep the answer"),
]
Region = Annotated[str, typer.Option("--region", help="of the price")]


@app.command("sections")
def list_sections() -> None:
    """List the sections that have a notebook."""
    from ..chapters import sections

    for section in sections.SECTIONS.values():
        print(f"{section.number}  {section.title}  ({section.notebook.relative_to(paths.ROOT)})")


@app.command()
def run(
    section: SectionNumber,
    parameter: Annotated[
        list[str],
        typer.Option(
            "-p",
            "--parameter",
            metavar="NAME=VALUE",
            help="a parameter of the notebook's header, e.g. -p repeats=2 (repeatable)",
        ),
    ] = [],  # noqa: B006
    yaml: Annotated[
        str,
        typer.Option("-y", "--yaml", metavar="YAML", help="parameters as a YAML mapping, for lists: -y '{ks: [1, 3]}'"),
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what is measured already")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be measured; start nothing")] = False,
    no_book: Annotated[bool, typer.Option("--no-book", help="publish the chapter, but do not build the book")] = False,
    rest: Annotated[list[str], typer.Argument(hidden=True, metavar="")] = [],  # noqa: B006 - what `-p repeats 2` leaves over
) -> None:
    """Run a section's notebook on this machine, publish it, and build the book."""
    from ..chapters import book as books
    from ..chapters import sections
    from ..measure import plan as planned
    from ..measure import starts
    from ..results import store

    if rest:
        raise ParameterError(
            "-p wants a name and a value in one word" if parameter else "run takes one section",
            value=" ".join([*(pair for pair in parameter if "=" not in pair), *rest]),
            allowed="-p NAME=VALUE, each with a -p of its own",
            next=f"serving-study run {section} --help",
        )
    chosen = sections.get(sections.address(section))
    given = _given(parameter, yaml) | ({"fresh": True} if fresh else {})
    values = sections.parameters(chosen, given)
    given = {
        name: values[name] for name in given
    }  # as they are planned, so that papermill puts the same into the notebook
    if dry_run:
        if not chosen.measures:
            print(f"section {chosen.number} is not planned cell by cell: its notebook takes {chosen.takes}")
            return
        plan = sections.plan(chosen.number, dry=True, **values)
        (planned.table_of_plan if plan.loads else starts.table_of_plan)(
            plan, store.Store(plan.host.name, plan.section), values.get("fresh", False)
        )
        return
    if chosen.measures:
        plan = sections.plan(chosen.number, **values)
        known = store.Store(plan.host.name, plan.section)
        if (planned.table_of_plan if plan.loads else starts.table_of_plan)(plan, known, values.get("fresh", False)):
            _examine(plan)
    executed = _execute(chosen, given)
    chapter = books.publish(executed, chosen.name)
    print(f"published {chapter.relative_to(paths.ROOT)}")
    if not no_book:
        _build(chosen)


@app.command()
def doctor(
    section: Annotated[
        str,
        typer.Argument(metavar="[SECTION]", help="also look at what this section would measure", show_default=False),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
    imports: Annotated[
        bool,
        typer.Option(
            "--imports/--no-imports", help="try the engine's imports where that is not known yet (20 s, once)"
        ),
    ] = True,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="also measure memory bandwidth, matrix rate and copies (seconds each), for predictions; a "
            "busy machine is refused",
        ),
    ] = False,
) -> None:
    """Look for every known trap before anything starts; installs nothing.

    Exit status: 0 nothing fails, 1 something does.
    """
    from ..doctor import checks as doctors

    found = doctors.look(_number(section) if section else None, imports=imports)
    added, measured = doctors.probe() if probe else ([], None)
    found += added
    about = {"probe": measured and measured.as_dict()} if probe else {}
    print(
        json.dumps(findings.as_dict(found) | about, indent=1)
        if as_json
        else "\n".join([*findings.lines(found), findings.summary(found)])
    )
    raise typer.Exit(1 if findings.counts(found)[findings.FAIL] else 0)


@app.command()
def book() -> None:
    """Build the book from the published chapters."""
    _build(None)


@app.command()
def certify(host: Annotated[str, typer.Argument(help="a host under data/results")], section: SectionNumber) -> None:
    """Judge a host's stored cells again by the checks as they are now."""
    from ..results import store

    known = store.Store(store.host_named(host, _number(section), paths.RESULTS), _number(section))
    if not known.runs():
        raise ParameterError(
            "no results",
            value=known.folder,
            allowed=", ".join(store.measured_hosts(root=paths.RESULTS)),
            next=f"make run SECTION={section}",
        )
    print(f"{known.certify()} verdicts changed")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="HOST, HOST/RUN or reference/HOST")],
    b: Annotated[str, typer.Argument(metavar="B", help="the same, to compare A with")],
    section: Annotated[str, typer.Option("--section", help="the section's number")] = "3",
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", help="relative difference that still reproduces; 0.05 when not given")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Say which figures of A reproduce those of B.

    Exit status: 0 nothing differs, 1 something does, 3 nothing is comparable.
    """
    from ..analysis import verdicts
    from ..chapters.parallelism import splits

    number, tolerance = _number(section), verdicts.TOLERANCE if tolerance is None else tolerance
    if not 0 <= tolerance < 1:
        raise ParameterError(
            "--tolerance cannot be used", value=tolerance, allowed="from 0 to below 1, a relative difference"
        )
    judged = splits.verdicts_by_model if number == splits.SECTION else verdicts.verdicts
    table = judged(verdicts.study(a, number), verdicts.study(b, number), tolerance=tolerance)
    counts = {
        verdict: int((table["verdict"] == verdict).sum())
        for verdict in (verdicts.REPRODUCES, verdicts.DIFFERS, verdicts.NOT_COMPARABLE)
    }
    if as_json:
        print(
            json.dumps(
                {
                    "a": a,
                    "b": b,
                    "section": number,
                    "tolerance": tolerance,
                    "counts": counts,
                    "verdicts": json.loads(table.to_json(orient="records")),
                },
                indent=1,
            )
        )
    else:
        for name in dict.fromkeys((a, b)):
            print("\n".join(verdicts.machine_lines(name, number)))
        for row in table[table["verdict"] != verdicts.NOT_COMPARABLE].itertuples():
            print(
                f"{row.verdict:<14}  {row.kind:<8}  {row.metric:<22}  {row.arm:<16}  concurrency "
                f"{row.concurrency:<3}  {row.a:.5g} against {row.b:.5g} ({row.change:+.1%}): {row.why}"
            )
        for why, rows in table[table["verdict"] == verdicts.NOT_COMPARABLE].groupby("why", sort=False):
            print(f"{verdicts.NOT_COMPARABLE:<14}  {len(rows)} figures: {why}")
        print(
            ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            if len(table)
            else "no figure is in both"
        )
    raise typer.Exit(1 if counts[verdicts.DIFFERS] else 0 if counts[verdicts.REPRODUCES] else 3)


@app.command()
def predict(
    host: Annotated[str, typer.Option("--host", help="a host profile (l4x1) or an instance type (g6.xlarge)")],
    section: Annotated[str, typer.Option("--section", help="3 or 5")] = "3",
    model: Annotated[
        str,
        typer.Option(
            "--model", help="the target: a shape that ships, a folder, a config.json, or a hub id in the cache"
        ),
    ] = "Qwen/Qwen2.5-7B-Instruct",
    draft_model: Annotated[
        str, typer.Option("--draft-model", help="section 3's draft, the same way")
    ] = "Qwen/Qwen2.5-0.5B-Instruct",
    acceptance: Annotated[
        list[str],
        typer.Option(
            "--acceptance",
            metavar="ARM=RATE",
            help="the share of drafted tokens that an arm accepts, e.g. draft-k3=0.6, where the reference study has "
            "none for these models, or in place of its (repeatable)",
        ),
    ] = [],  # noqa: B006
    price: HourlyPrice = None,
    fetch_price: FetchPrice = False,
    region: Region = "us-east-1",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Say what arithmetic expects of a section on a host, before anything is rented: memory, TPOT, throughput,
    crossover, cost.
    """
    from ..theory import calibration, predictions

    cost = _price(host, price, fetch_price, region)
    frame = predictions.predict(
        host,
        model,
        draft_model,
        section=_number(section),
        acceptance=_rates(acceptance),
        price_per_hour=cost and cost.usd_per_hour,
    )
    if as_json:
        print(
            json.dumps(
                {
                    "host": host,
                    "section": _number(section),
                    "model": model,
                    "calibrated": calibration.is_calibrated(host),
                    "price": cost and cost.as_dict(),
                    "rows": json.loads(frame.to_json(orient="records")),
                },
                indent=1,
            )
        )
        return
    print(f"section {section} on {host}, {model}: predicted, not measured; {predictions.basis(host)}")
    print(
        f"price: {cost}"
        if cost
        else f"price: none known for {host} in {region}; --price USD_PER_HOUR or --fetch-price adds the cost"
    )
    for arm, rows in frame.groupby("arm", sort=False):
        first = rows.iloc[0]
        if isinstance(first["reason"], str):
            print(f"  {arm:<10} does not start: {first['reason']}")
            continue
        rate = "" if first["acceptance"] != first["acceptance"] else f"; acceptance {first['acceptance']:.1%} assumed"
        ends = "" if first["crossover"] != first["crossover"] else f"; pays below concurrency {first['crossover']:.0f}"
        print(
            f"  {arm:<10} {first['weights_gib']:.2f} GiB of weights a GPU, {first['kv_tokens']:,.0f} KV "
            f"tokens, {first['max_concurrency']:.1f} requests of full length{ends}{rate}{predictions.caveat(arm)}"
        )
        if first["output_throughput"] != first["output_throughput"]:
            print(f"      no acceptance is known for it with these models; --acceptance {arm}=RATE adds its figures")
            continue
        for row in rows.itertuples():
            dollars = f"  {row.usd_per_million:7.2f} USD a million output tokens" if cost else ""
            print(
                f"      concurrency {row.concurrency:<3.0f}  TPOT {row.tpot_ms:7.2f} ms  TTFT "
                f"{row.ttft_ms:6.0f} ms  {row.output_throughput:8.1f} tok/s out ({row.multiple:.2f}×){dollars}"
            )


@app.command()
def advise(
    slo: Annotated[
        list[str],
        typer.Option(
            "--slo",
            metavar="NAME=MS",
            help="a target, e.g. ttft_p99_ms=500 or tpot_p50_ms=40: ttft, tpot, itl or e2el, its p50, p95, "
            "p99 or mean (repeatable)",
        ),
    ] = [],  # noqa: B006
    host: Annotated[
        list[str],
        typer.Option(
            "--host", help="a host with results, or one to predict for; this machine when not given (repeatable)"
        ),
    ] = [],  # noqa: B006
    section: Annotated[str, typer.Option("--section", help="the section's number")] = "3",
    price: HourlyPrice = None,
    fetch_price: FetchPrice = False,
    region: Region = "us-east-1",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Rank the measured arms that meet targets, and show those that miss.

    Exit status: 0 a measured arm meets every target, 1 none does, 3 nothing is measured and the answer is a prediction.
    """
    from ..chapters.choosing import advice
    from ..hardware import hosts

    wanted, own = advice.targets(slo), hosts.detect().name
    found = [
        advice.of_host(name, _number(section), wanted, price=_price(name, price, fetch_price, region), own=own)
        for name in host or [own]
    ]
    if as_json:
        print(json.dumps([one.as_dict() for one in found] if len(found) > 1 else found[0].as_dict(), indent=1))
    else:
        print("\n\n".join("\n".join(advice.lines(one)) for one in found))
        print("\n".join(advice.across(found)))
    raise typer.Exit(
        0 if any(one.found for one in found) else 1 if any(one.basis == "measured" for one in found) else 3
    )


@app.command()
def price(
    instance: Annotated[
        list[str],
        typer.Argument(
            metavar="INSTANCE",
            help="instance types (g6.xlarge) or host profiles (l4x1); all of the table when not given",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    region: Region = "us-east-1",
    offline: Annotated[
        bool,
        typer.Option("--offline", help="do not ask AWS: the newest price fetched earlier, or of the table that ships"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Say what instances cost an hour in a region, by the AWS Price List where it can be asked, else by the newest
    price known here.

    On demand, Linux, shared tenancy, in US dollars. Exit status: 0 priced, 2 an instance that was named does not exist
    or has no known price."""
    from ..hardware import prices

    found, unreachable = prices.offers(instance, region, ask=not offline)
    if offline or unreachable:
        dates = sorted({offer.price.date for offer in found if offer.price})
        kept = (
            f"what is known here, of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
            if dates
            else "nothing is known here"
        )
        print(
            f"the AWS Price List was not asked (--offline): {kept}"
            if offline
            else f"the AWS Price List could not be asked ({unreachable}): {kept}",
            file=sys.stderr,
        )
    if as_json:
        print(
            json.dumps(
                {
                    "region": region,
                    "asked": not offline,
                    "unreachable": unreachable,
                    "prices": [offer.as_dict() for offer in found],
                },
                indent=1,
            )
        )
        return
    cells = [("instance", "GPUs", "GiB each", "USD an hour", "USD a GPU-hour", "region", "date", "source")]
    for offer in found:
        gpus = (f"{offer.gpus} {offer.gpu}", f"{offer.memory_gib:.1f}") if offer.gpu else ("–", "–")
        cost = (
            (
                f"{offer.price.usd_per_hour:.4f}",
                f"{offer.usd_per_gpu_hour:.4f}" if offer.gpu else "–",
                region,
                offer.price.date,
                offer.price.source,
            )
            if offer.price
            else ("–", "–", region, "–", offer.why)
        )
        cells.append((offer.instance, *gpus, *cost))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(
            "  ".join(
                f"{cell:>{width}}" if place in (2, 3, 4) else f"{cell:<{width}}"
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )


def _price(host: str, usd_per_hour: float | None, fetch: bool, region: str) -> "prices.Price | None":
    """The price given, fetched when asked for, else the newest known."""
    from ..hardware import prices

    if usd_per_hour is not None:
        return prices.given(host, usd_per_hour)
    return prices.fetch(host, region) if fetch else prices.known(host, region)


def _examine(plan: "Plan") -> None:
    """Print what the doctor warns of, and raise HostError for what would fail."""
    from ..doctor import checks as doctors

    found = doctors.examine(plan, host=plan.host, environment=plan.environment, hub=False)
    for line in findings.lines(finding for finding in found if finding.outcome != findings.OK):
        print(line)
    print(f"doctor: {findings.counts(found)[findings.OK]} checks passed", flush=True)
    findings.require(found)


def _build(chosen: "sections.Section | None") -> None:
    from ..chapters import book as books

    began = time.monotonic()
    index = books.build()
    page = index.parent / "book" / "sections" / f"{chosen.name}.html" if chosen else index
    print(f"book built in {time.monotonic() - began:.0f} s; open {page if page.exists() else index}")


def _execute(section: "sections.Section", given: dict[str, Any]) -> Path:
    """Execute a notebook with papermill into a scratch path; the published copy stays as it is until that succeeded."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    scratch = paths.CACHE / "executed" / f"{section.name}.ipynb"
    scratch.parent.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "SOURCE_DATE_EPOCH": "0",
        "SERVING_STUDY_PROGRESS": f"/proc/{os.getpid()}/fd/2",
        "IPYTHONDIR": str(paths.CACHE / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    print(f"running {section.notebook.relative_to(paths.ROOT)}", flush=True)
    try:
        papermill.execute_notebook(
            str(section.notebook),
            str(scratch),
            parameters=given,
            kernel_name="python3",
            progress_bar=False,
            log_output=False,
            cwd=str(paths.ROOT),
            autosave_cell_every=2,
            extra_arguments=["--log-level=40"],
        )
    except PapermillExecutionError as error:
        raise StudyError(
            f"the notebook stopped at cell {error.exec_count}",
            value=f"{error.ename}: {error.evalue}",
            next=f"the same command again resumes; the executed part is {scratch}",
        ) from None
    except RuntimeError as error:
        raise StudyError(
            "the notebook's kernel ended", value=str(error), next="the same command again resumes"
        ) from None
    return scratch


def _number(text: str) -> int | str:
    if text.isdigit():
        return int(text)
    from ..chapters import sections

    return sections.address(text)


def _rates(pairs: list[str]) -> dict[str, float]:
    """Arm to acceptance rate."""
    found = {}
    for pair in pairs:
        arm, _, rate = pair.partition("=")
        try:
            found[arm] = float(rate)
        except ValueError:
            raise ParameterError(
                "--acceptance wants an arm and a rate", value=pair, allowed="--acceptance draft-k3=0.6"
            ) from None
    return found


def _given(pairs: list[str], text: str) -> dict[str, Any]:
    import yaml

    try:
        given = yaml.safe_load(text) if text else {}
    except yaml.YAMLError as error:
        raise ParameterError(
            "-y is not YAML", value=f"{text} ({str(error).splitlines()[0]})", allowed="-y '{name: value, …}'"
        ) from None
    if not isinstance(given, dict):
        raise ParameterError("-y is not a mapping", value=text, allowed="-y '{name: value, …}'")
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ParameterError(
                "-p wants a name and a value in one word", value=pair, allowed="-p NAME=VALUE, such as -p repeats=2"
            )
        try:
            given[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name] = value
    return given


def main() -> None:
    """Entry point: errors that a user can act on are printed without a traceback."""
    try:
        app()
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command again resumes", file=sys.stderr)
        sys.exit(130)
