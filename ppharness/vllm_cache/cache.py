"""Python sources of vLLM releases, kept so that `vllm@VERSION` can be a target.

What is kept of a release lies under `CACHE/vllm/VERSION/`.  It is complete once its
marker file is there: it is built in a temporary folder beside it and renamed, so a
broken download or a kill leaves nothing that could be taken for a release.  Nothing
in this package imports torch or vLLM.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .download import download
from .version import VllmCacheError, parse_version
from .wheel import KEY_FILE, MARKER, unpack


@dataclass(frozen=True)
class Release:
    """A vLLM release on this machine."""

    version: str
    root: Path  # the folder that holds `vllm/`; goes first on sys.path when cached
    is_cached: bool  # False: the vLLM that is installed in this environment


@dataclass(frozen=True)
class FetchResult:
    """What `fetch` did."""

    version: str
    path: Path
    is_new: bool  # False: it was there already, nothing was downloaded
    wheel: str | None = None
    wheel_bytes: int = 0
    num_files: int = 0
    num_bytes: int = 0

    def summary(self) -> str:
        if not self.is_new:
            return f"vllm {self.version} is there already: {self.path}"
        return (
            f"vllm {self.version}: took {self.num_files} files ({self.num_bytes / 1e6:.1f} MB) "
            f"out of {self.wheel} ({self.wheel_bytes / 1e6:.0f} MB), "
            f"checked them against its RECORD, kept them in {self.path}"
        )


def cache_dir() -> Path:
    """`$PPHARNESS_CACHE`, else `$XDG_CACHE_HOME/ppharness`, else `~/.cache/ppharness`."""
    if own := os.environ.get("PPHARNESS_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "ppharness"
    return Path.home() / ".cache" / "ppharness"


def cached() -> list[Release]:
    """Complete releases in the cache, oldest first."""
    folder = cache_dir() / "vllm"
    found: list[tuple[tuple[int, ...], Release]] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            numbers, version = parse_version(entry.name)
        except VllmCacheError:
            continue
        if (entry / MARKER).is_file() and (entry / KEY_FILE).is_file():
            found.append((numbers, Release(version, entry, is_cached=True)))
    return [release for _, release in sorted(found, key=lambda item: (item[0], item[1].version))]


def installed() -> Release | None:
    """The vLLM of this Python environment, found without importing it."""
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:  # None: a plain folder that is called vllm
        return None
    root = Path(spec.origin).absolute().parent.parent
    if root.is_relative_to(cache_dir()):
        return None
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        version = _version_in_source(root / "vllm" / "_version.py")
    return Release(version, root, is_cached=False)


def locate(version: str) -> Path:
    """The folder to put on sys.path for a cached release; VllmCacheError where it is not."""
    _, version = parse_version(version)
    path = cache_dir() / "vllm" / version
    command = f"ppharness vllm fetch {version}"
    if not path.exists():
        there = ", ".join(release.version for release in cached()) or "none"
        raise VllmCacheError(
            f"vLLM {version} is not in the cache {path.parent} (cached: {there}); get it: {command}"
        )
    if not (path / MARKER).is_file() or not (path / KEY_FILE).is_file():
        raise VllmCacheError(f"{path} is only half written; fetch it again: {command}")
    return path


def fetch(
    version: str,
    *,
    pip_args: Sequence[str] = (),
    force: bool = False,
    say: Callable[[str], None] | None = None,
) -> FetchResult:
    """Get a release's wheel with pip and keep its Python part.

    `pip_args` go to pip as they are (`--find-links DIR`, `--index-url URL`); without
    any, pip's own configuration decides.  `say` hears pip's progress, a line a call.

    Raises VllmCacheError: no such version, no index reachable, no pip, a wheel that
    is broken or holds no Python sources, a cache that cannot be written.
    """
    _, version = parse_version(version)
    folder = cache_dir() / "vllm"
    target = folder / version
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_fetch(folder, say):
            for stale in folder.glob(".tmp-*"):  # left by a process that was killed
                shutil.rmtree(stale, ignore_errors=True)
            if not force and (target / MARKER).is_file() and (target / KEY_FILE).is_file():
                return FetchResult(version, target, is_new=False)
            work = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder))
            try:
                wheel = download(version, work, pip_args, say)
                num_files, num_bytes = unpack(wheel, version, work / "release")
                size = wheel.stat().st_size
                if target.exists():
                    target.rename(work / "old")
                (work / "release").rename(target)
                return FetchResult(version, target, True, wheel.name, size, num_files, num_bytes)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise VllmCacheError(
            f"cannot write vLLM {version} to the cache {folder}: {error}; "
            "free some space there (a wheel needs about 400 MB for a moment) "
            "or set PPHARNESS_CACHE to another folder"
        ) from error


def _version_in_source(file: Path) -> str:
    text = file.read_text(errors="replace") if file.is_file() else ""
    match = re.search(r"^(?:__version__ = )?(?:version = )?['\"]([0-9][^'\"]*)['\"]", text, re.M)
    return match[1] if match else "unknown"


@contextmanager
def _only_fetch(folder: Path, say: Callable[[str], None] | None) -> Iterator[None]:
    """One fetch at a time for a cache; the kernel drops the lock when its holder dies."""
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say("waiting for another fetch into this cache to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
