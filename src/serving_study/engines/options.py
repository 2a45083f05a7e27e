"""Where an arm asks its engine for something that this version does not have.

vLLM stops at an unknown flag, though only after its imports; it refuses an unknown key of `--speculative-config` later
still. LMCache ignores an unknown or old key in silence and runs without a cache. So both are compared with what the
installed version says that it accepts (`probes.engine`), before anything starts. Where it was not asked, only what is
known to be gone is found.

    >>> from serving_study.engines import options
    >>> [problem.found for problem in options.problems(arm, accepted)]                    # doctest: +SKIP
    ["option swap_space"]
"""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .process import Process

REMOVED = {
    "speculative_model": "speculative = {'method': 'draft_model', 'model': …}",
    "num_speculative_tokens": "speculative = {'num_speculative_tokens': …}",
    "swap_space": "no option: vLLM computes again what it pushed out (since 0.18)",
    "use_v2_block_manager": "no option: there is one block manager",
}
RENAMED_CONNECTORS = {"SharedStorageConnector": "ExampleConnector"}
OLD_LMCACHE = {"local_device": "local_cpu", "max_local_cache_size": "max_local_cpu_size"}
# Flags of the LMCache server: what it was before, or what LMCache inside the engine has for it.
OLD_SERVER = {
    "cpu_buffer_size": "l1_size_gb",
    "max_local_cpu_size": "l1_size_gb",
    "local_disk": "l2_adapter",
    "max_local_disk_size": "l2_adapter",
    "cache_policy": "eviction_policy",
}
# What LMCache's documentation lists; the installed version's own list is used where it was asked.
LMCACHE = (
    "chunk_size local_cpu max_local_cpu_size local_disk max_local_disk_size remote_url remote_serde "
    "cache_policy use_layerwise save_decode_cache "
    "save_unfull_chunk pre_caching_hash_algorithm enable_blending enable_p2p enable_controller "
    "lmcache_instance_id enable_pd pd_role pd_buffer_size "
    "pd_buffer_device transfer_channel gds_path extra_config numa_mode enable_async_loading "
    "blocking_timeout_secs lookup_timeout_ms min_retrieve_tokens"
).split()
# Read by vLLM's LMCache connectors themselves, without the prefix `lmcache.`.
OF_CONNECTOR = ("use_native", "use_layerwise", "discard_partial_chunks", "skip_last_n_tokens", "lmcache_rpc_port")
# LMCache's variables that are no keys of its configuration.
OF_PROGRAM = ("config_file", "use_experimental", "log_level", "track_usage", "debug", "force_skip_save")


@dataclass(frozen=True)
class Problem:
    """What is asked for and does not exist, and what does.

    `ignored` is whether the engine would say nothing and go on.
    """

    found: str
    wanted: str
    ignored: bool = False
    doubtful: bool = False


def problems(arm: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Everything in a vLLM arm's options, speculative configuration, KV transfer and environment that `accepted` does
    not have.
    """
    if arm.engine != "vllm":
        return []
    accepted, found = accepted or {}, []
    flags = accepted.get("flags")
    for name, value in arm.options.items():
        flag = "--" + name.replace("_", "-")
        flag = "--no-" + flag[2:] if value is False else flag
        if value is not None and (name in REMOVED if flags is None else flag not in flags):
            found.append(
                Problem(
                    f"option {name}", REMOVED.get(name) or _near(name, [flag[2:].replace("-", "_") for flag in flags])
                )
            )
    found += _unknown(
        "speculative key", (key.replace("-", "_") for key in arm.speculative or {}), accepted.get("speculative")
    )
    found += _sidecar(arm, accepted)
    found += _kv_transfer(arm.options.get("kv_transfer_config"), accepted, versions or {})
    found += _unknown(
        "variable",
        (name for name in arm.environment if name.startswith("VLLM_")),
        accepted.get("variables"),
        ignored=True,
        doubtful=True,
    )
    return found + variables(arm.environment, accepted)


def _sidecar(arm: Process, accepted: Mapping) -> list[Problem]:
    """Flags of the server beside the arm's that it does not have, with what they are called now."""
    flags, found = accepted.get("lmcache_server"), []
    for name in arm.sidecar.options if arm.sidecar else ():
        if name in OLD_SERVER if flags is None else "--" + name.replace("_", "-") not in flags:
            found.append(
                Problem(
                    f"option {name} of the {arm.sidecar.engine} server",
                    OLD_SERVER.get(name) or _near(name, [flag[2:].replace("-", "_") for flag in flags]),
                )
            )
    return found


def uses_lmcache(arm: Process) -> bool:
    """Whether an LMCache connector, or several connectors with one among them, moves the arm's KV cache."""
    return "LMCache" in json.dumps(_mapping(arm.options.get("kv_transfer_config")) or {})


def variables(environment: Mapping, accepted: Mapping | None = None) -> list[Problem]:
    """LMCACHE_… variables, and the keys of the file that LMCACHE_CONFIG_FILE names, that LMCache would ignore."""
    known, found = (accepted or {}).get("lmcache"), []
    for name in sorted(environment):
        key = name.removeprefix("LMCACHE_").lower()
        if name.startswith("LMCACHE_") and key not in (*(known or LMCACHE), *OF_PROGRAM):
            clear = key in OLD_LMCACHE or difflib.get_close_matches(key, known or LMCACHE, n=1, cutoff=0.8)
            wanted = f"LMCACHE_{OLD_LMCACHE[key].upper()}" if key in OLD_LMCACHE else _near(key, known or LMCACHE)
            found.append(Problem(f"variable {name}", wanted, ignored=True, doubtful=not clear))
    if file := environment.get("LMCACHE_CONFIG_FILE"):
        found += _file(Path(str(file)), known)
    return found


def _file(file: Path, known: Iterable[str] | None) -> list[Problem]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        return [Problem(f"LMCACHE_CONFIG_FILE {file} ({str(error).splitlines()[0]})", "a YAML file that can be read")]
    if not isinstance(content, dict | None):
        return [Problem(f"LMCACHE_CONFIG_FILE {file} ({type(content).__name__})", "a YAML mapping")]
    return [
        _lmcache(str(key), known, f"key of {file.name}: ")
        for key in content or {}
        if str(key) not in (known or LMCACHE)
    ]


def _kv_transfer(given, accepted: Mapping, versions: Mapping) -> list[Problem]:
    config = _mapping(given)
    if config is None:
        return (
            [Problem(f"kv_transfer_config {given!r}", "a mapping, {'kv_connector': …, 'kv_role': …}")]
            if given is not None
            else []
        )
    found = _unknown("kv_transfer_config key", config, accepted.get("kv_transfer"))
    connector, connectors = config.get("kv_connector"), accepted.get("connectors")
    if connector in RENAMED_CONNECTORS and connector not in (connectors or ()):
        found.append(Problem(f"connector {connector}", RENAMED_CONNECTORS[connector]))
    elif connectors is not None and connector not in connectors and not config.get("kv_connector_module_path"):
        found.append(Problem(f"connector {connector}", ", ".join(connectors)))
    extra = config.get("kv_connector_extra_config") or {}
    for inner in extra.get("connectors") or []:
        found += _kv_transfer(inner, accepted, versions)
    if not str(connector).startswith("LMCache"):
        return found
    if accepted and "lmcache" not in versions:
        found.append(Problem("connector of LMCache, which is not installed", "lmcache in the engine's environment"))
    elif problem := accepted.get("errors", {}).get("lmcache"):
        found.append(Problem(f"LMCache does not say what it accepts ({problem})", "an LMCache that can be imported"))
    known = accepted.get("lmcache")
    for key in extra:
        inner = key.removeprefix("lmcache.")
        if (
            inner == key
            and key in OF_CONNECTOR
            or inner != key
            and (inner in (known or LMCACHE) or inner.startswith("mp."))
        ):
            continue
        found.append(_lmcache(inner, known, "kv_connector_extra_config key ", key))
    return found


def _lmcache(key: str, known: Iterable[str] | None, place: str, written: str | None = None) -> Problem:
    prefix = "" if written is None else "lmcache."
    name = OLD_LMCACHE.get(key) or (key if key in (known or LMCACHE) else None)
    return Problem(
        f"{place}{written or key}", f"{prefix}{name}" if name else _near(key, known or LMCACHE, prefix), ignored=True
    )


def _unknown(kind: str, names: Iterable[str], known: Iterable[str] | None, **about) -> list[Problem]:
    return (
        [Problem(f"{kind} {name}", _near(name, known), **about) for name in names if name not in known]
        if known is not None
        else []
    )


def _near(name: str, known: Iterable[str], prefix: str = "") -> str:
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return ", ".join(prefix + word for word in near or known[:12]) + ("" if near or len(known) <= 12 else ", …")


def _mapping(given) -> dict | None:
    if isinstance(given, str | os.PathLike):
        try:
            given = json.loads(str(given))
        except ValueError:
            return None
    return given if isinstance(given, dict) else None
