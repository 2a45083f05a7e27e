"""Run a section's notebook: plan, examine, execute with papermill, publish, build the book."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import paths
from ..doctor import findings
from ..errors import ParameterError, StudyError
from . import options

if TYPE_CHECKING:
    from ..chapters import sections
    from ..measure.plan import Plan


def run(
    section: options.SectionNumber,
    parameter: options.Pairs = [],  # noqa: B006
    yaml: options.Yaml = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what is measured already")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be measured; start nothing")] = False,
    no_book: Annotated[bool, typer.Option("--no-book", help="publish the chapter, but do not build the book")] = False,
    # What `-p repeats 2` leaves over.
    rest: Annotated[list[str], typer.Argument(hidden=True, metavar="")] = [],  # noqa: B006
) -> None:
    """Run a section's notebook on this machine, publish it, and build the book."""
    from ..chapters import book as books
    from ..chapters import sections
    from ..measure import plan_table, starts
    from ..results import store

    if rest:
        raise ParameterError(
            "-p wants a name and a value in one word" if parameter else "run takes one section",
            value=" ".join([*(pair for pair in parameter if "=" not in pair), *rest]),
            allowed="-p NAME=VALUE, each with a -p of its own",
            next=f"serving-study run {section} --help",
        )
    chosen = sections.get(sections.address(section))
    given = options.given_parameters(parameter, yaml) | ({"fresh": True} if fresh else {})
    values = sections.parameters(chosen, given)
    given = {
        name: values[name] for name in given
    }  # as they are planned, so that papermill puts the same into the notebook
    if dry_run:
        if not chosen.measures:
            print(f"section {chosen.number} is not planned cell by cell: its notebook takes {chosen.takes}")
            return
        plan = sections.plan(chosen.number, dry=True, **values)
        (plan_table.show if plan.loads else starts.table_of_plan)(
            plan, store.Store(plan.host.name, plan.section), values.get("fresh", False)
        )
        return
    if chosen.measures:
        plan = sections.plan(chosen.number, **values)
        known = store.Store(plan.host.name, plan.section)
        if (plan_table.show if plan.loads else starts.table_of_plan)(plan, known, values.get("fresh", False)):
            examine(plan)
    executed = execute(chosen, given)
    chapter = books.publish(executed, chosen.name)
    print(f"published {chapter.relative_to(paths.ROOT)}")
    if not no_book:
        build(chosen)


def book() -> None:
    """Build the book from the published chapters."""
    build(None)


def examine(plan: "Plan") -> None:
    """Print the doctor's warnings, and raise HostError for failures."""
    from ..doctor import checks as doctors

    all_findings = doctors.examine(plan, host=plan.host, environment=plan.environment, hub=False)
    for line in findings.lines(finding for finding in all_findings if finding.outcome != findings.OK):
        print(line)
    print(f"doctor: {findings.counts(all_findings)[findings.OK]} checks passed", flush=True)
    findings.require(all_findings)


def build(chosen: "sections.Section | None") -> None:
    from ..chapters import appendix
    from ..chapters import book as books

    appendix.write()
    began = time.monotonic()
    index = books.build()
    page = index.parent / "book" / "sections" / f"{chosen.name}.html" if chosen else index
    print(f"book built in {time.monotonic() - began:.0f} s; open {page if page.exists() else index}")


def execute(section: "sections.Section", given: dict[str, Any]) -> Path:
    """Execute a notebook with papermill into a scratch path; the published copy is replaced only after success."""
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
