"""A release's wheel from the user's own package index: pip reads its configuration as ever."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..world.processes import die_with_parent
from .version import VllmCacheError, is_drivable


def download(
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
        raise VllmCacheError(_explain(version, command, lines))
    wheels = sorted((work / "wheel").glob("vllm-*.whl"))
    if len(wheels) != 1:
        raise VllmCacheError(
            f"pip ended well but left {len(wheels)} vllm wheels instead of one: {' '.join(command)}"
        )
    return wheels[0]


def _explain(version: str, command: Sequence[str], lines: Sequence[str]) -> str:
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
    known = [name for name in names if is_drivable(name)]
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
