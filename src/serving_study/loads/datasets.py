"""The prompts of a load, always a local file with a known digest.

`own` is the set under `data/prompts/`; `sharegpt` is ShareGPT from the hub, pinned by revision and digest and cut once
to its first usable conversations (the load generator would read 640 MB for every cell); anything else is a path to a
file in ShareGPT's format (`conversations`). The book's own replace ShareGPT only where `auto` was asked for and the hub
is out of reach; any other failure is an error.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from .. import files, paths
from ..environments import Environment
from ..errors import DatasetError
from ..models import hub
from . import conversations, prompts

OWN = paths.DATA / "prompts" / "conversations.json"
SHAREGPT_REPOSITORY = "anon8231489123/ShareGPT_Vicuna_unfiltered"
SHAREGPT_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
SHAREGPT_REVISION = "192ab2185289094fc556ec8ce5ce1e8e587154ca"
SHAREGPT_SHA256 = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"
SHAREGPT_KEPT = 20_000
SHORTEST, LONGEST = 4, 1024  # tokens of a prompt that `vllm bench serve` takes from such a set


@dataclass(frozen=True)
class Dataset:
    """A file in ShareGPT's format, and its digest; `in_place_because` is why it stands in for another."""

    name: str
    path: Path
    sha256: str
    conversations: int
    in_place_because: str | None = None

    length_option: ClassVar[str] = "--sharegpt-output-len"
    label: ClassVar[str] = ""
    sequence: ClassVar[bool] = False

    def identity(self) -> dict:
        return {"name": self.name, "sha256": self.sha256}

    def arguments(self, load, tokenizer: str, repeat: int) -> list[str]:
        """`vllm bench serve`'s options for the data set; lengths of answers that are spread are written to a file with
        the prompts that are drawn for them.
        """
        if not load.output_spread:
            return ["--dataset-name", "sharegpt", "--dataset-path", str(self.path)]
        return prompts.with_lengths(self.drawn(load, tokenizer, repeat), load.lengths(repeat))

    def drawn(self, load, tokenizer: str, repeat: int) -> list[str]:
        """First turns in an order drawn for the cell, of the lengths that the load generator takes of such a set."""
        rows = conversations.read(self.path.read_bytes(), self.path)[0]
        order = random.Random(load.seed_of(repeat))
        order.shuffle(rows)
        texts = (row["conversations"][0]["value"] for row in rows if len(row["conversations"]) >= 2)
        fitting = (text for text in texts if SHORTEST <= prompts.tokens_of(text, Path(tokenizer)) <= LONGEST)
        fitting = list(itertools.islice(fitting, load.prompts))
        if not fitting:
            raise DatasetError(
                "no prompt of a usable length",
                value=self.path,
                allowed=f"{SHORTEST} to {LONGEST} tokens in the first turn",
                next="another dataset, or output_spread = 0, which leaves the choice to the load generator",
            )
        return [fitting[place % len(fitting)] for place in range(load.prompts)]

    def reads(self, load) -> int:
        """Prompt tokens of the load, for estimates: 0, since a data set's prompts are short."""
        return 0

    def sized(self, load, start: dict):
        """The load once the server's start has settled its size (for `prompts`)."""
        return load

    def primers(self, load, tokenizer: str, repeat: int) -> list[str]:
        """Prompts that are sent before the load and not counted."""
        return []

    def evidence(self, load, block_tokens: int | None, capacity_tokens: int | None) -> dict | None:
        """What the server's cache should give; None where every prompt is new."""
        return None


def resolve(name: str, *, environment: Environment | None = None, say: Callable[[str], None] = print) -> Dataset:
    """The dataset `name`: `own`, `sharegpt`, `auto` (sharegpt where the hub answers, else own), or a file's path.

    Raises DatasetError for a missing or malformed file, and for a digest other than the pinned one.
    """
    if name == "own":
        return load(OWN, "own")
    if name in ("sharegpt", "auto"):
        return _sharegpt(environment, name == "auto", say)
    return load(Path(name).expanduser(), Path(name).name)


def load(path: Path, name: str) -> Dataset:
    """Read and check a file in ShareGPT's format. JSON Lines are rewritten as the list that the load generator reads;
    the digest stays that of the given file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            "no such dataset",
            value=path if isinstance(error, FileNotFoundError) else f"{path} ({error.strerror})",
            allowed="own, sharegpt, auto, or a file in ShareGPT's format",
            next=f"ls {path.parent}",
        ) from None
    rows, as_list = conversations.read(content, path)
    if not conversations.usable(rows, path):
        raise DatasetError("no conversation with two turns", value=path, allowed="at least one")
    digest = hashlib.sha256(content).hexdigest()
    if not as_list:
        path = paths.CACHE / "datasets" / f"{path.stem}-{digest[:12]}.json"
        if not path.is_file():
            _written(path, rows)
    return Dataset(name, path, digest, len(rows))


def check_digest(path: Path, expected: str) -> None:
    """Raises DatasetError when the file's digest is not `expected`; the file stays."""
    digest = files.digest(path)
    if digest != expected:
        raise DatasetError(
            f"{path.name} is not the pinned file",
            value=f"sha256 {digest}",
            allowed=expected,
            next=f"rm {path}, then the same command again",
        )


def cut(source: Path, out: Path, keep: int = SHAREGPT_KEPT) -> Path:
    """The first `keep` conversations with two turns, in file order."""
    rows = [row for row in json.loads(source.read_bytes()) if len(row["conversations"]) >= 2][:keep]
    return _written(out, rows)


def _written(out: Path, rows: list) -> Path:
    """Write these rows to `out`. Raises DatasetError when the disk refuses them."""
    try:
        with files.whole(out) as temporary:
            temporary.write_text(json.dumps(rows))
    except OSError as error:
        raise DatasetError(
            "prompts could not be kept",
            value=f"{out}: {error.strerror}",
            allowed="a writable folder with free space",
            next=f"df -h {paths.CACHE}",
        ) from None
    return out


def _sharegpt(environment: Environment | None, auto: bool, say: Callable[[str], None]) -> Dataset:
    """ShareGPT from the cache or the hub; with `auto` and the hub out of reach, the book's own prompts."""
    out = paths.CACHE / "datasets" / f"sharegpt-{SHAREGPT_REVISION[:12]}-first-{SHAREGPT_KEPT}.json"
    if out.is_file():
        return load(out, "sharegpt")
    if environment is None:
        fetched = hub.Fetched(None, "nothing is fetched for a plan", out_of_reach=True)
    else:
        fetched = hub.fetch(
            environment,
            SHAREGPT_REPOSITORY,
            kind="dataset",
            revision=SHAREGPT_REVISION,
            file=SHAREGPT_FILE,
            deadline_s=hub.FILE_S,
            say=say,
        )
    if fetched.path:
        say("ShareGPT fetched; checking its digest and cutting it (once)")
        check_digest(fetched.path, SHAREGPT_SHA256)
        return load(cut(fetched.path, out), "sharegpt")
    if auto and fetched.out_of_reach:
        say(f"no hub within reach ({fetched.reason}): the book's own prompts take ShareGPT's place")
        return replace(load(OWN, "own"), in_place_because=fetched.reason)
    raise DatasetError(
        "ShareGPT could not be fetched",
        value=f"{SHAREGPT_REPOSITORY} ({fetched.reason})",
        allowed="own, auto where the hub is out of reach, or a file in ShareGPT's format",
        next="mend that, then the same command again; or set dataset = 'own'",
    )
