"""LMCache, which keeps an engine's KV cache elsewhere: inside the engine, or as a server beside it.

Inside, variables configure it and the engine's log tells what it did; the server has flags, reports its settings at
/config, and counts in pieces of `chunk_size` tokens. What can mislead: it silently ignores an unknown or old key, and
the engine runs without a cache; inside the engine it does not tell which of two tiers a token came from.

    >>> in_process_variables(64, local_cpu=True)["LMCACHE_LOCAL_CPU"]
    True
"""

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import logs
from .base import Problem, Snapshot, flags, nearest
from .process import Process

PREFIX = "LMCACHE_"
HEALTH, SETTINGS = "/healthcheck", "/config"
# The server's command, after the interpreter and before its options; `{…}` are filled in at its start.
SERVER = (
    "-m",
    "lmcache.cli.main",
    "server",
    "--host",
    "127.0.0.1",
    "--port",
    "{message_port}",
    "--http-host",
    "127.0.0.1",
    "--http-port",
    "{http_port}",
)
# Variables of an engine's environment, whether LMCache is in it or beside it.
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
# The server's counters; those of a second tier appear with its first use.
CHUNKS_WRITTEN, CHUNKS_TO_DISK, CHUNKS_FROM_DISK = (
    "lmcache_mp_l1_write_chunks_total",
    "lmcache_mp_l2_store_completed_objects_chunks_total",
    "lmcache_mp_l2_prefetch_load_completed_chunks_total",
)
CHUNKS_HANDED_ON, EVENTS_QUEUED = (
    "lmcache_mp_l2_store_submitted_objects_chunks_total",
    "lmcache_mp_event_bus_queue_depth",
)
STORED = re.compile(r"Stored (\d+) out of total \d+ tokens")
OLD_KEYS = {"local_device": "local_cpu", "max_local_cache_size": "max_local_cpu_size"}
# Flags of the LMCache server by their earlier name, or their name in LMCache inside the engine.
OLD_SERVER = {
    "cpu_buffer_size": "l1_size_gb",
    "max_local_cpu_size": "l1_size_gb",
    "local_disk": "l2_adapter",
    "max_local_disk_size": "l2_adapter",
    "cache_policy": "eviction_policy",
}
# From LMCache's documentation; used where the installed version's own list is unknown.
KEYS = (
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


def command(process: Process, python: Path) -> list[str]:
    """The server's command line; `{message_port}` and `{http_port}` are settled when it runs."""
    return [str(python), *SERVER, *flags(process.options)]


@dataclass(frozen=True)
class Moved:
    """Tokens that the server took in, that went to its second tier, and that came back from there."""

    written: float
    to_disk: float
    from_disk: float


def moved(before: Snapshot, after: Snapshot, options: Mapping) -> Moved:
    """What happened between two readings of the counters of a server with these options."""
    counts = (
        options["chunk_size"] * ((after.total(name) or 0) - (before.total(name) or 0))
        for name in (CHUNKS_WRITTEN, CHUNKS_TO_DISK, CHUNKS_FROM_DISK)
    )
    return Moved(*counts)


def has_disk(options: Mapping) -> bool:
    """Whether a server with these options has a second tier, on disk."""
    return "l2_adapter" in options


def is_settled(counters: Snapshot) -> bool:
    """Whether the server has nothing under way."""
    pending = (counters.total(CHUNKS_HANDED_ON) or 0) - (counters.total(CHUNKS_TO_DISK) or 0)
    return not counters.total(EVENTS_QUEUED) and not pending


def in_process_variables(chunk_tokens: int, **settings) -> dict:
    """The variables that configure LMCache inside an engine, from keys of its configuration."""
    return {"PYTHONHASHSEED": "0", f"{PREFIX}CHUNK_SIZE": chunk_tokens} | {
        f"{PREFIX}{name.upper()}": value for name, value in settings.items()
    }


def is_in_process(process: Process) -> bool:
    """Whether LMCache runs inside the engine."""
    return any(name.startswith(PREFIX) for name in process.environment)


def keeps_in_memory(process: Process) -> bool:
    """Whether LMCache inside the engine has a tier in the host's memory."""
    return is_in_process(process) and str(process.environment.get(f"{PREFIX}LOCAL_CPU")) == "True"


def stored_tokens(log: str) -> int:
    """Tokens that LMCache inside the engine has stored so far, by the engine's log."""
    return sum(map(int, STORED.findall(log)))


def is_used(process: Process) -> bool:
    """Whether the process's KV cache is moved by an LMCache connector, alone or among several."""
    return "LMCache" in json.dumps(mapping(process.options.get("kv_transfer_config")) or {})


def mapping(given) -> dict | None:
    """An option that is a mapping or its JSON; None for anything else."""
    if isinstance(given, str | os.PathLike):
        try:
            given = json.loads(str(given))
        except ValueError:
            return None
    return given if isinstance(given, dict) else None


def problems(process: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Options of the server that do not exist, with their present names."""
    known = (accepted or {}).get("lmcache_server")
    return [
        Problem(
            f"option {name} of the {process.engine} server",
            OLD_SERVER.get(name) or nearest(name, [flag[2:].replace("-", "_") for flag in known]),
        )
        for name in process.options
        if (name in OLD_SERVER if known is None else "--" + name.replace("_", "-") not in known)
    ]


def variables(environment: Mapping, accepted: Mapping | None = None) -> list[Problem]:
    """LMCACHE_… variables, and keys of the file in LMCACHE_CONFIG_FILE, that LMCache would ignore."""
    known, problems = (accepted or {}).get("lmcache"), []
    for name in sorted(environment):
        key = name.removeprefix(PREFIX).lower()
        if name.startswith(PREFIX) and key not in (*(known or KEYS), *OF_PROGRAM):
            clear = key in OLD_KEYS or difflib.get_close_matches(key, known or KEYS, n=1, cutoff=0.8)
            wanted = f"LMCACHE_{OLD_KEYS[key].upper()}" if key in OLD_KEYS else nearest(key, known or KEYS)
            problems.append(Problem(f"variable {name}", wanted, ignored=True, doubtful=not clear))
    if file := environment.get("LMCACHE_CONFIG_FILE"):
        problems += _file(Path(str(file)), known)
    return problems


def _file(file: Path, known: Iterable[str] | None) -> list[Problem]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        return [Problem(f"LMCACHE_CONFIG_FILE {file} ({str(error).splitlines()[0]})", "a YAML file that can be read")]
    if not isinstance(content, dict | None):
        return [Problem(f"LMCACHE_CONFIG_FILE {file} ({type(content).__name__})", "a YAML mapping")]
    return [
        unknown_key(str(key), known, f"key of {file.name}: ")
        for key in content or {}
        if str(key) not in (known or KEYS)
    ]


def unknown_key(key: str, known: Iterable[str] | None, place: str, written: str | None = None) -> Problem:
    """The problem of a key that LMCache would ignore; `written` is its form in the arm, if that differs."""
    prefix = "" if written is None else "lmcache."
    name = OLD_KEYS.get(key) or (key if key in (known or KEYS) else None)
    return Problem(
        f"{place}{written or key}", f"{prefix}{name}" if name else nearest(key, known or KEYS, prefix), ignored=True
    )


def ineffective_in_process(process: Process, log: str) -> str | None:
    """Which LMCache settings the started server does not have, by what it prints; None where there are none or all
    hold.

    A mistyped variable or key is ignored silently: a setting that is not printed does not hold."""
    log = logs.plain(log)
    wanted = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in process.environment.items()
        if name.startswith(PREFIX)
    }
    if not wanted:
        return None
    printed = re.findall(r"(?:LMCache Configuration|Creating LMCacheEngine with config): (\{.*\})", log)
    if not printed:
        return "LMCache did not print its configuration"
    effective = {name: value.strip("'\"") for name, value in re.findall(r"'(\w+)': ('[^']*'|[^,{}\[\]]+)", printed[-1])}
    differs = [
        f"{name} {effective.get(name, 'not there')}, wanted {value}"
        for name, value in wanted.items()
        if not _same(effective.get(name), value)
    ]
    return "; ".join(differs) or None


# Where the LMCache server's /config has what a flag sets, and in how many of its units.
EFFECTIVE = {
    "chunk_size": ("mp.chunk_size", 1),
    "supported_transfer_mode": ("mp.supported_transfer_mode", 1),
    "l1_size_gb": ("storage_manager.l1_manager_config.memory_config.size_in_bytes", 2**30),
    "eviction_policy": ("storage_manager.eviction_config.eviction_policy", 1),
    "l2_adapter": ("storage_manager.l2_adapter_config.adapters", 1),
}
OF_ADAPTER = {
    "type": None,
    "eviction": "eviction_config",
}  # keys of a second tier that have another name there, or none


def ineffective(process: Process, settings: dict | None) -> str | None:
    """Which settings the started LMCache server does not have, by its own report; None where all hold."""
    if not settings:
        return "the LMCache server did not say its configuration"
    differs = []
    for name, value in process.options.items():
        place, unit = EFFECTIVE.get(name, (f"mp.{name}", 1))
        effective = settings
        for part in place.split("."):
            effective = effective.get(part) if isinstance(effective, dict) else None
        if isinstance(value, dict):
            [effective] = effective if isinstance(effective, list) and len(effective) == 1 else [{}]
            for key, inner in value.items():
                key = OF_ADAPTER.get(key, key)
                if (
                    key is None
                    or isinstance(inner, dict)
                    and all(f"{word}={setting!r}" in str(effective.get(key)) for word, setting in inner.items())
                ):
                    continue
                if isinstance(inner, dict) or not _same(
                    None if effective.get(key) is None else str(effective[key]), inner
                ):
                    differs.append(f"{name}.{key} {effective.get(key, 'not there')}, wanted {inner}")
        elif not _same(None if effective is None else str(effective), int(value * unit) if unit > 1 else value):
            shown = "not there" if effective is None else effective / unit if unit > 1 else effective
            differs.append(f"{name} {shown}, wanted {value}")
    return "; ".join(differs) or None


def _same(effective: str | None, wanted) -> bool:
    if effective is None:
        return False
    try:
        return float(effective.removesuffix(" GB")) == float(wanted)
    except ValueError:
        return (
            effective.lower() == str(wanted).removeprefix("file://").rstrip("/").lower()
            or effective.rstrip("/").lower() == str(wanted).rstrip("/").lower()
        )
