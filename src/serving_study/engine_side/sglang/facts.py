"""Prints, as one JSON line, whether SGLang's server can be imported here, and what this version accepts.

    python sglang/facts.py

`import_failures` maps a module to its error; `accepted` has sorted `flags`, speculative `algorithms` and `variables`,
and in `errors` what could not be read. What can mislead: its kernels load a library of their own for the GPU that is
there, so that an import that succeeds on one host may fail on another."""

import argparse
import importlib
import json
import os
import sys

IMPORTS = ("torch", "transformers", "sgl_kernel", "sglang.srt.server_args", "sglang.srt.entrypoints.http_server")


def failures() -> dict:
    """Module to error, for each import that a server needs and that fails."""
    failed = {}
    for module in IMPORTS:
        try:
            importlib.import_module(module)
        except BaseException as error:  # a missing library is an OSError, a refused platform a SystemExit
            failed[module] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return failed


def _flags() -> list:
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def _algorithms() -> list:
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    action = next(action for action in parser._actions if "--speculative-algorithm" in action.option_strings)
    if action.choices:
        return list(action.choices)
    return [kind.name for kind in importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm]


def _variables() -> list:
    return [name for name in dir(importlib.import_module("sglang.srt.environ").envs) if name.startswith("SGL")]


def accepted() -> dict:
    """What this version accepts, as sorted names by kind; a kind that cannot be read has its error in `errors`."""
    by_kind = {"errors": {}}
    for kind, ask in (("flags", _flags), ("algorithms", _algorithms), ("variables", _variables)):
        try:
            by_kind[kind] = sorted(ask())
        except Exception as error:
            by_kind["errors"][kind] = f"{type(error).__name__}: {error}"
    return by_kind


def main() -> None:
    said, sys.stdout = sys.stdout, sys.stderr  # imports print
    report = {"import_failures": failures(), "accepted": accepted()}
    print(json.dumps(report), file=said)
    said.flush()
    os._exit(0)  # threads of what was imported do not end by themselves


if __name__ == "__main__":
    main()
