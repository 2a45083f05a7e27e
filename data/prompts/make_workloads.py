#!/usr/bin/env python3
"""Compose the workloads: sets of prompts that differ in how much of an answer stands in its prompt.

    python3 data/prompts/make_workloads.py            # write workloads/*.json, and statistics and digests into workloads/README.md
    python3 data/prompts/make_workloads.py --check    # exit with 1 if a file is not what this script makes

`chat` has answers that stand nowhere; `retrieval` has sentences of the prompt in its answers, `quoted-summaries` whole
passages of them, and `code-edits` is a copy with a change. Answers are what a careful reader would give; `vllm bench
serve` sends the first turn alone. Byte-identical on any Python from 3.11 on, since nothing but the order is drawn.
"""
# ruff: noqa: E501  (templates of prose, one a line)

import argparse
import hashlib
import json
import re
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
OUT = FOLDER / "workloads"
BANK = runpy.run_path(str(FOLDER / "workload_bank.py"))
CHAT, CODE, DOCUMENTS = BANK["CHAT"], BANK["CODE"], BANK["DOCUMENTS"]
TOOLS = runpy.run_path(str(FOLDER / "make_prompts.py"))
Dice, fenced, markdown_table, quantile = (TOOLS[name] for name in ("Dice", "fenced", "markdown_table", "quantile"))
SEED = 20261203
BEGIN, END = "<!-- statistics: written by make_workloads.py -->", "<!-- end of statistics -->"
COUNT = 48  # prompts of each workload


def chat():
    yield from CHAT


def code_edits():
    """Each piece of code with four requests; the answer is the code with the edit made."""
    for piece in CODE:
        code, (name, new), (old, line, request) = piece["code"], piece["rename"], piece["replace"]
        renamed = re.sub(rf"\b{re.escape(name)}\b", new, code)
        replaced = code.replace(old, line)
        commented = comment(piece["language"], piece["docstring"]) + "\n" + code
        edits = [
            (f"Rename `{name}` to `{new}` everywhere in this code.", renamed),
            (f"{request}.", replaced),
            (f"Put a comment at the top that says: {piece['docstring']}", commented),
            (f"{request}, and rename `{name}` to `{new}`.", re.sub(rf"\b{re.escape(name)}\b", new, replaced)),
        ]
        for edit, answer in edits:
            block = fenced(piece["language"], code)
            yield (
                f"{edit} Return the whole code with the change, and leave everything else as it is.\n\n{block}",
                fenced(piece["language"], answer),
            )


def comment(language, text):
    marks = {"python": "# {}", "bash": "# {}", "sql": "-- {}", "css": "/* {} */"}
    return marks.get(language, "// {}").format(text)


def quoted_summaries():
    """Each document with four requests to quote from it."""
    for document in DOCUMENTS:
        sentences = document["sentences"]
        text = f"{document['name']}\n\n{' '.join(sentences)}"
        requests = [
            (
                "Summarise the text below by quoting its four most important sentences word for word, one a line.",
                [0, 2, 4, 6],
            ),
            (
                "Make a list of the main points of this text. Use the original sentences in quotation marks.",
                [0, 1, 3, 5, 7],
            ),
            (
                "Shorten this text to about half its length. Keep the original wording of the sentences that you keep.",
                [0, 1, 2, 5],
            ),
            (
                "Write an extract of this text for a notice board: copy the sentences that a reader must know, exactly.",
                [0, 3, 5, 6],
            ),
        ]
        for request, kept in requests:
            yield f"{request}\n\n{text}", "\n".join(f'"{sentences[place]}"' for place in kept)


def retrieval(dice):
    """Each question with its document's passage among two of others; the answer quotes the sentences that hold it."""
    for document in DOCUMENTS:
        for question, places in document["questions"]:
            others = dice.sample([other for other in DOCUMENTS if other is not document], 2)
            passages = dice.sample([document, *others], 3)
            numbered = [
                f"[{number}] {other['name']}: {' '.join(_around(other['sentences'], places if other is document else [3]))}"
                for number, other in enumerate(passages, 1)
            ]
            number = passages.index(document) + 1
            sentences = " ".join(document["sentences"][place] for place in places)
            yield (
                "Answer the question from the passages below. First quote the sentences of the passage that you rely on "
                "word for word, with its number, and then explain the answer in your own words.\n\n"
                f"{chr(10).join(numbered)}\n\nQuestion: {question}",
                f'[{number}] says: "{sentences}"',
            )


def _around(sentences, places):
    """The sentences at `places` with two before and two behind each."""
    kept = {place + step for place in places for step in (-2, -1, 0, 1, 2)}
    return [sentence for place, sentence in enumerate(sentences) if place in kept]


def compose():
    """Workload to its conversations in their final order."""
    dice = Dice(SEED)
    pairs = {
        "chat": list(chat()),
        "code-edits": list(code_edits()),
        "quoted-summaries": list(quoted_summaries()),
        "retrieval": list(retrieval(dice)),
    }
    return {
        name: [
            {
                "id": f"{name}-{number:02d}",
                "conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}],
            }
            for number, (prompt, answer) in enumerate(dice.sample(turns, COUNT))
        ]
        for name, turns in pairs.items()
    }


def render(conversations):
    """The bytes of a workload's file: one conversation a line."""
    return ("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in conversations) + "\n]\n").encode()


def copied(prompt, answer, words=4):
    """The share of an answer's runs of so many words that stand in its prompt."""
    split = lambda text: re.findall(r"\w+|[^\w\s]", text)  # noqa: E731
    runs = lambda text: list(zip(*(split(text)[start:] for start in range(words)), strict=False))  # noqa: E731
    there = set(runs(prompt))
    made = runs(answer)
    return sum(run in there for run in made) / len(made) if made else 0.0


def statistics(contents):
    """The generated part of README.md, from the bytes of the files."""
    rows, digests = [], []
    for name, content in contents.items():
        turns = [[turn["value"] for turn in row["conversations"]] for row in json.loads(content)]
        words = [[len(text.split()) for text in side] for side in zip(*turns, strict=True)]
        shares = [copied(*pair) for pair in turns]
        rows.append(
            (
                f"`{name}`",
                len(turns),
                *(f"{quantile(side, 0.5)} ({min(side)}–{max(side)})" for side in words),
                f"{sum(shares) / len(shares):.0%}",
            )
        )
        digests.append(f"- `{name}.json`: `{hashlib.sha256(content).hexdigest()}`")
    header = ["workload", "prompts", "words of a prompt", "words of its answer", "of the answer stands in the prompt"]
    return "\n".join([BEGIN, "", markdown_table(header, rows), "", "sha256:", "", *digests, "", END])


def check(folder):
    """What is wrong with the files in `folder`, one message each."""
    contents = {name: render(rows) for name, rows in compose().items()}
    problems = []
    for name, content in contents.items():
        file = folder / f"{name}.json"
        if not file.is_file():
            problems.append(f"missing: {file}")
        elif file.read_bytes() != content:
            problems.append(f"differs from what make_workloads.py makes: {file}")
    readme = folder / "README.md"
    if not readme.is_file() or statistics(contents) not in readme.read_text(encoding="utf-8"):
        problems.append(f"stale statistics: {readme}")
    return problems


def write(folder):
    contents, readme = {name: render(rows) for name, rows in compose().items()}, folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, content in contents.items():
        (folder / f"{name}.json").write_bytes(content)
    readme.write_text(text.split(BEGIN)[0] + statistics(contents) + text.split(END)[1], encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    parser.add_argument("--folder", type=Path, default=OUT, help="where the files lie")
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.folder)
        return 0
    problems = check(options.folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("  next:    python3 data/prompts/make_workloads.py", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
