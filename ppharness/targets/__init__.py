"""The implementations under test."""

from .builtin import (
    BuiltinMambaState,
    BuiltinRequestSlots,
    BuiltinTarget,
    BuiltinTokenRelay,
)
from .interface import InputBatch, SampledOutputs, TargetConfig

__all__ = [
    "BuiltinMambaState",
    "BuiltinRequestSlots",
    "BuiltinTarget",
    "BuiltinTokenRelay",
    "InputBatch",
    "SampledOutputs",
    "TargetConfig",
]
