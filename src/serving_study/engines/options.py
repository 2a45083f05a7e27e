"""What an arm asks of its engine that this version does not have.

vLLM refuses an unknown flag only after its imports, an unknown key of `--speculative-config` later still; LMCache
ignores unknown keys. So both are compared, before anything starts, with what the installed version accepts
(`probes.engine`); where that is not known, only removed options are found.

    >>> from serving_study.engines import options
    >>> [problem.found for problem in options.problems(arm, accepted)]                    # doctest: +SKIP
    ["option swap_space"]
"""

from collections.abc import Mapping

from . import lmcache
from .base import Problem, nearest, unknown
from .process import Process

REMOVED = {
    "speculative_model": "speculative = {'method': 'draft_model', 'model': …}",
    "num_speculative_tokens": "speculative = {'num_speculative_tokens': …}",
    "swap_space": "no option: vLLM computes again what it pushed out (since 0.18)",
    "use_v2_block_manager": "no option: there is one block manager",
}
RENAMED_CONNECTORS = {"SharedStorageConnector": "ExampleConnector"}


def problems(process: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Whatever of a process's options, speculative configuration, KV transfer and variables `accepted` does not
    have.
    """
    accepted, all_problems = accepted or {}, []
    flags = accepted.get("flags")
    for name, value in process.options.items():
        flag = "--" + name.replace("_", "-")
        flag = "--no-" + flag[2:] if value is False else flag
        if value is not None and (name in REMOVED if flags is None else flag not in flags):
            all_problems.append(
                Problem(
                    f"option {name}", REMOVED.get(name) or nearest(name, [flag[2:].replace("-", "_") for flag in flags])
                )
            )
    all_problems += unknown(
        "speculative key", (key.replace("-", "_") for key in process.speculative or {}), accepted.get("speculative")
    )
    all_problems += _kv_transfer(process.options.get("kv_transfer_config"), accepted, versions or {})
    all_problems += unknown(
        "variable",
        (name for name in process.environment if name.startswith("VLLM_")),
        accepted.get("variables"),
        ignored=True,
        doubtful=True,
    )
    return all_problems + lmcache.variables(process.environment, accepted)


def _kv_transfer(given, accepted: Mapping, versions: Mapping) -> list[Problem]:
    config = lmcache.mapping(given)
    if config is None:
        return (
            [Problem(f"kv_transfer_config {given!r}", "a mapping, {'kv_connector': …, 'kv_role': …}")]
            if given is not None
            else []
        )
    all_problems = unknown("kv_transfer_config key", config, accepted.get("kv_transfer"))
    connector, connectors = config.get("kv_connector"), accepted.get("connectors")
    if connector in RENAMED_CONNECTORS and connector not in (connectors or ()):
        all_problems.append(Problem(f"connector {connector}", RENAMED_CONNECTORS[connector]))
    elif connectors is not None and connector not in connectors and not config.get("kv_connector_module_path"):
        all_problems.append(Problem(f"connector {connector}", ", ".join(connectors)))
    extra = config.get("kv_connector_extra_config") or {}
    for inner in extra.get("connectors") or []:
        all_problems += _kv_transfer(inner, accepted, versions)
    if not str(connector).startswith("LMCache"):
        return all_problems
    if accepted and "lmcache" not in versions:
        all_problems.append(
            Problem("connector of LMCache, which is not installed", "lmcache in the engine's environment")
        )
    elif problem := accepted.get("errors", {}).get("lmcache"):
        all_problems.append(
            Problem(f"LMCache does not say what it accepts ({problem})", "an LMCache that can be imported")
        )
    known = accepted.get("lmcache")
    for key in extra:
        inner = key.removeprefix("lmcache.")
        if (
            inner == key
            and key in lmcache.OF_CONNECTOR
            or inner != key
            and (inner in (known or lmcache.KEYS) or inner.startswith("mp."))
        ):
            continue
        all_problems.append(lmcache.unknown_key(inner, known, "kv_connector_extra_config key ", key))
    return all_problems
