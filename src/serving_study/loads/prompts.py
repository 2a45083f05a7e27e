"""Prompts of exact lengths that share their beginnings, made for a load with the model's tokenizer.

`SharedPrefix` is one beginning that a share of the requests have in common; `WorkingSet` is as many beginnings as make
a multiple of the server's KV cache, each asked for again in the same order. Both reach `vllm bench serve` as its
`custom` data set, unshuffled. What can mislead: every cell draws new words (from seed, repeat and lengths), so nothing
of an earlier cell is in the cache; prefixes differ at their very front, since blocks are matched from the front.

    >>> from serving_study.loads.prompts import SharedPrefix
    >>> SharedPrefix(3001, 20, sequence=True).label
    'sequence,prefix=3001'
"""

import functools
import json
import os
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from .. import files, paths
from ..errors import DatasetError
from ..models import pages

# After a space each is one token in most vocabularies; words that are not are left out.
WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will no more if out so "
    "said what up its about than into them can only other time new some could these two may first then do "
    "any like my now over such our man me even most made after also did many before must through back years "
    "where much your way well down should because each just those people how too little state good very "
    "make world still own see men work long here get both between life being under never day same another know "
    "while last might us off come since against go came right used take three"
).split()
WORDS_WANTED = 32
VERSION = 1  # of how prompts are made from a seed; another version makes other prompts, hence other results


class Exact:
    """What both kinds share: prompts of `shared` tokens and `own` tokens that no other prompt has."""

    length_option: ClassVar[str] = "--custom-output-len"
    sequence: ClassVar[bool] = False  # one request at a time, with each request's own counters

    @property
    def tokens(self) -> int:
        """Tokens of each prompt."""
        return self.shared + self.own

    @property
    def name(self) -> str:
        return f"made: {self.label}"

    @property
    def sha256(self) -> str:
        """The digest of what the prompts are made from; the words also depend on each cell's seed."""
        return files.key(
            {"kind": type(self).__name__, "version": VERSION, "words": WORDS}
            | {name: value for name, value in asdict(self).items() if value is not None and name != "about_tokens"}
        )

    def identity(self) -> dict:
        return {"name": self.name, "sha256": self.sha256}

    def reads(self, load) -> int:
        """Prompt tokens of the load, about."""
        return load.prompts * self.tokens

    def sized(self, load, start: dict):
        """The load once the server's start has settled its size."""
        return load

    def primers(self, load, tokenizer: str, repeat: int) -> list[str]:
        """Prompts that are sent before the load and not counted."""
        return []

    def arguments(self, load, tokenizer: str, repeat: int) -> list[str]:
        """`vllm bench serve`'s options for the data set, whose file this writes."""
        return with_lengths(self.texts(load, tokenizer, repeat), [load.output_tokens] * load.prompts)

    def texts(self, load, tokenizer: str, repeat: int) -> list[str]:
        """The prompts in the order of sending. Raises DatasetError when the tokenizer cannot make the lengths."""
        return exact(
            Path(tokenizer),
            self.order(load, repeat),
            self.shared,
            self.own,
            f"{load.seed_of(repeat)}/{self.label}/{VERSION}",
        )

    def reused(self, block_tokens: int) -> int:
        """Tokens of a prompt that a cache can give once its prefix is in it."""
        return pages.cached_tokens(self.shared, self.tokens, block_tokens)

    def evidence(self, load, block_tokens: int | None, capacity_tokens: int | None) -> dict:
        """What a certificate compares the server's counters with; `expected_tokens` are the hits of a cache that keeps
        everything.
        """
        settings = {
            "kind": type(self).__name__,
            "prefix_tokens": self.shared,
            "own_tokens": self.own,
            "prompt_tokens": self.tokens,
            "block_tokens": block_tokens,
            "capacity_tokens": capacity_tokens,
        }
        repeated = self.repeated(load)
        return settings | {
            "expected_requests": repeated,
            "expected_tokens": repeated * self.reused(block_tokens) if block_tokens else None,
        }


@dataclass(frozen=True)
class SharedPrefix(Exact):
    """A share of the requests begin with the same prefix, the others each with their own.

    With `sequence` they come one by one and the first is cold; without, the prefix is sent once beforehand, so the hit
    rate is the share."""

    shared: int
    own: int
    share: float = 1.0
    sequence: bool = False

    @property
    def label(self) -> str:
        return f"sequence,prefix={self.shared}" if self.sequence else f"prefix={self.shared},share={self.share:g}"

    def sharing(self, load, repeat: int) -> list[bool]:
        """For each request whether it begins with the shared prefix: exactly the share, in a drawn order."""
        count = round(self.share * load.prompts)
        chosen = set(random.Random(f"{load.seed_of(repeat)}/{self.label}/sharing").sample(range(load.prompts), count))
        return [index in chosen for index in range(load.prompts)]

    def order(self, load, repeat: int) -> list[tuple[int, int]]:
        return [(0 if shares else index + 1, index) for index, shares in enumerate(self.sharing(load, repeat))]

    def primers(self, load, tokenizer: str, repeat: int) -> list[str]:
        if self.sequence or not self.repeated(load):
            return []
        return exact(
            Path(tokenizer), [(0, -1)], self.shared, self.own, f"{load.seed_of(repeat)}/{self.label}/{VERSION}"
        )

    def repeated(self, load) -> int:
        """The number of requests whose prefix was there before."""
        count = round(self.share * load.prompts)
        return max(0, count - 1) if self.sequence else count

    def evidence(self, load, block_tokens, capacity_tokens) -> dict:
        return super().evidence(load, block_tokens, capacity_tokens) | {"share": self.share, "sequence": self.sequence}


@dataclass(frozen=True)
class WorkingSet(Exact):
    """As many prefixes as fill `times` the server's KV cache, each asked for `rounds` times in the same order. The
    server's start settles their number (`sized`); until then it is 1.
    """

    shared: int
    own: int
    times: float
    rounds: int = 2
    prefixes: int | None = None
    about_tokens: int = 0  # of the cache, for estimates alone

    sequence: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"working-set={self.times:g},prefix={self.shared}"

    def reads(self, load) -> int:
        return int(self.rounds * self.times * self.about_tokens) if self.prefixes is None else super().reads(load)

    def sized(self, load, start: dict):
        """Raises DatasetError when the server's log has no size of its cache."""
        capacity = start.get("kv_cache_tokens")
        if not capacity:
            raise DatasetError(
                "the working set cannot be sized",
                value="the start's log has no KV cache size",
                allowed="a server whose log has one",
            )
        prefixes = max(1, round(self.times * capacity / self.shared))
        return replace(load, prompts=prefixes * self.rounds, dataset=replace(self, prefixes=prefixes))

    def order(self, load, repeat: int) -> list[tuple[int, int]]:
        prefixes = self.prefixes or max(1, load.prompts // self.rounds)
        return [(index % prefixes, index) for index in range(load.prompts)]

    def repeated(self, load) -> int:
        return load.prompts - (self.prefixes or 1)

    def evidence(self, load, block_tokens, capacity_tokens) -> dict:
        """`working_set_tokens` are in whole blocks: what would have to stay in the cache."""
        kept = self.reused(block_tokens) if block_tokens else self.shared
        return super().evidence(load, block_tokens, capacity_tokens) | {
            "times": self.times,
            "rounds": self.rounds,
            "prefixes": self.prefixes,
            "working_set_tokens": (self.prefixes or 1) * kept,
        }


def exact(folder: Path, order: list[tuple[int, int]], shared: int, own: int, seed: str) -> list[str]:
    """One prompt a pair (prefix, question) in `order`, of exactly `shared` and `own` tokens.

    Raises DatasetError when a text does not come to its length in this tokenizer."""
    tokenizer, words = _tokenizer(folder)
    fixed = len(tokenizer.encode("").ids)  # what it puts before every text
    mark = random.Random(seed).getrandbits(24)
    prefixes = {}
    for prefix, _ in order:
        if prefix not in prefixes:
            head = f"[{mark:06x} {prefix:05d}]"
            left = shared - fixed - _count(tokenizer, head)
            if left < 0:
                raise DatasetError(
                    "the prefix is too short",
                    value=f"{shared} tokens",
                    allowed=f"{shared - left} tokens or more, which its mark {head} takes",
                )
            prefixes[prefix] = head + _drawn(f"{seed}/prefix/{prefix}", words, left)
    texts = [prefixes[prefix] + _drawn(f"{seed}/own/{question}", words, own) for prefix, question in order]
    for text, wanted in [(next(iter(prefixes.values())), shared), *((text, shared + own) for text in texts)]:
        if (length := len(tokenizer.encode(text).ids)) != wanted:
            raise DatasetError(
                "a prompt has not the length asked for",
                value=f"{length} tokens for {wanted}, {text[:60]!r}",
                allowed="a tokenizer that splits at spaces",
                next=f"ls {folder}",
            )
    return texts


def with_lengths(texts: list[str], lengths: list[int], *, chat: bool = False) -> list[str]:
    """`vllm bench serve`'s options for these prompts with answers of these lengths, in this order; writes their
    file. With `chat` each is put into the model's chat template.
    """
    file = _file()
    rows = zip(texts, lengths, strict=True)
    files.write(file, "\n".join(json.dumps({"prompt": text, "output_tokens": length}) for text, length in rows))
    options = [*(() if chat else ("--skip-chat-template",)), "--disable-shuffle", "--no-oversample"]
    return ["--dataset-name", "custom", "--dataset-path", str(file), *options]


def tokens_of(text: str, folder: Path) -> int:
    """Tokens of a text in the tokenizer of a model's folder."""
    return len(_tokenizer(folder)[0].encode(text).ids)


def forget() -> None:
    """Remove this process's last prompts file; its seed can make it again."""
    _file().unlink(missing_ok=True)


def _file() -> Path:
    return paths.CACHE / "prompts" / f"{os.getpid()}.jsonl"


def _drawn(seed: str, words: tuple[str, ...], count: int) -> str:
    return "".join(f" {word}" for word in random.Random(seed).choices(words, k=count))


def _count(tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@functools.lru_cache(maxsize=4)
def _tokenizer(folder: Path):
    """The tokenizer of a model's folder, and the words that are one token in it."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise DatasetError(
            "prompts of an exact length need the model's tokenizer",
            value=file,
            allowed="a model's folder with tokenizer.json",
            next=f"ls {folder}",
        )
    tokenizer = Tokenizer.from_file(str(file))
    one = _count(tokenizer, "]")
    words = tuple(
        word
        for word in WORDS
        if _count(tokenizer, f"] {word}") == one + 1 and _count(tokenizer, f"] {word} {word}") == one + 2
    )
    if len(words) < WORDS_WANTED:
        raise DatasetError(
            "this vocabulary has too few of the words",
            value=f"{len(words)} of {len(WORDS)} are one token",
            allowed=f"{WORDS_WANTED} or more",
            next=f"ls {folder}",
        )
    return tokenizer, words
