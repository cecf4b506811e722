"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from test_report_samples import full_report, passed, run_report

from ppharness.report import files
from ppharness.report.files import ReportFiles, check_writable, write_atomically, write_reports


def all_files(folder: Path) -> ReportFiles:
    return ReportFiles(
        json=folder / "r.json",
        junit=folder / "r.xml",
        markdown=str(folder / "r.md"),
        html=folder / "r.html",
        trace=folder / "r.trace",
    )


def test_every_file_is_written(tmp_path: Path) -> None:
    targets = all_files(tmp_path)
    assert check_writable(targets) == []
    assert list(tmp_path.iterdir()) == []
    assert write_reports(full_report(), targets) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "r.html", "r.json", "r.md", "r.trace", "r.xml",
    ]  # fmt: skip
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 3
    assert write_reports(full_report(), ReportFiles()) == []


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "r.json").write_text("old")
    monkeypatch.setattr(os, broken, full)
    faults = write_reports(run_report(passed()), ReportFiles(json=tmp_path / "r.json"))
    assert len(faults) == 1
    assert faults[0].startswith("--json ") and "No space left on device" in faults[0]
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    assert (tmp_path / "r.json").read_text() == "old"


def test_interrupted_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "r.json", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def denied(path: object, flags: int, *args: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", denied)
    targets = ReportFiles(html=tmp_path / "r.html", trace=tmp_path / "r.trace")
    for faults in (check_writable(targets), write_reports(run_report(passed()), targets)):
        assert [f.split()[0] for f in faults] == ["--html", "--trace"]
        assert all("Permission denied" in fault for fault in faults)
    assert list(tmp_path.iterdir()) == []


def test_one_bad_file_does_not_lose_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(report: object) -> str:
        raise RuntimeError("oops")

    monkeypatch.setitem(files._RENDERERS, "junit", fails)
    targets = ReportFiles(
        json=tmp_path / "no" / "r.json", junit=tmp_path / "r.xml", markdown=tmp_path / "r.md"
    )
    faults = write_reports(run_report(passed()), targets)
    assert len(faults) == 2
    assert "No such file" in faults[0] and "RuntimeError: oops" in faults[1]
    assert [p.name for p in tmp_path.iterdir()] == ["r.md"]


def test_check_writable_names_each_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    targets = ReportFiles(
        json=tmp_path,
        junit=tmp_path / "no" / "r.xml",
        markdown=tmp_path / "file" / "r.md",
        html="",
        trace="a\0b",
    )
    faults = check_writable(targets)
    assert [f.split()[0] for f in faults] == [
        "--json", "--junit", "--markdown", "--html", "--trace",
    ]  # fmt: skip
    assert "is a folder" in faults[0]
    assert "does not exist" in faults[1]
    assert "empty path" in faults[3]


def test_two_options_with_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r")
    targets = ReportFiles(json=tmp_path / "r", junit=tmp_path / "x" / ".." / "r", html="/dev/null")
    (tmp_path / "x").mkdir()
    (fault,) = check_writable(targets)
    assert "--junit" in fault and "--json names the same file" in fault
    (fault,) = check_writable(ReportFiles(json=tmp_path / "r", trace=tmp_path / "link"))
    assert "--trace" in fault
    assert check_writable(ReportFiles(json="/dev/null", junit="/dev/null")) == []


def test_links_modes_and_devices(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_atomically(link, "new \ud800")
    assert link.is_symlink() and real.read_text() == "new \\ud800"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    write_atomically("/dev/null", "gone")
    assert not Path("/dev/null").is_file()
    fresh = tmp_path / ("n" * 250)
    write_atomically(fresh, "x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~umask


def test_writers_at_the_same_time_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "r"
    texts = [str(number) * 200_000 for number in range(4)]
    threads = [
        threading.Thread(target=lambda t=text: [write_atomically(path, t) for _ in range(10)])
        for text in texts
    ]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(path.read_text())
    for thread in threads:
        thread.join()
    assert (seen | {path.read_text()}) <= set(texts)
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
