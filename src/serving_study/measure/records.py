"""What a run leaves beside its cells: `run.json`, each arm's `start.json`, and a load's result split into figures and
one record a request; and `Results`, a plan's measurements.

    >>> Results(plan, store.Store("cpu", 3)).starts()              # doctest: +SKIP
"""

from dataclasses import dataclass, field
from pathlib import Path

import pandas

from .. import __version__, files, paths
from ..engines import logs
from ..environments import Environment, variables
from ..errors import ServerError, StudyError
from ..results import sources, store
from ..results.store import Run, Store
from ..servers import fleet, language
from ..servers.arm import Arm
from .plan import Cell, Plan

ANSWERS = "answers.json"


@dataclass
class Results:
    """What a plan's cells came to, measured now or before."""

    plan: Plan
    store: Store
    cells: list[tuple[Cell, Path]] = field(default_factory=list)
    run: Run | None = None

    @property
    def files(self) -> dict[str, Path]:
        """Cell files by key."""
        return {cell.key: file for cell, file in self.cells}

    def frame(self) -> pandas.DataFrame:
        """One row a measured cell (`Plan.frame`)."""
        return self.plan.frame(self.cells)

    def starts(self) -> pandas.DataFrame:
        """One row an arm, in the plan's order: its newest start, with `phases` in seconds, None of an old one."""
        known, rows = self.store.starts_by_key(), []
        for arm in self.plan.arms:
            if start := known.get(self.plan.arm_key(arm)):
                rows.append(store.start_row(start) | {"phases": (start.get("figures") or {}).get("phases")})
        return pandas.DataFrame(rows, columns=[*store.START_COLUMNS, "phases"])

    def timing(self) -> pandas.DataFrame:
        """Where the time of each run that gave these cells went: `run`, `phase`, `seconds`."""
        names = {file.relative_to(self.store.folder).parts[0] for _, file in self.cells}
        rows = []
        for run in self.store.runs():
            if run.name in names:
                for phase, seconds in (files.read(run.folder / "run.json").get("timing") or {}).items():
                    rows.append({"run": run.name, "phase": phase, "seconds": seconds})
        return pandas.DataFrame(rows, columns=["run", "phase", "seconds"])

    def answers(self) -> dict[str, dict]:
        """Name of an arm to what its server answered to the plan's questions, the newest; arms that were not asked are
        left out.
        """
        if not self.plan.questions:
            return {}
        asked, stored = self.plan.questions.identity(), {}
        places = sorted(self.store.folder.glob(f"*/arms/*/{ANSWERS}"), key=lambda file: file.parents[2].name)
        for record in map(files.read, places):
            if record["questions"] == asked:
                stored[record["key"]] = record
        keys = {arm.name: self.plan.arm_key(arm) for arm in self.plan.arms}
        return {name: stored[key] for name, key in keys.items() if key in stored}


def write_answers(plan: Plan, run: Run, arm: Arm, answers: dict) -> None:
    """Store what an arm's server answered to the plan's questions."""
    known = {"key": plan.arm_key(arm), "arm": arm.name, "engine": arm.engine, "questions": plan.questions.identity()}
    files.write(run.start_folder(arm.name) / ANSWERS, known | answers | {"at": files.now()})


def record_of(plan: Plan) -> dict:
    """A plan's run.json when a run begins; `environments` are those of other engines than the load generator's."""
    others = {name: _environment(environment) for name, environment in plan.environments.items()}
    return {
        "schema": store.SCHEMA,
        "host": plan.host.as_dict(),
        "section": plan.section,
        "parameters": plan.parameters,
        "provenance": plan.provenance()
        | {
            "python": plan.environment.python_version,
            "engine_versions": plan.environment.versions,
            "harness": __version__,
            "git": sources.git_commit(),
            "source_sha256": sources.digest(plan.section),
            "variables": variables.deciding(),
            **({"environments": others} if others else {}),
        },
        "models": {model.name: model.identity() for arm in plan.arms for model in (arm.model, arm.draft) if model},
        "dataset": plan.loads[0].dataset.identity() if plan.loads else None,
        "order_seed": plan.seed,
        "notes": list(plan.notes),
        "began": files.now(),
    }


def _environment(environment: Environment) -> dict:
    record = {
        "name": environment.name,
        "python": environment.python_version,
        "versions": environment.versions,
        "modified": list(environment.modified),
        "missing": environment.missing and logs.tidied(environment.missing),
    }
    return {name: value for name, value in record.items() if value}


def write_timing(run: Run, record: dict, timing: dict[str, float]) -> None:
    """Write the time so far into run.json, after each arm."""
    files.write(
        run.folder / "run.json",
        record | {"timing": {name: round(seconds, 3) for name, seconds in timing.items()}, "ended": files.now()},
    )


@dataclass(frozen=True)
class StartRecord:
    """Where it is stored what an arm's start in a run came to."""

    section: int | str
    host: str
    run: Run
    arm: Arm
    key: str
    life: int = 1
    environment: str = ""
    engine_version: str | None = None

    @classmethod
    def of(cls, plan: Plan, run: Run, arm: Arm, life: int = 1) -> "StartRecord":
        version, environment = plan.version_of(arm.server), plan.environment_of(arm.server).name
        return cls(plan.section, plan.host.name, run, arm, plan.arm_key(arm), life, environment, version)

    def write(
        self,
        outcome: str,
        *,
        reason: str | None = None,
        figures: dict | None = None,
        last_lines=(),
        lost=(),
        exit_code=None,
        failure_s=None,
        later: dict | None = None,
    ) -> None:
        """Store it.

        `failed` with `figures` is an arm whose server came up and was lost before its cells were done; `later` is what
        went wrong after all that was wanted of a good start was had.
        """
        arm = self.arm
        command, *others = fleet.commands(arm, Path("python")).values()
        files.write(
            self.run.start_folder(arm.name, self.life) / "start.json",
            {
                "key": self.key,
                "host": self.host,
                "section": self.section,
                "run": self.run.name,
                "arm": arm.name,
                **arm.columns(),
                "engine": arm.engine,
                "engine_version": self.engine_version,
                "environment": self.environment,
                **({"life": self.life} if self.life > 1 else {}),
                "outcome": outcome,
                **_tidied({"reason": reason, "exit_code": exit_code, "failure_s": failure_s, "last_lines": last_lines}),
                "lost_cells": list(map(_tidied, lost)),
                "figures": figures or {},
                **({"later": _tidied(later)} if later else {}),
                "command": _published(arm, command),
                **({"other_commands": [_published(arm, words) for words in others]} if others else {}),
                "labels": {"host": self.host, "weights": arm.weights, "acceptance": arm.acceptance},
                "at": files.now(),
            },
        )


def _tidied(failure: dict) -> dict:
    """A failure without this machine's paths."""
    tidy = {"reason": failure["reason"] and logs.tidied(failure["reason"])}
    if "last_lines" in failure:
        tidy["last_lines"] = list(map(logs.tidied, failure["last_lines"]))
    return failure | tidy


def failure_of(error: StudyError, after_s: float) -> dict:
    """What an error says of a server's end, as `StartRecord.write` takes it."""
    return {
        "reason": error.reason if isinstance(error, ServerError) else str(error),
        "last_lines": tuple(getattr(error, "last_lines", ())),
        "exit_code": getattr(error, "exit_code", None),
        "failure_s": after_s,
    }


def weights(arm: Arm, start: dict) -> dict:
    """Bytes of the weight files, where the engine's log does not have them (vLLM's CPU build)."""
    if "weights_gib" in start:
        return {"weights_source": "log"}
    sizes = [model.weights_gib for model in (arm.model, arm.draft) if model]
    widened = 2 if arm.options.get("dtype") == "float32" else 1
    return (
        {
            "weights_gib": round(widened * sum(sizes) / arm.split, 3),
            "weights_source": "files" if arm.split == 1 else "files, in equal parts",
        }
        if all(sizes)
        else {}
    )


def split(result: dict, watched: list[dict] | None = None) -> tuple[dict, list[dict]]:
    """A load's result without its long lists, and one record a request, with times in seconds from the first request's
    start.

    Where requests came one by one, `counters` is what each added to the server's."""
    rows = {
        name: result.pop(name, [])
        for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
    }
    first = min((start for start in rows["start_times"] if start), default=0.0)
    requests, sane = [], language.are_sane(rows["generated_texts"])
    for index, start in enumerate(rows["start_times"]):
        requests.append(
            {
                "start_s": round(start - first, 5),
                "ttft_s": round(rows["ttfts"][index], 5),
                "itls_s": [round(gap, 5) for gap in rows["itls"][index]],
                "input_tokens": rows["input_lens"][index],
                "output_tokens": rows["output_lens"][index],
                "error": rows["errors"][index] or None,
                "text_sane": sane[index] if sane else None,
            }
        )
    if watched and len(watched) == len(requests) + 1:
        for request, before, after in zip(requests, watched, watched[1:], strict=False):
            request["counters"] = {
                name: None if after[name] is None else round(after[name] - (before[name] or 0), 6) for name in after
            }
    kept = {name: value for name, value in result.items() if isinstance(value, int | float | str) or value is None}
    kept["sample"] = (rows["generated_texts"] or [""])[0][:200]
    for name in ("base_url", "tokenizer_id", "model_id"):
        kept.pop(name, None)
    return kept, requests


def _published(arm: Arm, command: list[str]) -> list[str]:
    """A command without this machine's paths."""
    return [
        str(word)
        .replace(str(arm.model.source), arm.model.name)
        .replace(str(arm.draft.source) if arm.draft else "\0", arm.draft.name if arm.draft else "")
        .replace(str(paths.ROOT), ".")
        for word in command
    ]
