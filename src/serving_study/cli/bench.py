"""Run a section's loads against a server that somebody else started."""

from typing import TYPE_CHECKING, Annotated

import typer

from .. import engines, files, paths
from ..errors import ParameterError
from . import options

if TYPE_CHECKING:
    from ..chapters import sections
    from ..measure.endpoints.session import Session
    from ..results.store import Run


def bench(
    url: Annotated[str, typer.Option("--url", help="of the server: http://HOST:PORT")],
    section: Annotated[str, typer.Option("--section", help="whose loads are sent, such as 3")],
    engine: Annotated[
        str, typer.Option("--engine", help=f"what it is: {', '.join(engines.ENGINES)} (openai: it has no counters)")
    ] = "openai",
    model: Annotated[str, typer.Option("--model", help="as the server calls it; not needed where it has one")] = "",
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="the model's: a folder or a hub id; the model's name when not given")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="of the results' folder; the address when not given")] = "",
    parameter: options.Pairs = [],  # noqa: B006
    yaml: options.Yaml = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="look at the server; send no load")] = False,
) -> None:
    """Run a section's loads against a server that somebody else started, and store them as no host's.

    What its certificate would need of the server's process is unknown, and no comparison has its cells.
    """
    from ..chapters import plans, sections
    from ..hardware import hosts
    from ..measure.endpoints import report as reports
    from ..measure.endpoints import session
    from ..models import checkpoints

    chosen = _section(sections.get(sections.address(section)))
    values = sections.parameters(chosen, options.given_parameters(parameter, yaml))
    host = hosts.detect(values["host"])
    wanted = chosen.parameters(**values)
    wanted = wanted.filled(wanted.profiles["gpu" if host.gpus else "cpu"])
    called = session.name_of(url, name)
    report = reports.look(url, engine, model or None)
    for line in _seen(report):
        print(line, flush=True)
    environment = plans.environment(host, dry_run, print)
    if dry_run and not environment.vllm:
        print("the load generator's environment is not installed yet")
        return
    folder = checkpoints.tokenizer(tokenizer or report.model, environment, print)
    loads = plans.loads(wanted, host, environment, dry_run, print)
    made = session.Session(
        report, chosen.number, loads, wanted.repeats, plans.resolved(wanted, host), folder, called, wanted.seed
    )
    reports.require_context(report, made.longest(), chosen.number)
    print(
        f"{len(loads) * wanted.repeats} cells: {wanted.repeats} blocks of concurrency "
        f"{', '.join(f'{load.concurrency} ({load.prompts} prompts)' for load in loads)}",
        flush=True,
    )
    if not dry_run:
        show(made, session.measure(made, host, environment))


def _section(chosen: "sections.Section") -> "sections.Section":
    """The section, if its loads do not hang on servers of its own. Raises ParameterError."""
    from ..chapters import plans, sections

    if not chosen.measures or not issubclass(chosen.parameters, plans.Loaded):
        fitting = [
            str(section.number)
            for section in sections.SECTIONS.values()
            if section.measures and issubclass(section.parameters, plans.Loaded)
        ]
        raise ParameterError(
            "this section's loads are made for servers that it starts itself",
            value=chosen.number,
            allowed=", ".join(fitting),
            next=f"serving-study bench --section {fitting[0]}",
        )
    return chosen


def _seen(report) -> list[str]:
    """What the server says it is, in lines."""
    title = engines.get(report.engine).TITLE
    context = f"{report.context:,} tokens of context" if report.context else "of a context that it does not say"
    lines = [f"{title} {report.version or '(version unknown)'}: {report.model}, {context}; not started by the study"]
    if report.other_engine:
        other = engines.get(report.other_engine).TITLE
        lines.append(f"its counters are {other}'s: --engine {report.other_engine} checks more")
    return lines


def show(session: "Session", run: "Run") -> None:
    """The cells in a table, what could not be checked, and where they are."""
    from ..results import certificates, store

    cells = [store.read_cell(file) for file in run.cell_files()]
    print(f"{'concurrency':>11} {'block':>5} {'tok/s':>8} {'TTFT ms':>8} {'TPOT ms':>8}  certificate")
    for cell in sorted(cells, key=lambda cell: (cell["concurrency"], cell["repeat"])):
        row = store.cell_row(cell)
        figures = (row["output_throughput"], row["median_ttft_ms"], row["median_tpot_ms"])
        shown = " ".join(f"{'–' if figure is None else f'{figure:.1f}':>8}" for figure in figures)
        print(f"{cell['concurrency']:>11} {cell['repeat']:>5} {shown}  {cell['certificate']['verdict']}")
    for outcome in (certificates.FAIL, certificates.UNKNOWN):
        reasons = {
            check["name"]: check["evidence"]
            for cell in cells
            for check in cell["certificate"]["checks"]
            if check["outcome"] == outcome
        }
        for check, evidence in reasons.items():
            print(f"{outcome}: {check}: {evidence}")
    record = files.read(run.folder / "run.json")
    print(f"server started by: {record['server']['started_by']}; stored in {_place(run)}")


def _place(run: "Run") -> str:
    return str(run.folder.relative_to(paths.ROOT) if run.folder.is_relative_to(paths.ROOT) else run.folder)
