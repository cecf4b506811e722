"""The real code of a vLLM release as a target.

`VllmTarget` drives the whole path of a pipeline rank: the release's Mamba state
module, its `PPHandler`, and the kernels and request state of its model runner.
`VllmStateTarget` drives only the state module, with our own relay.  Importing this
package imports nothing of vLLM; making a target does.
"""

from .errors import TargetError, TargetSkip
from .release import load_release
from .target import VllmStateTarget, VllmTarget, load_vllm_target

__all__ = [
    "TargetError",
    "TargetSkip",
    "VllmStateTarget",
    "VllmTarget",
    "load_release",
    "load_vllm_target",
]
