"""What an arm asks of llama.cpp: its speculation as options, and what this version does not have.

`llama-server` ends at an unknown option, and at one that it has dropped; both are looked for before it starts, by its
own --help (`engine_side/llama_cpp/facts.py`).

    >>> speculation(Process("server", "llama-cpp", speculative={"method": "ngram", "num_speculative_tokens": 3}))
    ['--spec-type', 'ngram-simple', '--spec-ngram-simple-size-m', '3']
"""

from collections.abc import Mapping

from ..base import Problem, flags, nearest, unknown
from ..process import Process
from . import weights

# Methods by the names that arms have for them; any other is one of llama.cpp's own types.
TYPES = {"draft_model": "draft-simple", "ngram": "ngram-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
KEYS = (
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "rejection_sample_method",
    "synthetic_acceptance_length",
)
# Options that the server is always given, which an arm may not have.
SET_HERE = ("model", "host", "port", "alias", "metrics", "verbosity", "spec_type", "model_draft")


def type_of(process: Process) -> str | None:
    """llama.cpp's name for the process's speculation; None without any."""
    method = (process.speculative or {}).get("method")
    return TYPES.get(method, method)


def speculation(process: Process) -> list[str]:
    """The process's speculation as words of a command line.

    The look-ups have a draft's length each under a name of their own, and one length of match: the longest asked for.
    """
    config, kind = process.speculative or {}, type_of(process)
    if kind is None:
        return []
    named = {"spec_type": kind}
    if kind.startswith("ngram") and kind != "ngram-cache":
        length, match = ("n_max", "n_match") if kind == "ngram-mod" else ("size_m", "size_n")
        named |= {f"spec_{kind}_{length}": config.get("num_speculative_tokens")}
        named |= {f"spec_{kind}_{match}": config.get("prompt_lookup_max")}
    else:
        named |= {"spec_draft_n_max": config.get("num_speculative_tokens")}
    if process.draft:
        named["model_draft"] = str(weights.path(process.draft))
    named["spec_synth_len"] = config.get("synthetic_acceptance_length")
    return flags(named)


def problems(process: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Whatever of a process's options and speculation `accepted` does not have, or what is not an arm's to say."""
    accepted, all_problems = accepted or {}, []
    known, removed = accepted.get("flags"), accepted.get("removed") or {}
    for name, value in process.options.items():
        flag = ("--no-" if value is False else "--") + name.replace("_", "-")
        if name in SET_HERE:
            all_problems.append(Problem(f"option {name}", "nothing: the harness sets it"))
        elif flag in removed:
            all_problems.append(Problem(f"option {name}", removed[flag]))
        elif known is not None and value is not None and flag not in known:
            names = [word[2:].replace("-", "_") for word in known]
            all_problems.append(Problem(f"option {name} of {process.engine}", nearest(name, names)))
    all_problems += unknown("speculative key", process.speculative or {}, KEYS)
    if kind := type_of(process):
        all_problems += unknown("speculation", [kind], accepted.get("speculative"))
        if kind.startswith("draft") and kind != "draft-mtp" and process.draft is None:
            all_problems.append(Problem(f"speculation {kind} without a draft", "an arm with a draft model"))
    return all_problems
