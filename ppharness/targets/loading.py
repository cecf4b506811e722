"""From what a user names to a target."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..world.errors import text_of
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
    return _Loaded(name, _instance(name, _class(place, class_name)))


class _Loaded:
    """A user's target under the name that was asked for.

    The target itself stays as it is: its attributes may well be read-only.
    """

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        self._target = target
        self._defaults = BuiltinTarget()
        version = _reading(name, "version", lambda: getattr(target, "version", None))
        self.version = None if version is None else str(version)
        self.exact: bool = _reading(name, "exact", lambda: _states_exact(target))

    def __getattr__(self, attribute: str) -> Any:
        holder = self._target if hasattr(self._target, attribute) else self._defaults
        return getattr(holder, attribute)


def _states_exact(target: Any) -> bool:
    """The built-in target's own promise does not carry over to what a user changed."""
    places = [getattr(target, "__dict__", {})]
    places += [vars(c) for c in type(target).__mro__ if c is not BuiltinTarget]
    return any("exact" in place for place in places) and bool(target.exact)


def _class(place: str, class_name: str) -> type:
    module = _import_file(place) if place.endswith(".py") else _import_module(place)
    found = getattr(module, class_name, None)
    if isinstance(found, type):
        return found
    if hasattr(module, class_name):
        what = (
            "a function"
            if inspect.isroutine(found)
            else f"an object of type {type(found).__name__}"
        )
        raise TargetError(f"--target: {class_name!r} in {place} is {what}, allowed: a class")
    classes = [k for k, v in vars(module).items() if isinstance(v, type)]
    close = difflib.get_close_matches(class_name, classes, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise TargetError(f"--target: {place} has no class {class_name!r}{hint}")


@functools.cache
def _absolute(path: str) -> Path:
    """As it was first meant here: a target may change the folder while it is imported."""
    return Path(path).absolute()


def _import_file(place: str) -> Any:
    path = _absolute(place)
    if not path.is_file():
        raise TargetError(f"--target: no file {place}")
    name = f"ppharness_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"--target: {place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loader = spec.loader
    _guarded(f"{place} does not import", name, lambda: loader.exec_module(module))
    return module


def _import_module(name: str) -> Any:
    folder = os.getcwd()  # not "", which would follow a target to another folder
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _guarded(f"{name} does not import", name, lambda: importlib.import_module(name))


def _instance(name: str, cls: type) -> Any:
    missing = [f for f in _FACTORIES[:2] if not callable(getattr(cls, f, None))]
    if missing:
        raise TargetError(
            f"--target: class {cls.__name__} has no {' and no '.join(missing)}; "
            "a target subclasses ppharness.targets.BuiltinTarget or has these factories"
        )
    return _guarded(f"{name} cannot be made", cls.__module__, cls)


def _reading(name: str, attribute: str, read: Callable[[], Any]) -> Any:
    return _guarded(f"{attribute!r} of {name} cannot be read", None, read)


def _guarded(failed: str, module: str | None, run: Callable[[], Any]) -> Any:
    """What `run` returns; where it raises, the message names the last line in `module`."""
    try:
        return run()
    except (Exception, SystemExit) as error:
        text, where = text_of(error), _place_of(error, module)
        if isinstance(error, SyntaxError) and where is None and error.filename:
            text, where = error.msg, f"{error.filename}:{error.lineno}"
        at = f" ({where})" if where else ""
        raise TargetError(f"--target: {failed}: {type(error).__name__}: {text}{at}") from error


def _place_of(error: BaseException, module: str | None) -> str | None:
    """The innermost line of an error that is the user's, or else anybody's."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") not in (__name__, "importlib")
        and not frame.f_code.co_filename.startswith("<frozen")
    ]
    root = (module or "").partition(".")[0]
    own = [
        (frame, line)
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).partition(".")[0] == root
    ]
    for frame, line in reversed(own or frames):
        return f"{frame.f_code.co_filename}:{line}"
    return None
