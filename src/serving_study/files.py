"""Files and folders that are written whole or not at all, our JSON, timestamps, and digests."""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import StoreError


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def key(*identities: dict) -> str:
    """The digest of the identities that decide a result."""
    return hashlib.sha256(json.dumps(identities, sort_keys=True, default=str).encode()).hexdigest()[:24]


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def whole(path: Path, suffix: str = "") -> Iterator[Path]:
    """A temporary path beside `path`, ending in `suffix`, that replaces `path` at the end and is removed after an
    exception.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp{suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder that replaces `path` at the end and is removed after an exception."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write(path: Path, content: dict | list | str) -> None:
    """Write text or JSON through a temporary file. Raises StoreError when the disk refuses it."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1, sort_keys=True)
    try:
        with whole(path) as temporary, open(temporary, "w") as file:
            file.write(text + ("" if text.endswith("\n") else "\n"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        hint = {
            errno.ENOSPC: f"df -h {path.parent}",
            errno.EDQUOT: "quota",
            errno.EACCES: f"ls -ld {path.parent}",
            errno.EROFS: f"findmnt -T {path.parent}",
        }
        raise StoreError(
            "a result could not be written; those already stored are intact",
            value=f"{path}: {error.strerror}",
            allowed="a writable folder with free space",
            next=hint.get(error.errno),
        ) from None


def read(path: Path) -> dict:
    """Read one of our JSON files. Raises StoreError for one that is damaged."""
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            "a stored result cannot be read",
            value=f"{path}: {error}",
            allowed="a whole JSON file",
            next=f"git checkout {path} or rm {path}, then run the section again",
        ) from None
