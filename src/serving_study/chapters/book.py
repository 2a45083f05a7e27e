"""The book: which executed notebooks enter it, how it is built, and what a built page must not contain.

`make run` executes a section into a scratch path; `publish` copies it into `book/sections/` only if it ran to its end.
What can mislead: papermill marks the cells of a dead kernel `completed`, and `-W -n` passes an error output stored in a
notebook; so `publish` checks execution counts and outputs, and `check` the pages themselves. The same executed notebook
always gives the same bytes: no times, absolute paths of the checkout, memory addresses or stderr.

    python -c "from serving_study.chapters import book; book.check(book.build())"
"""

import copy
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import yaml

from .. import files, paths
from ..errors import BookError

NAME = re.compile(r"\d\d-[a-z0-9]+(-[a-z0-9]+)*")
SUFFIXES = (".md", ".ipynb", ".rst")
INJECTED = "injected-parameters"
ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")
SVG_DATE = re.compile(r"<dc:date>[^<]*</dc:date>")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PROBLEM = re.compile(r"\b(WARNING|ERROR|CRITICAL|SEVERE)\b:|[Ee]xception|^\w*Error\b")
CELL = re.compile(r"_(row|level)\d+(_(row|col)\d+)?$")  # of a styled table, behind the table's own id
WIDGET = "application/vnd.jupyter.widget-view+json"


def publish(executed: Path, name: str) -> Path:
    """Copy a notebook that ran to its end into `book/sections/<name>.ipynb`, cleaned, and return the copy.

    `executed` is papermill's output and stays. Raises BookError, and keeps an older published copy, if the notebook is
    unreadable, a cell has not run or ran out of order, or one stored an error."""
    if not NAME.fullmatch(name):
        raise BookError(
            "not a chapter's name",
            value=name,
            allowed="two digits and lower-case words, such as 03-speculative-decoding",
        )
    again = f"make run SECTION={int(name[:2])}"
    try:
        notebook = nbformat.v4.reads(Path(executed).read_text(encoding="utf-8"))
        _require_complete(notebook, executed, again)
        clean = _cleaned(notebook)
        nbformat.validate(clean)
    except (OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BookError(
            f"executed notebook cannot be read ({reason})",
            value=executed,
            allowed="a notebook that papermill has written",
            next=again,
        ) from error
    text = nbformat.v4.writes(clean).rstrip("\n") + "\n"
    target = paths.SECTIONS / f"{name}.ipynb"
    with files.whole(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def build(*, strict: bool = True, root: Path | None = None) -> Path:
    """Build the book in `root` (the checkout) from scratch and return its index page.

    `_build/` is emptied first, since Jupyter Book keeps pages that left the table of contents, and glued numbers of
    earlier runs. The output is in `_build/book.log`. With `strict` any warning raises BookError."""
    root = Path(root or paths.ROOT)
    _require_chapters(root)
    output, script = root / "_build", Path(sys.executable).with_name("jupyter-book")
    if not script.exists():
        raise BookError(
            "Jupyter Book is not installed beside this Python",
            value=sys.executable,
            allowed="the environment of env/harness.lock",
            next="make help",
        )
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [sys.executable, str(script), "build", "--all", *(["-W"] if strict else []), "-n", "--keep-going", "."]
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": "0",
        "PYTHONHASHSEED": "0",
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    log = output / "book.log"
    with log.open("w", encoding="utf-8") as stream:
        exit_code = subprocess.run(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        ).returncode
    index = output / "html" / "index.html"
    if exit_code or not index.exists():
        lines = [ANSI.sub("", line).strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        problems = (
            list(dict.fromkeys(line for line in lines if PROBLEM.search(line)))
            or [line for line in lines if line][-20:]
        )
        raise BookError(
            f"book does not build (exit code {exit_code})",
            value="".join(f"\n    | {line}" for line in problems[:40]),
            allowed="no warning at all" if strict else "no error",
            next=f"less {log}",
        )
    return index


def check(html: Path) -> None:
    """Raise BookError if a built page shows an error output or an absolute path of the checkout, loads an outside
    asset, or has an id twice (its styles would reach every such element).

    `html` is the index page that `build` returned, or its folder. Links may point outside; scripts, style sheets,
    images, fonts and frames may not, so that the book reads the same without a network."""
    folder = html if html.is_dir() else html.parent
    checkouts = _spellings(paths.ROOT, folder.parent.parent)
    faults: list[str] = []
    pages = sorted(page for page in folder.rglob("*.html") if "_static" not in page.relative_to(folder).parts)
    if not pages:
        raise BookError("no page here", value=folder, allowed="the folder of a built book", next="make book")
    for page in pages:
        text, shown = page.read_text(encoding="utf-8"), page.relative_to(folder)
        assets = _Assets()
        assets.feed(text)
        faults += [f"{shown}: loads {url}" for url in assets.outside]
        faults += [f"{shown}: shows an error output"] * assets.errors
        twice = [name for name, times in assets.ids.items() if times > 1]
        # Cells' ids contain their table's: the table's is enough.
        faults += [
            f"{shown}: has the id {name} twice" for name in twice if CELL.sub("", name) not in set(twice) - {name}
        ]
    for file in [*pages, folder / "searchindex.js", *sorted(folder.glob("_sources/**/*.*"))]:
        if file.is_file() and (match := checkouts.search(file.read_text(encoding="utf-8", errors="replace"))):
            faults.append(f"{file.relative_to(folder)}: contains the absolute path {match.group()}")
    if faults:
        raise BookError(
            "built book is not fit to publish",
            value="".join(f"\n    | {line}" for line in faults[:40]),
            allowed="no error output, no absolute path of the checkout, no outside script, style, image or frame, and "
            "every id once",
            next="correct the page or notebook named above, then make book",
        )


def chapters(root: Path | None = None) -> list[str]:
    """The documents in `_toc.yml`, in order and without suffix: `book/intro`, `book/01-scope` …"""

    def walk(entry: dict) -> Iterator[str]:
        if name := entry.get("root") or entry.get("file"):
            yield name
        for key in ("parts", "chapters", "sections"):
            for child in entry.get(key) or ():
                yield from walk(child)

    return list(walk(yaml.safe_load((Path(root or paths.ROOT) / "_toc.yml").read_text(encoding="utf-8"))))


def _require_chapters(root: Path) -> None:
    """Executed chapters are committed; one in `_toc.yml` that nobody has run is an error."""
    listed = chapters(root)
    missing = [name for name in listed if not any((root / f"{name}{suffix}").is_file() for suffix in (*SUFFIXES, ""))]
    if missing:
        number = re.match(r"0*(\d+)-", Path(missing[0]).name) if "/sections/" in missing[0] else None
        raise BookError(
            "chapters listed in _toc.yml do not exist",
            value=", ".join(missing),
            allowed=", ".join(name for name in listed if name not in missing) or "none exists yet",
            next=f"make run SECTION={number[1]}" if number else f"write {missing[0]}.md, or take it out of _toc.yml",
        )


def _require_complete(notebook, executed: Path, again: str) -> None:
    """Every code cell with a source has run, in order, and none stored an error."""
    last = 0
    for index, cell in enumerate(notebook.cells):
        where = f"{executed}, cell {index}: {cell.source.strip().splitlines()[0] if cell.source.strip() else '(empty)'}"
        if "papermill-error-cell-tag" in cell.metadata.get("tags", []):
            raise BookError(
                "papermill reports a failed cell", value=where, allowed="a run without an exception", next=again
            )
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                raise BookError(
                    f"a cell ended in an error ({output.get('ename')}: {output.get('evalue')})",
                    value=where,
                    allowed="no error output",
                    next=again,
                )
        if cell.source.strip():
            if cell.execution_count is None:
                raise BookError(
                    "a cell has not run", value=where, allowed="an execution count on every code cell", next=again
                )
            if cell.execution_count <= last:
                raise BookError(
                    f"a cell ran out of order (count {cell.execution_count} after {last})",
                    value=where,
                    allowed="one run from top to bottom",
                    next=again,
                )
            last = cell.execution_count
    if not last:
        raise BookError(
            "nothing was executed",
            value=executed,
            allowed="a notebook with at least one executed code cell",
            next=again,
        )


def _cleaned(notebook):
    """A copy without what differs between runs or checkouts."""
    clean, checkouts = copy.deepcopy(notebook), _spellings(paths.ROOT)
    kept = {key: clean.metadata[key] for key in ("language_info", "mystnb") if key in clean.metadata}
    clean.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, **kept}
    )
    clean.nbformat, clean.nbformat_minor = 4, 5
    for index, cell in enumerate(clean.cells):
        for noise in ("papermill", "execution", "ExecuteTime", "collapsed", "scrolled"):
            cell.metadata.pop(noise, None)
        cell.setdefault("id", f"cell-{index}")
        tags = cell.metadata.get("tags", [])
        if INJECTED in tags:
            cell.id = INJECTED
            cell.metadata["tags"] = [*tags, *({"hide-input"} - set(tags))]
            cell.source = _text(cell.source, checkouts)
        if cell.cell_type == "code":
            cell.outputs = [_output(output, checkouts) for output in cell.outputs if not _is_noise(output)]
    return clean


def _is_noise(output) -> bool:
    """Stderr (progress bars, ipykernel's warnings), and live widgets, which show nothing without a kernel."""
    return output.get("name") == "stderr" or WIDGET in output.get("data", {})


def _output(output, checkouts: re.Pattern):
    if "text" in output:
        output.text = ADDRESS.sub("", _text(output.text, checkouts))
    for mime, value in output.get("data", {}).items():
        # Base64 is left alone: `/app/` may well occur in it.
        if not mime.startswith(("image/", "audio/", "video/", "application/pdf")) or mime == "image/svg+xml":
            output.data[mime] = _text(value, checkouts)
        if mime == "text/plain":
            output.data[mime] = ADDRESS.sub("", output.data[mime])
    return output


def _text(value, checkouts: re.Pattern):
    """Replace the checkout's path by a relative one in every string of a JSON value."""
    if isinstance(value, str):
        return SVG_DATE.sub("", checkouts.sub(lambda match: "" if match.group().endswith("/") else ".", value))
    if isinstance(value, dict):
        return type(value)((key, _text(item, checkouts)) for key, item in value.items())
    return [_text(item, checkouts) for item in value] if isinstance(value, list) else value


def _spellings(*folders: Path) -> re.Pattern:
    """A pattern for these folders' absolute paths, as given or with links resolved, as whole components (never `/app`
    in `/apple`).
    """
    spelled = sorted(
        {str(path) for folder in folders for path in (Path(folder), Path(folder).resolve())}, key=len, reverse=True
    )
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, spelled))})(?:/|(?![\w.-]))")


class _Assets(HTMLParser):
    """Collects a page's outside assets, its error outputs, and how often each id occurs."""

    LOADED = {
        "script": ("src",),
        "img": ("src", "srcset"),
        "iframe": ("src",),
        "source": ("src", "srcset"),
        "video": ("src", "poster"),
        "audio": ("src",),
        "embed": ("src",),
        "object": ("data",),
        "image": ("href", "xlink:href"),
        "use": ("href", "xlink:href"),
    }
    RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch", "manifest"}
    OUTSIDE = re.compile(r"\s*(https?:)?//", re.I)
    IN_STYLE = re.compile(r"""(?:url\(|@import)\s*['"]?\s*((?:https?:)?//[^'")\s]+)""", re.I)

    def __init__(self):
        super().__init__()
        self.outside, self.errors, self.ids, self._style = [], 0, Counter(), False

    def handle_starttag(self, tag, attributes):
        values = {key: value or "" for key, value in attributes}
        self.ids.update([values["id"]] if values.get("id") else [])
        names = self.LOADED.get(tag, ())
        if tag == "link" and self.RELATIONS & set(values.get("rel", "").lower().split()):
            names = ("href",)
        for name in names:
            for url in values.get(name, "").split(",") if name == "srcset" else [values.get(name, "")]:
                if self.OUTSIDE.match(url):
                    self.outside.append(url.strip())
        self.outside += self.IN_STYLE.findall(values.get("style", ""))
        classes = values.get("class", "").split()
        self.errors += tag == "div" and "output" in classes and ("traceback" in classes or "error" in classes)
        self._style = tag == "style"

    def handle_endtag(self, tag):
        self._style = False

    def handle_data(self, data):
        if self._style:
            self.outside += self.IN_STYLE.findall(data)
