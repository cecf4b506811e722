"""Python sources of vLLM releases, kept so that `vllm@VERSION` can be a target.

A wheel comes from the user's own package index (pip reads its configuration as
ever), its Python part and metadata are kept under `CACHE/vllm/VERSION/`, the rest
is thrown away.  A release is complete once its marker file is there: it is built
in a temporary folder beside it and renamed, so a broken download or a kill leaves
nothing that could be taken for a release.  Nothing here imports torch or vLLM.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from .world.processes import die_with_parent

OLDEST = (0, 24, 0)  # the first release whose model runner has a PPHandler
KEY_FILE = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
MARKER = "ppharness-complete.json"
MAX_UNPACKED_BYTES = 1 << 30

_VERSION = re.compile(
    r"(?P<release>\d{1,6}(?:\.\d{1,6}){0,4})"
    r"(?P<suffix>(?:(?:a|b|rc)\d{1,6})?(?:\.post\d{1,6})?(?:\.dev\d{1,6})?)"
    r"(?P<local>(?:\+[a-z0-9]+(?:\.[a-z0-9]+){0,8})?)"
)


class VllmCacheError(ValueError):
    """A release cannot be had; says what was tried and what to do."""


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


def parse_version(text: str) -> tuple[tuple[int, ...], str]:
    """`(release numbers, normal form)`; VllmCacheError unless a version from 0.24.0 on.

    Strict on purpose: the text becomes an argument of pip and a folder's name.
    """
    match = _VERSION.fullmatch(text) if text.isascii() else None
    if match is None:
        raise VllmCacheError(
            f"{text!r} is no vLLM version; expected one such as 0.28.0, 0.28.0rc1 or 0.28.0+cpu"
        )
    numbers = tuple(int(part) for part in match["release"].split("."))
    numbers += (0,) * (3 - len(numbers))
    if numbers < OLDEST:
        raise VllmCacheError(
            f"vLLM {text} is too old: its model runner has no pipeline-parallel handler to test; "
            f"the oldest that can be driven is {'.'.join(map(str, OLDEST))}"
        )
    return numbers, ".".join(map(str, numbers)) + match["suffix"] + match["local"]


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
                wheel = _download(version, work, pip_args, say)
                result = _unpack(wheel, version, work / "release", target)
                if target.exists():
                    target.rename(work / "old")
                (work / "release").rename(target)
                return result
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


def _download(
    version: str, work: Path, pip_args: Sequence[str], say: Callable[[str], None] | None
) -> Path:
    """pip's download of exactly one wheel; its temporary files stay inside `work`."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("-d", str(work / "wheel"), *pip_args, "--", f"vllm=={version}"),
    ]
    (work / "tmp").mkdir()
    pip = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(work / "tmp"), "PYTHONUNBUFFERED": "1"},
        preexec_fn=partial(die_with_parent, signal.SIGTERM),
    )
    lines: list[str] = []
    try:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line.rstrip())
            if say is not None and line.strip().startswith(("Collecting", "Downloading", "Saved")):
                say(line.strip())
        code = pip.wait()
    finally:
        if pip.poll() is None:
            pip.terminate()
            pip.wait()
    if code != 0:
        raise VllmCacheError(_explain_pip(version, command, lines))
    wheels = sorted((work / "wheel").glob("vllm-*.whl"))
    if len(wheels) != 1:
        raise VllmCacheError(
            f"pip ended well but left {len(wheels)} vllm wheels instead of one: {' '.join(command)}"
        )
    return wheels[0]


def _explain_pip(version: str, command: Sequence[str], lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    tried = "tried: " + re.sub(r"://[^/@\s]+@", "://***@", " ".join(command))
    tail = "pip said:\n  " + "\n  ".join([line for line in lines if line][-6:])
    if "No module named pip" in text:
        return (
            f"cannot fetch vLLM {version}: {sys.executable} has no pip; "
            "add it with `python -m ensurepip` (or `uv pip install pip`) and try again"
        )
    match = re.search(r"\(from versions: ([^)]*)\)", text)
    names = [name.strip() for name in match[1].split(",")] if match else []
    known = [name for name in names if _is_drivable(name)]
    unreachable = "Retrying (" in text or "ConnectionError" in text or "Max retries" in text
    if known and not unreachable:
        return (
            f"vLLM {version} does not exist as a wheel for this machine on the package index; "
            f"there are: {', '.join(known)}\n{tried}"
        )
    if match is not None and not unreachable:
        return (
            f"the package index has no vLLM wheel for this machine that can be driven, "
            f"let alone {version}; vLLM publishes wheels for Linux (x86_64, aarch64). "
            f"Check `pip config list`, or name an index or a folder of wheels with "
            f"--index-url URL or --find-links DIR\n{tried}\n{tail}"
        )
    return (
        f"cannot get vLLM {version}: no package index could be reached or asked. Check "
        f"`pip config list` and the proxy, or download vllm-{version}-*.whl elsewhere and use "
        f"--find-links FOLDER (with --no-index)\n{tried}\n{tail}"
    )


def _is_drivable(version: str) -> bool:
    try:
        parse_version(version)
    except VllmCacheError:
        return False
    return True


def _unpack(wheel: Path, version: str, into: Path, target: Path) -> FetchResult:
    """Python files and metadata of the wheel, each checked against RECORD."""
    from_where = f"{wheel.name} (for vLLM {version})"
    num_bytes = 0
    names: list[str] = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {info.filename: info for info in archive.infolist() if _is_wanted(info)}
            if KEY_FILE not in members:
                raise VllmCacheError(
                    f"{from_where} holds no {KEY_FILE}: not a wheel with vLLM's Python sources; "
                    "name another index or folder with --index-url or --find-links"
                )
            hashes = _record(archive, members, from_where)
            for name, info in members.items():
                num_bytes += info.file_size
                if num_bytes > MAX_UNPACKED_BYTES:
                    raise VllmCacheError(f"{from_where}: more than 1 GB of Python sources, refused")
                data = archive.read(info)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
                if not name.endswith(".dist-info/RECORD") and (
                    hashes.get(name) != "sha256=" + digest.rstrip("=")
                ):
                    raise VllmCacheError(
                        f"{from_where}: {name} does not have the sha256 that RECORD gives; "
                        "the wheel is damaged, fetch it again"
                    )
                path = into / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                names.append(name)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise VllmCacheError(
            f"{from_where} is no readable wheel: {error}; fetch it again"
        ) from error
    _check_metadata(into, version, from_where)
    size = wheel.stat().st_size
    marker = {"version": version, "wheel": wheel.name, "num_files": len(names)}
    with open(into / MARKER, "w") as file:
        json.dump(marker, file)
        file.flush()
        os.fsync(file.fileno())
    return FetchResult(version, target, True, wheel.name, size, len(names), num_bytes)


def _is_wanted(info: zipfile.ZipInfo) -> bool:
    """A regular file of the Python part; VllmCacheError for a name that leaves the folder."""
    name = info.filename
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
        raise VllmCacheError(f"the wheel has a member that leaves its folder, refused: {name!r}")
    file_type = (info.external_attr >> 16) & 0o170000
    if info.is_dir() or file_type not in (0, 0o100000):  # folders, links, devices
        return False
    if path.parts[0].startswith("vllm-") and path.parts[0].endswith(".dist-info"):
        return True
    return path.parts[0] == "vllm" and path.suffix == ".py"


def _record(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], from_where: str
) -> dict[str, str]:
    """RECORD as `{file: "sha256=..."}`."""
    record = [name for name in members if name.endswith(".dist-info/RECORD")]
    if len(record) != 1:
        raise VllmCacheError(f"{from_where} has {len(record)} RECORD files instead of one")
    rows = csv.reader(io.StringIO(archive.read(record[0]).decode("utf-8", errors="replace")))
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def _check_metadata(root: Path, version: str, from_where: str) -> None:
    """The metadata must name the release that was asked for (a local part may be added)."""
    files = sorted(root.glob("vllm-*.dist-info/METADATA"))
    text = files[0].read_text(encoding="utf-8", errors="replace") if len(files) == 1 else ""
    match = re.search(r"^Version: *(\S+) *$", text, re.M)
    found = match[1] if match else None
    if found is None or version not in (found, found.split("+")[0]):
        raise VllmCacheError(
            f"{from_where}: its metadata gives version {found}, not {version}; wrong wheel, refused"
        )
