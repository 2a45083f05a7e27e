"""A notebook's `parameters` cell, read as Python reads it but without running it.

papermill finds the cell by its tag and puts given values into a cell behind it. What can mislead: without the tag they
go to the top, where the header overwrites them; a value that a later cell sets again is not the planned one. Both are
refused.

    >>> headers.read(sections.get(3).notebook)["repeats"]                                    # doctest: +SKIP
"""

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ParameterError

TAG, INJECTED = "parameters", "injected-parameters"
MARKERS = ("<<<<<<< ", "=======", ">>>>>>> ")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def read(notebook: Path, names: Iterable[str] = ()) -> dict[str, Any]:
    """The header's values by name. `names` are those expected; by them a cell that lost its tag is recognised.

    Raises ParameterError for a file that is no notebook, for a header that is missing, doubled or no plain list of
    literals, and for a parameter that another cell sets."""
    code = [(place, cell) for place, cell in enumerate(_cells(notebook), 1) if cell.get("cell_type") == "code"]
    tagged = [(place, cell) for place, cell in code if TAG in _tags(cell)]
    if len(tagged) != 1:
        raise _not_one(notebook, [place for place, _ in tagged], _likely(code, set(names)))
    values = _literals(notebook, _source(tagged[0][1]))
    for place, cell in code:
        if INJECTED in _tags(cell):
            raise ParameterError(
                f"{notebook.name} has a cell of an earlier run, tagged {INJECTED}, which would set parameters again",
                value=f"cell {place}",
                allowed="a source without it",
                next=f"delete that cell from {notebook}; -p NAME=VALUE sets a parameter for one run",
            )
        if cell is not tagged[0][1] and (again := _assigned(_source(cell)) & set(values)):
            raise ParameterError(
                f"another cell of {notebook.name} sets parameters again, so that what is planned would not run",
                value=f"{', '.join(sorted(again))} (cell {place})",
                allowed="each parameter set once, in the cell tagged parameters",
                next=f"edit {notebook}: another name there",
            )
    return values


def _cells(notebook: Path) -> list[dict]:
    again = f"git diff -- {notebook}, or git checkout -- {notebook}"
    try:
        text = notebook.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(
            "this notebook cannot be read", value=f"{notebook} ({error})", allowed="a notebook in UTF-8", next=again
        ) from None
    markers = [str(number) for number, line in enumerate(text.splitlines(), 1) if line.startswith(MARKERS)]
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ParameterError(
            "a merge of this notebook was not finished" if markers else "this notebook is not JSON",
            value=f"{notebook}, lines {', '.join(markers)}" if markers else f"{notebook} ({error})",
            allowed="a notebook without the lines <<<<<<<, ======= and >>>>>>>" if markers else "a Jupyter notebook",
            next=again,
        ) from None
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ParameterError(
            "this file is JSON and no notebook", value=notebook, allowed="a Jupyter notebook of format 4", next=again
        )
    return cells


def _literals(notebook: Path, source: str) -> dict[str, Any]:
    def refuse(value: str) -> ParameterError:
        return ParameterError(
            f"the parameters cell of {notebook.name} may hold literals only",
            value=value,
            allowed="NAME = VALUE, or NAME: TYPE = VALUE, with numbers, strings, lists, mappings, True, False and None",
            next=f"edit {notebook}",
        )

    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise refuse(f"{(error.text or '').strip()} ({error.msg}, line {error.lineno} of the cell)") from None
    values = {}
    for statement in statements:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else []
        )
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or statement.value is None:
            raise refuse(ast.get_source_segment(source, statement))
        try:
            values[targets[0].id] = ast.literal_eval(statement.value)
        except (ValueError, TypeError):
            raise refuse(ast.get_source_segment(source, statement)) from None
    return values


def _not_one(notebook: Path, places: list[int], likely: int | None) -> ParameterError:
    if places:
        return ParameterError(
            f"{notebook.name} has several cells tagged {TAG}",
            value=f"cells {', '.join(map(str, places))}",
            allowed="one",
            next=f"take the tag from all but the header in {notebook}",
        )
    return ParameterError(
        f"no cell of {notebook.name} is tagged {TAG}, so that its header would neither be planned nor take -p",
        value=f"cell {likely} looks like the header" if likely else "no cell looks like the header",
        allowed=f"one code cell with the tag {TAG}",
        next=f'put "metadata": {{"tags": ["{TAG}"]}} into that cell of {notebook} (in JupyterLab: the cell, then '
        f"Property Inspector, Cell Tags, {TAG})",
    )


def _likely(code: list[tuple[int, dict]], names: set[str]) -> int | None:
    """The cell that sets most of the names; None where none sets any."""
    counts = {place: len(_assigned(_source(cell)) & names) for place, cell in code}
    best = max(counts, key=counts.get, default=None)
    return best if best and counts[best] else None


def _assigned(source: str) -> set[str]:
    """The notebook's variables that a cell sets, without those inside functions and comprehensions."""
    plain = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    try:
        waiting, names = [ast.parse(plain)], set()
    except SyntaxError:
        return set()  # a cell of another language: it sets none of ours
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, SCOPES[:3]):
            names.add(node.name)
        if not isinstance(node, (*SCOPES, *COMPREHENSIONS)):
            waiting += ast.iter_child_nodes(node)
    return names


def _source(cell: dict) -> str:
    return "".join(cell.get("source", ""))


def _tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])
