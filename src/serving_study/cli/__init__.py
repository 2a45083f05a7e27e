"""`serving-study run | train | bench | doctor | predict | advise | price | compare | certify | book | sections`.

serving-study run 3 --dry-run
serving-study run 3 -p repeats=2 -y '{concurrencies: [1, 8], prompts: [8, 32]}'
"""

import sys

import typer

from .. import paths
from ..errors import StudyError
from . import advise, bench, compare, doctor, predict, price, run, train

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__.splitlines()[0]
)


@app.command("sections")
def list_sections() -> None:
    """List the sections that have a notebook."""
    from ..chapters import sections

    for section in sections.SECTIONS.values():
        print(f"{section.number}  {section.title}  ({section.notebook.relative_to(paths.ROOT)})")


for verb in (
    run.run,
    train.train,
    bench.bench,
    doctor.doctor,
    run.book,
    compare.certify,
    compare.compare,
    predict.predict,
    advise.advise,
    price.price,
):
    app.command()(verb)


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
