"""A host's GPU links and what they carry, kept beside a section's runs (`links.json`)."""

from pathlib import Path

from .. import files, paths
from ..errors import StudyError
from ..hardware import links
from . import store


def of(plan, *, again: bool = False) -> dict:
    """This host's `links.json`, written on first use: `links.here`, and what was `measured`, or why that `failed`."""
    file = store.Store(plan.host.name, plan.section).folder / "links.json"
    if file.is_file() and not again:
        return files.read(file)
    record = {"host": plan.host.identity(), "at": files.now()} | links.here()
    try:
        record["measured"] = links.measure(plan.host, plan.environment)
    except (TimeoutError, StudyError) as error:
        record |= {"measured": [], "failed": str(error)}
    files.write(file, record)
    return record


def published(host: str, section: int, root: Path | None = None) -> dict | None:
    """Another host's `links.json`, or None."""
    file = store.Store(host, section, root or paths.RESULTS_PUBLISHED).folder / "links.json"
    return files.read(file) if file.is_file() else None
