"""From what a user names to a target."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .builtin import BuiltinTarget
from .index_fill import IndexFillInt64Target, IndexFillTarget
from .interface import Target, TargetError

_BUILTIN: dict[str, type[BuiltinTarget]] = {
    t.name: t for t in (BuiltinTarget, IndexFillTarget, IndexFillInt64Target)
}
_FACTORIES = ("make_mamba_state", "make_token_relay", "make_request_slots")


def load_target(name: str) -> Target:
    """``builtin``, ``index-fill``, ``vllm``, ``vllm@0.28.0``, ``module:Class``, ``file.py:Class``.

    Raises:
        TargetError: it does not import, has no such class, or is no target.
    """
    if name in _BUILTIN:
        return _BUILTIN[name]()
    if name.split("@")[0] in ("vllm", "vllm-state"):
        from .vllm import load_vllm_target

        return load_vllm_target(name)
    if ":" not in name:
        close = difflib.get_close_matches(name, [*_BUILTIN, "vllm", "vllm-state"], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TargetError(
            f"--target: found {name!r}, allowed: {', '.join(_BUILTIN)}, vllm, vllm@VERSION, "
            f"vllm-state, package.module:Class or path/to/file.py:Class{hint}"
        )
    place, _, class_name = name.rpartition(":")
    return _instance(name, _class(place, class_name))


def _class(place: str, class_name: str) -> type:
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [k for k, v in vars(module).items() if isinstance(v, type)]
        close = difflib.get_close_matches(class_name, classes, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TargetError(f"--target: {place} has no class {class_name!r}{hint}")
    return found


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise TargetError(f"--target: no file {path}")
    name = f"ppharness_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"--target: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _guarded(str(path), lambda: spec.loader.exec_module(module)) or module


def _import_module(name: str) -> Any:
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    return _guarded(name, lambda: importlib.import_module(name))


def _guarded(name: str, run: Any) -> Any:
    try:
        return run()
    except (Exception, SystemExit) as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})" if last else ""
        raise TargetError(
            f"--target: {name} does not import: {type(error).__name__}: {error}{where}"
        ) from error


def _instance(name: str, cls: type) -> Target:
    missing = [f for f in _FACTORIES[:2] if not callable(getattr(cls, f, None))]
    if missing:
        raise TargetError(
            f"--target: class {cls.__name__} has no {' and no '.join(missing)}; "
            "a target subclasses ppharness.targets.BuiltinTarget or has these factories"
        )
    target: Any = _guarded(name, cls)
    defaults = BuiltinTarget()
    for factory in ("make_request_slots", "idx_mapping_dtype"):
        if not hasattr(target, factory):
            setattr(target, factory, getattr(defaults, factory))
    if not hasattr(target, "version"):
        target.version = None
    # The built-in target's own promise does not carry over to what a user changed.
    own = [vars(c) for c in cls.__mro__ if c is not BuiltinTarget]
    target.exact = next((bool(body["exact"]) for body in own if "exact" in body), False)
    target.name = name
    return target
