"""The reference study's published figures, read from `data/reference/section-N.csv`: one row a figure.

What can mislead: figures are the study's own roundings, so a recomputed multiple can differ from a printed one in its
last digit; the hosts `arithmetic`, `model-card` and `several` are no single machine; `data/reference/README.md` lists
where the study's prose disagrees with its tables. Percentages and multiples are not stored but recomputed.

    >>> reference.load(3)         # doctest: +SKIP
"""

import csv
import math
import re
from pathlib import Path

import pandas

from ..errors import ParameterError, StoreError
from ..paths import DATA

FOLDER = DATA / "reference"
HEADER = ("section", "host", "model", "arm", "concurrency", "metric", "value")
KEY = ["section", "host", "model", "arm", "concurrency", "request", "metric"]

NUMERIC = frozenset(
    "weights_gib kv_cache_tokens max_concurrency startup_s failure_s "  # of a start
    "oom_tried_mib oom_capacity_gib oom_free_mib oom_in_use_gib "  # of a start that failed
    "total_token_throughput median_tpot_ms median_ttft_ms p99_ttft_ms acceptance_rate "  # of a cell
    "ttft_ms "  # of one request
    "layers kv_heads head_dim kv_kib_per_token kv_kib_per_token_min kv_kib_per_token_max "  # of a model's KV cache
    "kv_gib_8k kv_gib_128k kv_gib_per_sequence".split()
)
TEXTUAL = frozenset({"start_outcome"})


def load(section: int | None = None, *, folder: Path = FOLDER) -> pandas.DataFrame:
    """The figures of one section, or of all, in file order.

    Columns: `section`, `host`, `model`, `arm`, `concurrency` and `request` (integers or missing), `metric`, `value` (a
    float; missing for a textual metric) and `text` (`start_outcome`: `ok` or `failed: REASON`; otherwise missing)."""
    files = {
        int(match[1]): path
        for path in Path(folder).glob("section-*.csv")
        if (match := re.fullmatch(r"section-(\d+)", path.stem))
    }
    if not files:
        raise StoreError(
            "no reference figures",
            value=folder,
            allowed="a folder with section-N.csv",
            next="git status data/reference",
        )
    if section is not None and section not in files:
        known = ", ".join(map(str, sorted(files)))
        raise ParameterError("no reference figures for section", value=section, allowed=known, next=f"ls {folder}")
    numbers = sorted(files) if section is None else [section]
    rows = [row for number in numbers for row in _rows(files[number], number)]
    frame = pandas.DataFrame(rows, columns=[*KEY, "value", "text"])
    return frame.astype({"section": "int64", "concurrency": "Int64", "request": "Int64", "value": "float64"})


def _rows(path: Path, section: int) -> list[tuple]:
    def malformed(line: int, what: str, value: object, allowed: object) -> StoreError:
        return StoreError(f"{path.name}, line {line}: {what}", value=value, allowed=allowed, next=f"git diff {path}")

    rows, first_lines = [], {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = tuple(next(reader, ()))
            if header != HEADER:
                raise malformed(1, "wrong header", ",".join(header), ",".join(HEADER))
            for fields in reader:
                line = reader.line_num
                if len(fields) != len(HEADER):
                    raise malformed(line, "wrong number of fields", len(fields), len(HEADER))
                stated, host, model, arm, load, metric, value = fields
                if stated != str(section):
                    raise malformed(line, "a figure of another section", stated, section)
                for name, field in (("host", host), ("model", model), ("arm", arm)):
                    if not field or field != field.strip():
                        raise malformed(line, f"no usable {name}", repr(field), "a name, without spaces around it")
                match = re.fullmatch(r"(request=)?([1-9][0-9]*)|", load)
                if match is None:
                    raise malformed(line, "unknown concurrency", load, "nothing (a start), an integer, or request=N")
                number = int(match[2]) if match[2] else None
                concurrency, request = (None, number) if match[1] else (number, None)
                key = (section, host, model, arm, concurrency, request, metric)
                if key in first_lines:
                    first = f"one (the first is on line {first_lines[key]})"
                    raise malformed(line, "a second value for one key", ",".join(fields[:-1]), first)
                first_lines[key] = line
                if metric in TEXTUAL:
                    if value != "ok" and not re.fullmatch(r"failed: \S.*", value):
                        raise malformed(line, f"unknown {metric}", value, "ok, or failed: REASON")
                    rows.append((*key, math.nan, value))
                elif metric not in NUMERIC:
                    raise malformed(line, "unknown metric", metric, ", ".join(sorted(NUMERIC | TEXTUAL)))
                elif not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) or (
                    metric == "acceptance_rate" and float(value) > 1
                ):
                    allowed = (
                        "a fraction from 0 to 1"
                        if metric == "acceptance_rate"
                        else "digits with at most one decimal point"
                    )
                    raise malformed(line, f"unusable {metric}", value or "(empty)", allowed)
                else:
                    rows.append((*key, float(value), None))
        except (csv.Error, UnicodeDecodeError) as error:
            raise malformed(reader.line_num + 1, "not CSV in UTF-8", error, ",".join(HEADER)) from error
    if not rows:
        raise malformed(2, "no figures", "(empty)", "at least one row")
    return rows
