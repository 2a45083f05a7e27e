"""`Report`: what a server that somebody else started says of itself; `look` asks it before anything starts.

What can mislead: a gateway answers for several servers, so that its counters, if it has any, are not those of the one
that works.

    >>> look("http://127.0.0.1:8000", "vllm", None).model                          # doctest: +SKIP
    'Qwen/Qwen2.5-7B-Instruct'
"""

import json
import urllib.error
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from ... import engines
from ...engines import base
from ...engines.base import Snapshot
from ...errors import LoadError, ModelError, ParameterError, StudyError
from ...models.checkpoints import Model
from ...servers import client, lifetime, metrics
from ...servers.arm import Arm

ANSWER_S, PROBE_S = 10.0, 120.0
STARTED_BY = "not the study"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Report:
    """What an endpoint says: its address, the model as it is called there, its longest context (None: it does not say),
    its engine's version, its settings by `base.SETTINGS`, figures of its cache, and the text of a first answer.
    """

    url: str
    engine: str
    model: str
    context: int | None
    version: str | None
    settings: dict
    cache: dict
    probe_text: str
    other_engine: str | None = None  # that its counters are of, where it was called by none

    def as_dict(self) -> dict:
        """For run.json, without the address, which may be nobody else's business."""
        return {
            "started_by": STARTED_BY,
            "engine": self.engine,
            "version": self.version,
            "model": self.model,
            "context": self.context,
            "settings": self.settings,
            "cache": self.cache,
            "probe_text": self.probe_text,
        }


def address(url: str) -> str:
    """A server's address without a trailing `/v1`. Raises ParameterError for what is none."""
    parts = urllib.parse.urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        good = False
    if not good or parts.query or parts.fragment:
        raise ParameterError("not the address of a server", value=url, allowed="http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1")


def look(url: str, engine: str, model: str | None) -> Report:
    """What the server at `url` says of itself, after one short request.

    Raises ParameterError or LoadError, before anything starts, where nothing answers, where it is no endpoint of
    OpenAI's completions API, where it has not the model, and where its counters are not those of the engine."""
    kind, url = engines.get(engine), address(url)
    entry = _model(url, model)
    name = entry["id"]
    probe = _first_answer(url, name)
    snapshot, other = _counters(url, engine)
    reports = {path: report for path in kind.REPORTS if (report := _asked(f"{url}{path}")) is not None}
    settings = kind.settings(arm(engine, name, Path()).server, "", reports)
    said = entry.get("max_model_len") or settings.get("max_model_len")
    return Report(
        url,
        engine,
        name,
        int(said) if said else None,
        _version(url, reports),
        settings,
        kind.cache_figures(snapshot),
        probe,
        other,
    )


def arm(engine: str, model: str, tokenizer: Path) -> Arm:
    """What a cell calls the server: an arm of whose options nothing is known."""
    return Arm.of(
        "endpoint", Model(model, model, tokenizer, weights=UNKNOWN), engine=engine, gpus=0, technique="endpoint"
    )


def require_context(report: Report, tokens: int, section: int | str) -> None:
    """Raises ModelError where the server's context is shorter than the longest request of the loads."""
    if report.context is not None and report.context < tokens:
        raise ModelError(
            f"the server's context is too short for the loads of section {section}",
            value=f"{report.context:,} tokens of {report.model}",
            allowed=f"{tokens:,} or more: the longest prompt and its answer",
            next="start the server with a longer context, or ask for shorter answers: -p output_tokens=16",
        )


def _model(url: str, wanted: str | None) -> dict:
    """The entry of /v1/models that is meant."""
    try:
        listed = json.loads(client.get(f"{url}/v1/models", ANSWER_S))
        entries = {entry["id"]: entry for entry in listed["data"]}
    except urllib.error.HTTPError as error:
        raise _no_endpoint(url, error) from None
    except OSError as error:
        raise LoadError(
            "no server answers",
            value=f"{url}: {reason(error)}",
            allowed="a server that is up and can be reached from here",
            next=f"curl {url}/v1/models",
        ) from None
    except (ValueError, LookupError, TypeError):
        raise ParameterError(
            "this is no server with OpenAI's API",
            value=f"{url}/v1/models does not answer with a list of models",
            allowed="a server that has /v1/models and /v1/completions",
            next=f"curl {url}/v1/models",
        ) from None
    names = ", ".join(entries) or "none"
    if wanted is None and len(entries) != 1:
        raise ParameterError(
            "the server does not have one model alone", value=f"{len(entries)}", allowed=names, next="--model NAME"
        )
    if wanted is not None and wanted not in entries:
        raise ParameterError(
            "the server does not have this model", value=wanted, allowed=names, next="--model with one of these"
        )
    return entries[wanted if wanted is not None else next(iter(entries))]


def _no_endpoint(url: str, error: urllib.error.HTTPError) -> StudyError:
    with error:
        status = error.code
    if status in (401, 403):
        return ParameterError(
            "the server wants a key",
            value=f"{url} answers {status}",
            allowed="a server without one, or the key in OPENAI_API_KEY",
            next="export OPENAI_API_KEY=…, then the same command again",
        )
    if status == 503:
        return LoadError(
            "the server is not ready", value=f"{url} answers {status}", next="wait for it, then the same command again"
        )
    return ParameterError(
        "this is no server with OpenAI's API",
        value=f"{error.url} answers {status}",
        allowed="a server that has /v1/models and /v1/completions",
        next=f"curl {url}/v1/models",
    )


def _first_answer(url: str, model: str) -> str:
    """The text of a first, short request."""
    try:
        answer = client.complete(url, model, lifetime.PROBE_PROMPT, lifetime.PROBE_TOKENS, PROBE_S)
        tokens, text = answer["usage"]["completion_tokens"], answer["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            detail = error.read().decode(errors="replace")[:200]
            raise LoadError(
                "the first request failed", value=f"{url}/v1/completions answers {error.code}: {detail}"
            ) from None
        raise _no_endpoint(url, error) from None
    except OSError as error:
        raise LoadError("the first request failed", value=f"{url}/v1/completions: {reason(error)}") from None
    except (ValueError, LookupError, TypeError):
        raise ParameterError(
            "this is no server with OpenAI's API",
            value=f"{url}/v1/completions answers without text or without a count of its tokens",
            allowed="a server whose answers have choices and usage",
        ) from None
    if tokens < 1:
        raise LoadError("the first request failed", value=f"{url}/v1/completions gave {tokens} tokens")
    return text


def _counters(url: str, engine: str) -> tuple[Snapshot, str | None]:
    """The counters after the first request, and for a server that was called by no engine's name whose they are."""
    pages = {path: _page(url, path) for path in dict.fromkeys(kind.COUNTERS.path for kind in engines.ENGINES.values())}
    whose = [
        name
        for name, kind in engines.ENGINES.items()
        if kind.COUNTERS.total(pages[kind.COUNTERS.path], base.GENERATED_TOKENS) is not None
    ]
    counters = engines.get(engine).COUNTERS
    if not counters.samples:
        return Snapshot({}), next(iter(whose), None)
    snapshot = pages[counters.path]
    if engine not in whose:
        instead = next(iter(whose), "openai")
        raise ParameterError(
            f"the server is no {engines.get(engine).TITLE}, or does not count",
            value=f"{engine} ({_said_instead(url, counters.path, snapshot, whose)})",
            allowed=", ".join(dict.fromkeys([*whose, "openai"])) + " for this server",
            next=f"--engine {instead}"
            + ("" if whose else f", or start {engines.get(engine).TITLE} with its counters at {counters.path}"),
        )
    return snapshot, None


def _page(url: str, path: str) -> Snapshot:
    try:
        return metrics.scrape(url, path)
    except LoadError:
        return Snapshot({})


def _said_instead(url: str, path: str, snapshot: Snapshot, whose: list[str]) -> str:
    if whose:
        return f"its counters are those of {engines.get(whose[0]).TITLE}"
    return f"{url}{path} has {'other counters' if snapshot.series else 'no counters'}"


def _asked(url: str) -> object | None:
    """The JSON at a URL; None where there is none."""
    try:
        return json.loads(client.get(url, ANSWER_S))
    except (OSError, ValueError):
        return None


def _version(url: str, reports: dict) -> str | None:
    """What it says its version is: at /version, or in one of its reports."""
    said = [_asked(f"{url}/version"), *reports.values()]
    versions = (answer.get(key) for answer in said if isinstance(answer, dict) for key in ("version", "build_info"))
    return next((str(version) for version in versions if version), None)


def reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}" if not isinstance(reason, str) else reason
