"""What is kept of a wheel: its Python part and metadata, checked against RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import zipfile
from pathlib import Path, PurePosixPath

from .version import VllmCacheError

KEY_FILE = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
MARKER = "ppharness-complete.json"
MAX_UNPACKED_BYTES = 1 << 30


def unpack(wheel: Path, version: str, into: Path) -> tuple[int, int]:
    """Python files and metadata of the wheel, each checked against RECORD: how many, bytes."""
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
    marker = {"version": version, "wheel": wheel.name, "num_files": len(names)}
    with open(into / MARKER, "w") as file:
        json.dump(marker, file)
        file.flush()
        os.fsync(file.fileno())
    return len(names), num_bytes


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
