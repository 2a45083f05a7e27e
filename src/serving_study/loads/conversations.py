"""Files of conversations in ShareGPT's format, as a JSON list or JSON Lines: read, checked row by row, and converted.

The load generator sends the first turn's `value` as the prompt and takes the answer's length from the second's, so both
must be text; anything else would end its process in the middle of a run. What can mislead: rows of fewer than two turns
are left out by the load generator, and are no fault.

    $ .venv/harness/bin/python -m serving_study.loads.conversations messages.jsonl sharegpt.json
"""

import json
import sys
from pathlib import Path

from ..errors import DatasetError, StudyError

FORMAT = 'a JSON list, or JSON Lines, of {"id": …, "conversations": [{"from": "human", "value": …}, …]}'
PROMPT_ROLES = ("user", "human")
ANSWER_ROLES = ("assistant", "gpt", "chatgpt", "bard", "bing", "model")


def read(content: bytes, path: Path) -> tuple[list, bool]:
    """The rows of a file, and whether it is a JSON list, which the load generator reads as it is.

    Raises DatasetError for what is neither a list nor JSON Lines."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(path, f"not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        return _lines(text, error, path), False
    if isinstance(rows, list):
        return rows, not content.startswith(b"\xef\xbb\xbf")
    if not isinstance(rows, dict) or not {"conversations", "messages"} & set(rows):
        raise _refused(path, f"{_kind(rows)} instead of a list of conversations")
    return [rows], False


def usable(rows: list, path: Path) -> int:
    """The number of conversations with two turns. Raises DatasetError, naming the row, for one that cannot be sent."""
    return sum(_turns(row, f"row {number}", path) >= 2 for number, row in enumerate(rows, 1))


def convert(rows: list) -> list[dict]:
    """Rows of `messages` or of `role`/`content` turns in ShareGPT's format, from the first question on.

    Rows already in that format stay. A turn without text ends its conversation; one without question and answer is left
    out."""
    conversations = []
    for number, row in enumerate(rows, 1):
        turns = row.get("conversations", row.get("messages")) if isinstance(row, dict) else row
        pairs = [_pair(turn) for turn in turns] if isinstance(turns, list) else []
        first = next((place for place, (who, text) in enumerate(pairs) if who == "human" and text), len(pairs))
        kept = pairs[first:]
        kept = kept[: next((place for place, (who, text) in enumerate(kept) if not who or not text), len(kept))]
        if len(kept) >= 2:
            name = str(row.get("id", number)) if isinstance(row, dict) else str(number)
            conversations.append({"id": name, "conversations": [{"from": who, "value": text} for who, text in kept]})
    return conversations


def _lines(text: str, whole: json.JSONDecodeError, path: Path) -> list:
    """The rows of JSON Lines; `whole` is the error of reading the text as one JSON value."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a text may contain other line ends
        try:
            rows += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            why = f"line {number}: {error.msg}" if rows else f"no JSON: {whole}"
            raise _refused(path, why) from None
    return rows


def _turns(row, where: str, path: Path) -> int:
    """The number of turns of a row. Raises DatasetError for a row that is not in ShareGPT's format."""
    if not isinstance(row, dict):
        raise _refused(path, f"{where} is no object but {_kind(row)}")
    if "conversations" not in row:
        said = 'has "messages"' if "messages" in row else f"has {', '.join(map(repr, list(row)[:4])) or 'nothing'}"
        raise _refused(path, f'{where} {said} instead of "conversations"', convertible="messages" in row)
    turns = row["conversations"]
    if not isinstance(turns, list):
        raise _refused(path, f'"conversations" of {where} is no list but {_kind(turns)}')
    for number, turn in enumerate(turns[:2] if len(turns) >= 2 else (), 1):
        if not isinstance(turn, dict):
            raise _refused(path, f"turn {number} of {where} is no object but {_kind(turn)}")
        if "value" not in turn:
            said = 'has "role" and "content"' if "content" in turn else f"has {', '.join(map(repr, turn)) or 'nothing'}"
            raise _refused(
                path, f'turn {number} of {where} {said} instead of "from" and "value"', convertible="content" in turn
            )
        if not isinstance(turn["value"], str):
            raise _refused(
                path,
                f'"value" of turn {number} of {where} is no text but {_kind(turn["value"])}',
                convertible=turn["value"] is None or isinstance(turn["value"], list),
            )
    return len(turns)


def _pair(turn) -> tuple[str | None, str | None]:
    """(ShareGPT's name of the speaker, text) of a turn; None for one that is neither question nor answer, or has no
    text.
    """
    if not isinstance(turn, dict):
        return None, None
    role = turn.get("from", turn.get("role"))
    text = turn.get("value", turn.get("content"))
    if isinstance(text, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in text]
        text = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    who = "human" if role in PROMPT_ROLES else "gpt" if role in ANSWER_ROLES else None
    return who, text if isinstance(text, str) else None


def _kind(value) -> str:
    names = {type(None): "null", str: "text", bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


def _refused(path: Path, why: str, *, convertible: bool = False) -> DatasetError:
    to = path.with_name(f"{path.stem}-sharegpt.json")
    return DatasetError(
        "not in ShareGPT's format",
        value=f"{path}: {why}",
        allowed=FORMAT,
        next=f".venv/harness/bin/python -m serving_study.loads.conversations {path} {to}" if convertible else None,
    )


def main(arguments: list[str]) -> None:
    """Convert the first file into the second."""
    if len(arguments) != 2:
        raise DatasetError("two files are wanted", value=" ".join(arguments) or "none", allowed="FILE NEW_FILE")
    source, out = map(Path, arguments)
    try:
        rows, _ = read(source.read_bytes(), source)
        kept = convert(rows)
        out.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DatasetError("it cannot be converted", value=f"{error.filename}: {error.strerror}") from None
    print(f"{out}: {len(kept)} of {len(rows)} conversations")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except StudyError as error:
        sys.exit(f"error: {error}")
