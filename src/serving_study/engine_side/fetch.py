"""Fetch a model's snapshot or one file of a data set from the hub, and print what came of it as one JSON line.

    PYTHON fetch.py '{"repository": "owner/name", "kind": "model", "patterns": ["*.json"], "answer_s": 10}'

Prints `{"path": …}`, or `{"reason": …, "out_of_reach": …, "refused": …}`. What can mislead: only a hub that
never answered is out of reach (no name, no connection, no answer in time, or offline as asked for). A proxy, a
certificate, a full disk, a package that is missing, or a failure after the first answer is a reason of its own.
Ends when standard input closes.
"""

import errno
import json
import os
import socket
import ssl
import sys
import threading
import urllib.request
from urllib.parse import urlsplit

UNREACHED = {
    errno.ECONNREFUSED: "connection refused",
    errno.ENETUNREACH: "network unreachable",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETDOWN: "network down",
    errno.ETIMEDOUT: "timed out",
}
REFUSALS = {"RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "EntryNotFoundError"}


def chain(error: BaseException) -> list[BaseException]:
    """The error and its causes, outermost first."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors


def unreached(error: BaseException) -> str | None:
    """Why there was no connection, in a few words; None for any other error."""
    errors = chain(error)
    if any(isinstance(each, ssl.SSLError) or "Proxy" in type(each).__name__ for each in errors):
        return None
    for each in reversed(errors):
        if isinstance(each, socket.gaierror):
            return "name look-up failed"
        if isinstance(each, OSError) and each.errno in UNREACHED:
            return UNREACHED[each.errno]
        if isinstance(each, TimeoutError) or type(each).__name__.endswith("Timeout"):
            return "timed out"
    return None


def reason(error: BaseException) -> str:
    """The error in one line: its kind and text, and its cause where that says more."""
    deepest = next((each for each in reversed(chain(error)) if isinstance(each, OSError) and each.errno), error)
    said = " ".join(str(deepest).split()) or "no more is said"
    return f"{type(deepest).__name__}: {said}"[:300]


def proxy(endpoint: str) -> str | None:
    """The host of the proxy that the environment sets for this address, without a password."""
    parts = urlsplit(endpoint)
    set_here = urllib.request.getproxies()
    address = set_here.get(parts.scheme) or set_here.get("all")
    return urlsplit(address).hostname if address and not urllib.request.proxy_bypass(parts.hostname or "") else None


def ask(wanted: dict) -> dict | None:
    """The failure to report when the hub does not answer for this repository; None when it does.

    Name look-up has no deadline of its own, so it runs in a thread."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return {"reason": "offline, as HF_HUB_OFFLINE asks for", "out_of_reach": True}
    answer_s, said = wanted["answer_s"], []

    def look() -> None:
        try:
            HfApi().repo_info(
                wanted["repository"], revision=wanted.get("revision"), repo_type=wanted["kind"], timeout=answer_s
            )
            said.append(None)
        except Exception as error:
            said.append(error)

    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(answer_s + 1)
    if said == [None]:
        return None
    error = said[0] if said else TimeoutError()
    why = unreached(error)
    why = f"no answer within {answer_s:g} s" if why == "timed out" else why
    through = proxy(constants.ENDPOINT)
    if why and through:
        return {"reason": f"the proxy {through} of this environment does not answer: {why}", "out_of_reach": False}
    refused = any(type(each).__name__ in REFUSALS or status(each) in (401, 403) for each in chain(error))
    return {"reason": why or reason(error), "out_of_reach": bool(why), "refused": refused}


def status(error: BaseException) -> int | None:
    """The HTTP status of an error."""
    return getattr(getattr(error, "response", None), "status_code", None)


def download(wanted: dict, local: bool) -> str:
    """The path of the snapshot or file; with `local` only of what is here already."""
    from huggingface_hub import hf_hub_download, snapshot_download

    where = {"revision": wanted.get("revision"), "repo_type": wanted["kind"], "local_files_only": local}
    if wanted.get("file"):
        return hf_hub_download(wanted["repository"], wanted["file"], **where)
    return snapshot_download(wanted["repository"], allow_patterns=wanted["patterns"], **where)


def fetch(wanted: dict) -> dict:
    """The answer, whatever happens."""
    try:
        silence = ask(wanted)
    except Exception as error:  # the package is missing, or does not import
        return {"reason": f"{reason(error)} in {sys.executable}"}
    if silence is None:
        try:
            return {"path": download(wanted, local=False)}
        except Exception as error:
            return {"reason": reason(error), "refused": any(type(each).__name__ in REFUSALS for each in chain(error))}
    if silence.get("out_of_reach"):
        try:
            return {"path": download(wanted, local=True), "kept": silence["reason"]}
        except Exception:  # not here either: the hub's silence is the reason
            pass
    return silence


def _watch() -> None:
    sys.stdin.read()
    os._exit(4)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    print(json.dumps(fetch(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # a look-up that hangs in its thread would keep the process alive
