"""What a tier's folder weighs while its server writes and deletes there."""

import os

from serving_study.measure.mechanisms import tiers


def test_a_folder_is_weighed_with_all_below_it(tmp_path):
    assert tiers.weigh(tmp_path) == 0 and tiers.weigh(tmp_path / "none") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"x" * 5)
    (tmp_path / "a" / "b" / "two").write_bytes(b"x" * 7)
    (tmp_path / "a" / "gone").symlink_to(tmp_path / "nowhere")
    assert tiers.weigh(tmp_path) == 12


def test_what_vanishes_meanwhile_counts_for_nothing(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        (tmp_path / name).write_bytes(b"x" * 5)
    real = os.stat

    def stat(path, *positional, **named):
        if str(path).endswith("two"):
            (tmp_path / "two").unlink(missing_ok=True)
        return real(path, *positional, **named)

    monkeypatch.setattr(tiers.os, "stat", stat)
    assert tiers.weigh(tmp_path) == 10


def test_a_folder_that_vanishes_meanwhile_counts_for_nothing(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"x" * 5)
    real = os.scandir

    def scandir(path):
        if str(path).endswith("/a"):
            raise FileNotFoundError(2, "gone", str(path))
        return real(path)

    monkeypatch.setattr(tiers.os, "scandir", scandir)
    assert tiers.weigh(tmp_path) == 0
