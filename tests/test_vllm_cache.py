"""The cache of vLLM releases: what is kept, what is refused, what is left behind."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from ppharness.vllm_cache import KEY_FILE, MARKER, VllmCacheError, cached, fetch, locate
from ppharness.vllm_cache.wheel import unpack


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPHARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vllm"


def make_wheel(folder: Path, version: str = "0.28.0", **change: object) -> Path:
    """A tiny wheel that looks like vLLM's; `change` spoils one thing of it."""
    info = f"vllm-{version}.dist-info"
    files = {
        "vllm/__init__.py": b"",
        KEY_FILE: b"STATE = 1\n",
        "vllm/_C.abi3.so": b"\x7fELF",
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {change.get('metadata', version)}\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if change.get("without_sources"):
        del files[KEY_FILE]
    extra = change.get("extra")
    if isinstance(extra, str):
        files[extra] = b"x"
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(data)}\n"
    if change.get("damaged"):
        files[KEY_FILE] = b"STATE = 2\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def from_folder(folder: Path) -> list[str]:
    return ["--no-index", "--find-links", str(folder)]


def test_fetch_keeps_the_python_part_and_says_so(tmp_path: Path, cache: Path) -> None:
    make_wheel(tmp_path / "wheels")
    result = fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels"))
    assert result.is_new and result.path == cache / "0.28.0" == locate("0.28.0")
    assert (cache / "0.28.0" / KEY_FILE).read_text() == "STATE = 1\n"
    assert not list(cache.rglob("*.so")) and not list(cache.rglob("*.whl"))
    assert {entry.name for entry in cache.iterdir()} == {"0.28.0", ".lock"}
    assert "0.28.0" in result.summary() and "RECORD" in result.summary()
    assert [(r.version, r.root, r.is_cached) for r in cached()] == [
        ("0.28.0", cache / "0.28.0", True)
    ]
    again = fetch("0.28", pip_args=["--no-index"])  # the same release, and no index is asked
    assert not again.is_new and again.path == result.path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"damaged": True}, "sha256"),
        ({"without_sources": True}, "no " + KEY_FILE),
        ({"extra": "../evil.py"}, "leaves its folder"),
        ({"extra": "/tmp/evil.py"}, "leaves its folder"),
        ({"extra": "vllm/../../evil.py"}, "leaves its folder"),
    ],
)
def test_bad_wheel_is_refused_and_leaves_nothing(
    change: dict[str, object], words: str, tmp_path: Path, cache: Path
) -> None:
    make_wheel(tmp_path / "wheels", **change)
    with pytest.raises(VllmCacheError, match=words):
        fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels"))
    assert {entry.name for entry in cache.iterdir()} == {".lock"}
    assert not list(tmp_path.rglob("evil.py"))


def test_truncated_wheel_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels")
    wheel.write_bytes(wheel.read_bytes()[:-40])
    with pytest.raises(VllmCacheError):
        fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels"))
    assert {entry.name for entry in cache.iterdir()} == {".lock"}


def test_missing_version_names_those_that_exist(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "0.28.0")
    make_wheel(tmp_path / "wheels", "0.11.0")
    with pytest.raises(VllmCacheError, match=r"0\.29\.0 does not exist.*there are: 0\.28\.0\n"):
        fetch("0.29.0", pip_args=from_folder(tmp_path / "wheels"))


def test_no_index_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(VllmCacheError, match="--find-links"):
        fetch("0.28.0", pip_args=from_folder(tmp_path / "empty"))
    args = ["--retries=0", "--index-url", "http://me:secret@127.0.0.1:9/simple"]
    with pytest.raises(VllmCacheError) as caught:
        fetch("99.0.0", pip_args=args)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "latest", "-r", "--index-url=x", "0.28.0/..", "../0.28.0", "0.28.0 ", "0.28.0\n", "0.28.*"]
    + ["0.28.0;x", ">=0.28", "0.28.0+", "\uff10.28.0"],
)
def test_malformed_version(text: str) -> None:
    with pytest.raises(VllmCacheError, match="no vLLM version"):
        fetch(text)


@pytest.mark.parametrize("text", ["0.23.9", "0.9.2", "0"])
def test_too_old_version(text: str) -> None:
    with pytest.raises(VllmCacheError, match=r"too old.*0\.24\.0"):
        locate(text)


def test_half_written_release_is_named_and_fetched_again(tmp_path: Path, cache: Path) -> None:
    make_wheel(tmp_path / "wheels")
    fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels"))
    (cache / "0.28.0" / MARKER).unlink()
    with pytest.raises(VllmCacheError, match=r"half written.*ppharness vllm fetch"):
        locate("0.28.0")
    assert cached() == []
    assert fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels")).is_new
    assert locate("0.28.0").is_dir()


def test_locate_says_what_is_cached(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels"))
    with pytest.raises(VllmCacheError, match=r"cached: 0\.28\.0.*ppharness vllm fetch 0\.33\.0"):
        locate("0.33.0")


def test_wrong_metadata_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", metadata="0.27.0")
    with pytest.raises(VllmCacheError, match=r"version 0\.27\.0, not 0\.28\.0"):
        unpack(wheel, "0.28.0", tmp_path / "into")


def test_killed_fetch_is_cleaned_up_by_the_next(tmp_path: Path, cache: Path) -> None:
    """A SIGKILL while pip runs: no release appears, and the next fetch removes the rest."""
    make_wheel(tmp_path / "wheels")
    code = "import time\nfrom ppharness.vllm_cache import cache\n"
    code += "cache.download = lambda *a: time.sleep(60)\ncache.fetch('0.28.0')\n"
    process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
    deadline = time.monotonic() + 20
    while not list(cache.glob(".tmp-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(cache.glob(".tmp-*")) and cached() == []
    fetch("0.28.0", pip_args=from_folder(tmp_path / "wheels"))
    assert {entry.name for entry in cache.iterdir()} == {"0.28.0", ".lock"}


def test_no_torch_and_no_vllm_is_imported() -> None:
    code = "import sys, ppharness.vllm_cache as c; c.installed(); c.cached()\n"
    code += "assert not {'torch', 'vllm', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
