"""What may enter the book, and what a built page may not contain; nothing here starts Sphinx or a browser."""

import copy
import json
import re
import zlib

import nbformat
import pytest

from serving_study import paths
from serving_study.chapters import book
from serving_study.errors import BookError

NAME = "03-speculative-decoding"
TIMES = {
    "papermill": {
        "start_time": "2030-01-01T00:00:00.000001",
        "end_time": "2030-01-01T00:00:09",
        "duration": 9.0,
        "status": "completed",
        "exception": None,
    },
    "execution": {"iopub.execute_input": "2030-01-01T00:00:00.5Z"},
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout of its own, whose absolute path must not be published."""
    root = tmp_path / "checkout"
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(paths, "SECTIONS", root / "book" / "sections")
    root.mkdir()
    return root


def code(source, count, *outputs, **metadata):
    cell = nbformat.v4.new_code_cell(
        source, execution_count=count, outputs=list(outputs), metadata={**copy.deepcopy(TIMES), **metadata}
    )
    cell["id"] = f"id-{zlib.crc32(source.encode())}"
    return cell


def stream(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def notebook(root, *extra):
    """An executed notebook as papermill leaves it: times, absolute paths, an injected cell with a random id, stderr."""
    injected = code(f"results = '{root}/data/results'\nrepeats = 2", 2, tags=["injected-parameters"])
    return nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# A question", id="title"),
            code("repeats = 1", 1, tags=["parameters"]),
            injected,
            code(
                "print(repeats)",
                3,
                stream(f"{root}/data/results/cpu-46af\n<object at 0x7f1234567890>\n"),
                stream("TCP transport warning\n", "stderr"),
            ),
            *extra,
        ],
        metadata={
            "kernelspec": {"display_name": "Harness", "language": "python", "name": "harness"},
            "language_info": {"name": "python", "version": "3.11.7"},
            "papermill": {
                "input_path": f"{root}/notebooks/x.ipynb",
                "output_path": f"{root}/.cache/x.ipynb",
                **TIMES["papermill"],
            },
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        },
    )


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.v4.writes(content))
    return path


def published(root, content):
    return nbformat.read(book.publish(written(root.parent / "scratch" / "executed.ipynb", content), NAME), as_version=4)


def test_a_complete_run_is_published_where_the_book_looks(root):
    target = book.publish(written(root.parent / "executed.ipynb", notebook(root)), NAME)
    assert target == root / "book" / "sections" / f"{NAME}.ipynb"
    nbformat.validate(nbformat.read(target, as_version=4))
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_times_and_papermills_paths_are_gone(root):
    text = json.dumps(published(root, notebook(root)))
    assert "2030-01-01" not in text and "papermill" not in text and "widgets" not in text and "iopub" not in text


def test_the_checkouts_path_is_relative_in_outputs_and_injected_parameters(root):
    copied = published(
        root,
        notebook(root, code("here", 4, stream(f"cwd {root}\nfile://{root}/a.csv {root}-other/b {root.parent}/c\n"))),
    )
    assert copied.cells[3].outputs[0].text.startswith("data/results/cpu-46af\n")
    assert copied.cells[2].source.startswith("results = 'data/results'")
    assert copied.cells[4].outputs[0].text == f"cwd .\nfile://a.csv {root}-other/b {root.parent}/c\n"


def test_paths_are_replaced_in_html_svg_and_json_but_never_in_base64(root, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", type(root)("/app"))
    data = {
        "text/html": "<td>/app/data/x</td>",
        "text/plain": "<Styler at 0x7f00deadbeef>",
        "image/png": "iVBOR+/app/data+/app/==",
        "image/svg+xml": "<svg><dc:date>2030-01-01T00:00:00</dc:date><a>/app/x /apple/y</a></svg>",
        "application/json": {"file": ["/app/z", 1, None]},
    }
    shown = (
        published(root, notebook(root, code("table", 4, nbformat.v4.new_output("display_data", data))))
        .cells[4]
        .outputs[0]
        .data
    )
    assert shown["text/html"] == "<td>data/x</td>"
    assert shown["text/plain"] == "<Styler>"
    assert shown["image/png"] == data["image/png"]
    assert shown["image/svg+xml"] == "<svg><a>x /apple/y</a></svg>"
    assert shown["application/json"] == {"file": ["z", 1, None]}


def test_stderr_and_live_widgets_are_left_out(root):
    bar = nbformat.v4.new_output(
        "display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "100%"}
    )
    copied = published(root, notebook(root, code("sweep()", 4, stream("9/9", "stderr"), bar, stream("done\n"))))
    assert [output.get("text") for output in copied.cells[4].outputs] == ["done\n"]
    assert all(
        output.get("name") != "stderr" for cell in copied.cells if cell.cell_type == "code" for output in cell.outputs
    )


def test_the_injected_cell_is_folded_and_the_kernel_is_python3(root):
    copied = published(root, notebook(root))
    assert copied.cells[2].metadata.tags == ["injected-parameters", "hide-input"]
    assert copied.cells[2].id == "injected-parameters"
    assert copied.cells[1].metadata.tags == ["parameters"]
    assert copied.metadata.kernelspec.name == "python3"


def test_publishing_again_gives_the_same_bytes(root):
    executed = written(root.parent / "executed.ipynb", notebook(root))
    before = executed.read_bytes()
    first = book.publish(executed, NAME).read_bytes()
    assert book.publish(executed, NAME).read_bytes() == first
    assert executed.read_bytes() == before


def test_two_runs_that_differ_in_times_addresses_and_random_ids_give_the_same_bytes(root):
    other = notebook(root)
    other.cells[2]["id"] = "another-random-id"
    other.cells[3].outputs[0].text = other.cells[3].outputs[0].text.replace("0x7f1234567890", "0x7fffffffffff")
    other.cells[1].metadata.papermill["start_time"] = "2031-01-01T00:00:00"
    first = book.publish(written(root.parent / "1.ipynb", notebook(root)), NAME).read_bytes()
    assert book.publish(written(root.parent / "2.ipynb", other), NAME).read_bytes() == first


def test_a_published_copy_published_again_stays_the_same(root):
    target = book.publish(written(root.parent / "executed.ipynb", notebook(root)), NAME)
    before = target.read_bytes()
    assert book.publish(target, NAME).read_bytes() == before


def test_an_empty_code_cell_needs_no_execution_count(root):
    assert published(root, notebook(root, code("  \n", None))).cells[4].execution_count is None


def test_a_notebook_without_cell_ids_gets_fixed_ones(root):
    raw = json.loads(nbformat.v4.writes(notebook(root)))
    raw["nbformat_minor"] = 4
    for cell in raw["cells"]:
        cell.pop("id", None)
    executed = root.parent / "old.ipynb"
    executed.write_text(json.dumps(raw))
    copied = nbformat.read(book.publish(executed, NAME), as_version=4)
    assert [cell.id for cell in copied.cells] == ["cell-0", "cell-1", "injected-parameters", "cell-3"]


FAILED_CELL = nbformat.v4.new_markdown_cell(
    "An Exception was encountered", id="e", metadata={"tags": ["papermill-error-cell-tag"]}
)
ERROR = nbformat.v4.new_output("error", ename="RuntimeError", evalue="planted", traceback=["planted"])
FAULTS = {
    "an error output": (lambda root: notebook(root, code("boom()", 4, ERROR)), r"RuntimeError: planted.*\n?.*boom\(\)"),
    "a cell that has not run": (lambda root: notebook(root, code("later()", None)), r"a cell has not run: .*later\(\)"),
    "a dead kernel marked completed": (
        lambda root: notebook(root, code("sweep()", None, stream("1/9"))),
        "a cell has not run",
    ),
    "cells out of order": (lambda root: notebook(root, code("earlier()", 2)), "out of order .count 2 after 3."),
    "papermill's error cell": (lambda root: notebook(root, FAILED_CELL), "papermill reports a failed cell"),
    "no code at all": (
        lambda root: nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# x", id="x")]),
        "nothing was executed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_incomplete_run_is_refused_and_the_old_copy_stays(root, fault):
    target = book.publish(written(root.parent / "good.ipynb", notebook(root)), NAME)
    before = target.read_bytes()
    make, message = FAULTS[fault]
    with pytest.raises(BookError, match=message) as raised:
        book.publish(written(root.parent / "bad.ipynb", make(root)), NAME)
    assert raised.value.next == "make run SECTION=3" and raised.value.allowed and raised.value.value
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"nbformat": 4, "cells": [{"cell_type": "code"}]}', b'{"cells": [', b"\xff"]
)
def test_a_file_that_is_no_notebook_is_refused(root, content):
    executed = root.parent / "broken.ipynb"
    executed.write_bytes(content)
    with pytest.raises(BookError, match="cannot be read"):
        book.publish(executed, NAME)
    assert not paths.SECTIONS.exists()


def test_a_missing_file_is_refused(root):
    with pytest.raises(BookError, match="cannot be read"):
        book.publish(root / "nowhere.ipynb", NAME)


@pytest.mark.parametrize("name", ["../03-x", "3-x", "03", "03-X", "03-x.ipynb", "", "03-x/y"])
def test_a_name_that_is_no_chapter_is_refused(root, name):
    with pytest.raises(BookError, match="not a chapter's name"):
        book.publish(written(root.parent / "executed.ipynb", notebook(root)), name)


def test_a_write_that_fails_leaves_the_old_copy_and_no_rubbish(root, monkeypatch):
    executed = written(root.parent / "executed.ipynb", notebook(root))
    target = book.publish(executed, NAME)
    before = target.read_bytes()

    def full(*arguments):
        raise OSError("disk is full")

    monkeypatch.setattr(book.os, "replace", full)
    with pytest.raises(OSError, match="disk is full"):
        book.publish(executed, NAME)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def contents(root, *, parts=False):
    listed = "chapters:\n  - file: book/01-scope\n    sections:\n      - file: book/sections/03-speculative-decoding\n"
    if parts:
        listed = "parts:\n  - caption: Measured\n    " + listed.replace("\n", "\n    ")
    (root / "_toc.yml").write_text(f"format: jb-book\nroot: book/intro\n{listed}")
    (root / "book" / "sections").mkdir(parents=True)


@pytest.mark.parametrize("parts", [False, True])
def test_chapters_are_read_from_the_table_of_contents_in_order(root, parts):
    contents(root, parts=parts)
    assert book.chapters() == ["book/intro", "book/01-scope", "book/sections/03-speculative-decoding"]


def test_a_chapter_that_nobody_has_run_says_which_command_runs_it(root):
    contents(root)
    for name in ("intro", "01-scope"):
        (root / "book" / f"{name}.md").write_text("# x\n")
    with pytest.raises(BookError, match="do not exist: book/sections/03-speculative-decoding") as raised:
        book.build()
    assert raised.value.next == "make run SECTION=3"
    assert not (root / "_build").exists()


def test_a_missing_page_of_prose_is_an_error_too(root):
    contents(root)
    with pytest.raises(BookError, match="book/intro, book/01-scope") as raised:
        book.build()
    assert raised.value.next == "write book/intro.md, or take it out of _toc.yml"


def page(root, body="<p>Fine.</p>", head=""):
    folder = root / "_build" / "html"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(f"<html><head>{head}</head><body>{body}</body></html>")
    return folder / "index.html"


def test_a_clean_page_passes_with_links_to_elsewhere(root):
    index = page(
        root,
        '<a href="https://arxiv.org/abs/2211.17192">x</a><img src="data:image/png;base64,AA"><img src="../a.png">',
        '<link rel="canonical" href="https://example.org/"><link rel="stylesheet" href="_static/book.css">'
        "<style>a {background: url(x.png)}</style>",
    )
    book.check(index)
    book.check(index.parent)


@pytest.mark.parametrize(
    "markup",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<script async src="//cdn.example.org/x.js"></script>',
        '<img src="http://cdn.example.org/x.png">',
        '<img srcset="a.png 1x, https://cdn.example.org/b.png 2x">',
        '<link rel="stylesheet" href="https://cdn.example.org/x.css">',
        '<link href="https://cdn.example.org" rel="preconnect">',
        '<iframe src="https://cdn.example.org/"></iframe>',
        '<svg><image href="https://cdn.example.org/x.png"/></svg>',
        "<p style=\"background: url('https://cdn.example.org/x.png')\">",
        '<style>@import "https://cdn.example.org/x.css";</style>',
    ],
)
def test_an_outside_asset_is_found(root, markup):
    with pytest.raises(BookError, match="index.html: loads .*cdn.example.org"):
        book.check(page(root, markup))


def test_an_error_output_on_a_page_is_found(root):
    with pytest.raises(BookError, match="index.html: shows an error output"):
        book.check(page(root, '<div class="output traceback highlight-ipythontb notranslate">ValueError</div>'))


def test_an_id_that_is_there_twice_is_found_once_a_table(root):
    def table(name):
        cells = f'<th id="{name}_level0_col1">a</th><th id="{name}_level0_row0">b</th><td id="{name}_row0_col12">1</td>'
        return f'<table id="{name}"><tr>{cells}</tr></table>'

    book.check(page(root, table("T_a") + table("T_b") + '<p id="a"></p><p id=""></p><p id=""></p><a name="a"></a>'))
    with pytest.raises(BookError) as raised:
        book.check(page(root, table("T_a") * 2 + table("T_b") + '<p id="b"></p><svg id="b"></svg>'))
    assert re.findall("index.html: .*", str(raised.value)) == [
        "index.html: has the id T_a twice",
        "index.html: has the id b twice",
    ]


def test_the_checkouts_path_is_found_on_pages_in_the_search_index_and_in_sources(root):
    index = page(root, f"<p>in {root}/data</p>")
    with pytest.raises(BookError, match="index.html: contains the absolute path"):
        book.check(index)
    page(root)
    (index.parent / "searchindex.js").write_text(f'["{root}"]')
    (index.parent / "_sources" / "book").mkdir(parents=True)
    (index.parent / "_sources" / "book" / "x.ipynb").write_text(f'"{root}/x"')
    with pytest.raises(BookError) as raised:
        book.check(index)
    assert "searchindex.js" in str(raised.value) and "_sources/book/x.ipynb" in str(raised.value)


def test_a_folder_without_pages_is_no_book(root):
    with pytest.raises(BookError, match="no page here"):
        book.check(root)
