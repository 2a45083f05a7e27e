"""The appendix of parameters: current, and of every parameter of every section."""

from serving_study import paths
from serving_study.chapters import appendix, sections


def test_the_page_is_what_the_models_say_now():
    assert (paths.BOOK / appendix.PAGE).read_text() == appendix.page(), "next: serving-study book"


def test_every_parameter_has_a_row_with_its_bounds_and_defaults():
    page = appendix.page()
    for section in sections.SECTIONS.values():
        rows = page.split(f"## {section.number}: ")[1].split("\n## ")[0].splitlines()
        names = [row.split("`")[1] for row in rows if row.startswith("| `")]
        assert names == list(section.parameters.model_fields)
    assert "| `methods` | a list of draft, eagle3 | draft, eagle3 | `['draft']` | " in page
    row = "| `repeats` | a whole number or None | 1 or more | `None`; cpu: `8`; gpu: `8` | "
    assert f"{row}blocks: each measures every cell once; at least so many |" in page


def test_a_page_that_is_current_is_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BOOK", tmp_path)
    written = appendix.write().stat().st_mtime_ns
    assert appendix.write().stat().st_mtime_ns == written
    (tmp_path / appendix.PAGE).write_text("old")
    assert appendix.write().read_text() == appendix.page()
