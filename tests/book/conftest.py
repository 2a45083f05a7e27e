"""A copy of the book with one more chapter, built once a session, served locally, opened in the real Chromium.

The extra chapter, the *specimen*, goes the way of every chapter (papermill, `publish`, build) and has one of everything
that the style sheet knows: styled tables, badges, a figure, maths, a wide command. A chapter that `_toc.yml` lists and
nobody has written yet gets a short stand-in, so that the machinery can be tested before the chapters exist."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
import yaml

from serving_study import paths
from serving_study.chapters import book

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SPECIMEN = "98-specimen"
# Words that do not break: what the built page is looked at for.
LONG_PATH = "data/results/h200x2/section-3/2030-01-01T00-00-00Z/arms/draft-k3-concurrency-64/server.log"
LONG_OPTION = (
    '--speculative-config=\'{"method":"draft_model","model":"Qwen/Qwen2.5-0.5B-Instruct","num_speculative_tokens":3}\''
)
LONG_COMMAND = (
    ".venv/vllm/bin/vllm serve Qwen/Qwen2.5-14B-Instruct --port 8000 --max-model-len 8192 "
    "--gpu-memory-utilization 0.90 --tensor-parallel-size 2"
)
GLUED = "sections/98-specimen.ipynb::"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
AFTER = f"""# After the specimen

Glued across pages: {{glue:text}}`{GLUED}speed_up:.2f` times, by {{glue:text}}`{GLUED}winner:s`.
A badge in the text: [pass]{{.badge-pass}}, [fail]{{.badge-fail}}, [unknown]{{.badge-unknown}}, [cpu]{{.badge-label}}.
Cited: {{cite:t}}`leviathan2023fast`. A path: `{LONG_PATH}`.

A long word: `{LONG_OPTION}`.

```{{csv-table}} A table of the text
:header: host, output_throughput, median_tpot_ms, total_token_throughput, acceptance_rate, kv_cache_tokens, certificate
:class: figures
l4x1, 1201.5, 41.20, 2210.1, 0.71, 120544, pass
h200x2, 10870.0, 9.87, 20990.4, 0.69, 2105600, pass
```

```bash
{LONG_COMMAND}
```

```{{bibliography}}
```
"""


SPECIMEN_CELLS = [
    (
        "markdown",
        {},
        r"""
# Specimen

What does a specimen show? Residence is $r = \sum e_i / N$, and throughput

$$
\text{total\_token\_throughput} = \frac{L}{r}\left(1 + \frac{\text{input tokens}}{\text{output tokens}}\right)
= \frac{\sum_{i=1}^{n} e_i}{T}\cdot\frac{N}{\sum_{i=1}^{n} e_i}\left(1 + \frac{\text{input tokens}}{N}\right)
$$
""",
    ),
    (
        "code",
        {"tags": ["parameters"]},
        """
results = ''  # folder of results
repeats = 1  # of each cell
""",
    ),
    (
        "code",
        {"tags": ["remove-cell"]},
        """
import sys

import matplotlib.pyplot as plt
import pandas as pd
from myst_nb import glue

%config InlineBackend.figure_formats = ['svg']
plt.rcParams['svg.hashsalt'] = 'book'
""",
    ),
    (
        "code",
        {},
        """
print('some', 'noise', file=sys.stderr)
print('results in', results)
print(object())
""",
    ),
    (
        "code",
        {},
        """
frame = pd.DataFrame({'output_throughput': [1201.5, 2088.25, 10870.0], 'median_tpot_ms': [41.2, 34.6, 9.87],
                      'p99_ttft_ms': [812.0, 1020.5, 95.1], 'total_token_throughput': [2210.1, 3840.0, 20990.4],
                      'latency': [1.0, 1.19, 1.31], 'occupancy': [1.0, 1.41, 1.2], 'work mix': [1.0, 1.04, 1.0],
                      'certificate': ['pass', 'fail', 'unknown']})
frame.index = pd.Index(['baseline', 'draft k=3', 'eagle3 k=3'], name='arm')
badge = '<span class="badge-{0}">{0}</span>'.format
style = frame.style.format({'certificate': badge}, precision=2, thousands=',').set_caption('Three arms, concurrency 64')
style.set_uuid('specimen').set_table_attributes('class="dataframe"')
""",
    ),
    ("code", {}, "frame.head(2)"),
    (
        "code",
        {
            "tags": ["hide-input"],
            "mystnb": {"figure": {"name": "fig-specimen", "caption": "Every point is a cell that passed."}},
        },
        """
fig, ax = plt.subplots(figsize=(7, 3.2))
ax.plot([1, 8, 64], frame['median_tpot_ms'], marker='o')
ax.set(xlabel='concurrency', ylabel='median TPOT (ms)', title='A figure')
plt.show()
""",
    ),
    (
        "code",
        {"tags": ["remove-cell"]},
        """
glue('speed_up', float(1.7412), display=False)
glue('winner', 'draft k=3', display=False)
""",
    ),
    (
        "markdown",
        {},
        """
## Finding

In {numref}`fig-specimen`, {glue:text}`speed_up:.2f` times.
""",
    ),
]


def specimen() -> nbformat.NotebookNode:
    """The source of the extra chapter; cell ids are fixed, as in every source notebook."""
    new = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = [new[kind](source.strip(), metadata=metadata) for kind, metadata, source in SPECIMEN_CELLS]
    for number, cell in enumerate(cells):
        cell["id"] = f"specimen-{number}"
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})


def execute(source: Path, target: Path, *, results: Path) -> Path:
    """Run a notebook with papermill as `make run` does: into a scratch path, in this interpreter's environment."""
    command = [
        sys.executable,
        "-m",
        "papermill",
        source,
        target,
        "-k",
        "python3",
        "-p",
        "results",
        results,
        "-p",
        "repeats",
        "2",
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return target


def stand_in(root: Path, name: str) -> None:
    """Write a short chapter in place of one that is listed and does not exist yet."""
    title = Path(name).name.replace("-", " ")
    if "/sections/" not in name:
        (root / f"{name}.md").write_text(f"# {title}\n\nNot written yet.\n")
        return
    output = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    cells = [
        nbformat.v4.new_markdown_cell(f"# {title}\n\nNot run yet: $a = b$.", id="a"),
        nbformat.v4.new_code_cell("1 + 1", id="b", execution_count=1, outputs=[output]),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), root / f"{name}.ipynb")


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    """A copy of the checkout's book, with stand-ins where chapters are missing; everything else linked."""
    root = tmp_path_factory.mktemp("book") / "checkout"
    root.mkdir()
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(paths.ROOT / name, root / name)
    shutil.copytree(paths.BOOK, root / "book", ignore=shutil.ignore_patterns("__pycache__", "*.tmp"))
    (root / "book" / "sections").mkdir(exist_ok=True)
    for name in ("data", "notebooks"):
        if (paths.ROOT / name).is_dir():
            (root / name).symlink_to(paths.ROOT / name)
    for name in book.chapters(root):
        if not any((root / f"{name}{suffix}").exists() for suffix in book.SUFFIXES):
            stand_in(root, name)
    return root


@pytest.fixture(scope="session")
def executed(tmp_path_factory) -> tuple[Path, Path]:
    """The specimen, run twice from the same source."""
    scratch = tmp_path_factory.mktemp("scratch")
    nbformat.write(specimen(), scratch / "source.ipynb")
    results = paths.ROOT / "data" / "results"
    return tuple(
        execute(scratch / "source.ipynb", scratch / f"executed-{number}.ipynb", results=results) for number in (1, 2)
    )


@pytest.fixture(scope="session")
def html(tree, executed) -> Path:
    """The folder of the built book, specimen included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "SECTIONS", tree / "book" / "sections")
        book.publish(executed[0], SPECIMEN)
    (tree / "book" / "99-after.md").write_text(AFTER)
    toc = yaml.safe_load((tree / "_toc.yml").read_text())
    toc["chapters"] += [{"file": f"book/sections/{SPECIMEN}"}, {"file": "book/99-after"}]
    (tree / "_toc.yml").write_text(yaml.safe_dump(toc))
    return book.build(root=tree).parent


@pytest.fixture(scope="session")
def served(html):
    """The book over HTTP on 127.0.0.1, at a free port."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(html)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium; its absence is a failure, since nothing else sees what a reader sees."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if executable is None:
        pytest.fail(
            "Chromium is missing, and the book is tested in a real browser: apt-get install -y chromium", pytrace=False
        )
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGUMENTS)
        yield opened
        opened.close()
