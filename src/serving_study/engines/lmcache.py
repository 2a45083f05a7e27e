"""LMCache's server, a cache server beside an engine."""

from pathlib import Path

from . import vllm
from .process import Process

HEALTH, SETTINGS = "/healthcheck", "/config"
# The server's command, after the interpreter; its options follow.
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


def command(process: Process, python: Path) -> list[str]:
    """The server's command line; `{message_port}` and `{http_port}` are settled when it runs."""
    return [str(python), *SERVER, *vllm.flags(process.options)]


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
    """Which settings the started server does not have, by what it says of them; None where all hold."""
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
                if isinstance(inner, dict) or not vllm._same(
                    None if effective.get(key) is None else str(effective[key]), inner
                ):
                    differs.append(f"{name}.{key} {effective.get(key, 'not there')}, wanted {inner}")
        elif not vllm._same(None if effective is None else str(effective), int(value * unit) if unit > 1 else value):
            there = "not there" if effective is None else effective / unit if unit > 1 else effective
            differs.append(f"{name} {there}, wanted {value}")
    return "; ".join(differs) or None
