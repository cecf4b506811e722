"""Align modes that break exactly one rule each, and keep all others."""

from __future__ import annotations

from plain_align import PlainAlignState

from ppharness.targets import BuiltinTarget


class NoResetAtCrossingState(PlainAlignState):
    """The count stays when the running block moves."""

    def enter(self, slot: int, column: int) -> None:
        count = int(self.num_accepted_tokens[slot])
        super().enter(slot, column)
        self.num_accepted_tokens[slot] = count


class NoBiasAtCrossingState(PlainAlignState):
    """The state after the first token moves on, not the one after the last accepted."""

    entering = False

    def enter(self, slot: int, column: int) -> None:
        self.entering = True
        super().enter(slot, column)
        self.entering = False

    def copy_conv(self, slot: int, source: int, column: int, bias: int) -> None:
        super().copy_conv(slot, source, column, 0 if self.entering else bias)

    def copy_temporal(self, slot: int, source: int, column: int, bias: int) -> None:
        super().copy_temporal(slot, source, column, 0 if self.entering else bias)


class ReadsWhatItWroteState(PlainAlignState):
    """The second state tensor reads the count that the first one reset (vllm#50432)."""

    tensors: tuple[str, ...] = ("conv", "temporal")

    def save(self, slot: int, computed: int) -> None:
        for tensor in ("conv", "temporal"):
            self.tensors = (tensor,)
            super().save(slot, computed)
        self.tensors = ("conv", "temporal")

    def copy_conv(self, slot: int, source: int, column: int, bias: int) -> None:
        if "conv" in self.tensors:
            super().copy_conv(slot, source, column, bias)

    def copy_temporal(self, slot: int, source: int, column: int, bias: int) -> None:
        if "temporal" in self.tensors:
            super().copy_temporal(slot, source, column, bias)


class NoResetAtBoundaryState(PlainAlignState):
    """The count stays where the saved state is the running one."""

    def save(self, slot: int, computed: int) -> None:
        count = int(self.num_accepted_tokens[slot])
        super().save(slot, computed)
        self.num_accepted_tokens[slot] = count


class NoResetAtCrossing(BuiltinTarget):
    mamba_state_class = NoResetAtCrossingState


class NoBiasAtCrossing(BuiltinTarget):
    mamba_state_class = NoBiasAtCrossingState


class ReadsWhatItWrote(BuiltinTarget):
    mamba_state_class = ReadsWhatItWroteState


class NoResetAtBoundary(BuiltinTarget):
    mamba_state_class = NoResetAtBoundaryState


class ExactNoResetAtBoundary(NoResetAtBoundary):
    exact = True
