"""The prompts that a load is made of, always as a local file with a known digest.

`own` is the set under `data/prompts/`; `sharegpt` is ShareGPT from the hub, pinned by revision and digest, cut once to
its first usable conversations so that the load generator does not read 640 MB for every cell; anything else is a path
to a file in ShareGPT's format."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import paths
from .environments import Environment
from .errors import DatasetError

OWN = paths.DATA / "prompts" / "conversations.json"
SHAREGPT_REPOSITORY = "anon8231489123/ShareGPT_Vicuna_unfiltered"
SHAREGPT_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
SHAREGPT_REVISION = "192ab2185289094fc556ec8ce5ce1e8e587154ca"
SHAREGPT_SHA256 = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"
SHAREGPT_KEPT = 20_000


@dataclass(frozen=True)
class Dataset:
    """A file in ShareGPT's format, and the digest of its bytes."""

    name: str
    path: Path
    sha256: str
    conversations: int

    length_option: ClassVar[str] = "--sharegpt-output-len"
    label: ClassVar[str] = ""
    sequence: ClassVar[bool] = False

    def identity(self) -> dict:
        return {"name": self.name, "sha256": self.sha256}

    def arguments(self, load, tokenizer: str, repeat: int) -> list[str]:
        """`vllm bench serve`'s options for the data set."""
        return ["--dataset-name", "sharegpt", "--dataset-path", str(self.path)]

    def reads(self, load) -> int:
        """Prompt tokens of the whole load that an estimate has to reckon with: a data set's prompts are short."""
        return 0

    def sized(self, load, start: dict):
        """The load as a server's start settles it (`prompts` has loads that depend on it)."""
        return load

    def primers(self, load, tokenizer: str, repeat: int) -> list[str]:
        """Prompts to be sent, and not counted, before the load."""
        return []

    def evidence(self, load, block_tokens: int | None, capacity_tokens: int | None) -> dict | None:
        """What is expected of the server's cache; None where every prompt is new."""
        return None


def resolve(name: str, *, environment: Environment | None = None, say: Callable[[str], None] = print) -> Dataset:
    """The dataset `name`: `own`, `sharegpt`, `auto` (sharegpt where the hub answers, else own), or a file's path.

    Raises DatasetError for a missing or malformed file, and for a digest other than the pinned one.
    """
    if name == "own":
        return load(OWN, "own")
    if name in ("sharegpt", "auto"):
        path = _sharegpt(environment, say)
        if path:
            return load(path, "sharegpt")
        if name == "auto":
            say("no hub within reach: the book's own prompts take ShareGPT's place")
            return load(OWN, "own")
        raise DatasetError(
            "ShareGPT could not be fetched",
            value=SHAREGPT_REPOSITORY,
            allowed="own, auto, or a file in ShareGPT's format",
            next="check the network, or set dataset = 'own'",
        )
    return load(Path(name).expanduser(), Path(name).name)


def load(path: Path, name: str) -> Dataset:
    """Read and check a file in ShareGPT's format."""
    try:
        content = path.read_bytes()
        rows = json.loads(content)
        usable = sum(len(row["conversations"]) >= 2 for row in rows)
    except OSError as error:
        raise DatasetError(
            "no such dataset",
            value=path if isinstance(error, FileNotFoundError) else f"{path} ({error.strerror})",
            allowed="own, sharegpt, auto, or a file in ShareGPT's format",
            next=f"ls {path.parent}",
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise DatasetError(
            "not in ShareGPT's format",
            value=f"{path} ({type(error).__name__}: {error})",
            allowed='a JSON list of {"id": …, "conversations": [{"from": "human", "value": …}, …]}',
        ) from None
    if not usable:
        raise DatasetError("no conversation with two turns", value=path, allowed="at least one")
    return Dataset(name, path, hashlib.sha256(content).hexdigest(), len(rows))


def check_digest(path: Path, expected: str) -> None:
    """Raises DatasetError, and leaves the file alone, when its digest is not `expected`."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise DatasetError(
            f"{path.name} is not the pinned file",
            value=f"sha256 {found}",
            allowed=expected,
            next=f"rm {path}, then the same command again",
        )


def cut(source: Path, out: Path, keep: int = SHAREGPT_KEPT) -> Path:
    """The first `keep` conversations that have two turns, in file order."""
    rows = [row for row in json.loads(source.read_bytes()) if len(row["conversations"]) >= 2][:keep]
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(rows))
    temporary.rename(out)
    return out


def _sharegpt(environment: Environment | None, say) -> Path | None:
    out = paths.CACHE / "datasets" / f"sharegpt-{SHAREGPT_REVISION[:12]}-first-{SHAREGPT_KEPT}.json"
    if out.is_file():
        return out
    if environment is None or os.environ.get("HF_HUB_OFFLINE") == "1":
        return None
    code = (
        f"from huggingface_hub import hf_hub_download; print(hf_hub_download({SHAREGPT_REPOSITORY!r}, "
        f"{SHAREGPT_FILE!r}, repo_type='dataset', revision={SHAREGPT_REVISION!r}))"
    )
    run = subprocess.run(
        [environment.python, "-c", code], capture_output=True, text=True, env={**os.environ, "HF_HUB_ETAG_TIMEOUT": "5"}
    )
    if run.returncode != 0:
        return None
    say("ShareGPT fetched; checking its digest and cutting it (once)")
    source = Path(run.stdout.strip().splitlines()[-1])
    check_digest(source, SHAREGPT_SHA256)
    out.parent.mkdir(parents=True, exist_ok=True)
    return cut(source, out)
