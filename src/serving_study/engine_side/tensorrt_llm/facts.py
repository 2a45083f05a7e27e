"""Prints, as one JSON line, whether TensorRT-LLM's server can be imported here, and what this version accepts.

    python tensorrt_llm/facts.py

`import_failures` maps a module to its error; `accepted` has sorted `options`, those of the command line and of the file
beside it, and in `errors` what could not be read."""

import importlib
import json
import os
import sys

IMPORTS = ("torch", "transformers", "tensorrt_llm", "tensorrt_llm.commands.serve")


def failures() -> dict:
    """Module to error, for each import that a server needs and that fails."""
    failed = {}
    for module in IMPORTS:
        try:
            importlib.import_module(module)
        except BaseException as error:  # a missing library is an OSError, a refused platform a SystemExit
            failed[module] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return failed


def _options() -> set:
    serve = importlib.import_module("tensorrt_llm.commands.serve").serve
    arguments = importlib.import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs
    return {parameter.name for parameter in serve.params} | set(arguments.model_fields)


def main() -> None:
    said, sys.stdout = sys.stdout, sys.stderr  # imports print
    report: dict = {"import_failures": failures(), "accepted": {"errors": {}}}
    try:
        report["accepted"]["options"] = sorted(_options())
    except Exception as error:
        report["accepted"]["errors"]["options"] = f"{type(error).__name__}: {error}"
    print(json.dumps(report), file=said)
    said.flush()
    os._exit(0)  # threads of what was imported do not end by themselves


if __name__ == "__main__":
    main()
