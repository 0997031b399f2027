# SPDX-License-Identifier: Apache-2.0
"""What stages of `torch.distributed.pipelining` say to each other, and the classes that all of them build on."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, schedules, stage
from torch.distributed.pipelining._utils import InferenceMode, _derive_grad_metas, _StageBackwardMeta

from trnlab.frontends.torch.pytorch import releases

__all__ = ["Schedule", "Stage", "agreeing_alone", "shapes_of_gradients"]

Stage: Any = stage._PipelineStageBase
Schedule: Any = schedules._PipelineSchedule


def shapes_of_gradients(outputs: Any) -> Any:
    """What a stage says of the gradients of these outputs."""
    return _StageBackwardMeta(backward_metas=_derive_grad_metas(outputs))


def agreeing_alone() -> list[tuple[Any, str, Any]]:
    """(class, name, method): with these in place the stages of a rank agree, without asking other ranks, on whether
    shapes have to be found by running."""
    if releases.found() >= (2, 15):  # one collective for all stages of a rank
        return [(Schedule, "_initialize_pipeline_distributed_state", _agreed)]
    # A vote that goes forward from stage to stage, and its result, which goes back.
    return [(PipelineStage, "_warmup_forward_vote", _vote), (PipelineStage, "_warmup_backward_result", _result)]


def _agreed(schedule: Any, stages: list[Any], has_backward: bool, *_: Any, **__: Any) -> None:
    own = [each for each in stages if isinstance(each, PipelineStage)]
    asks = any(InferenceMode.needs_dynamic(each._user_meta, has_backward) for each in own)
    for each in own:
        each._inference_mode = InferenceMode.DYNAMIC if asks else InferenceMode.STATIC


def _vote(each: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
    mine = 0 if InferenceMode.needs_dynamic(each._user_meta, has_backward) else 1
    return torch.tensor([mine if received_acc is None else mine * int(received_acc)], dtype=torch.int32)


def _result(each: Any, received_result: Any = None) -> Any:
    return _vote(each, True) if received_result is None else received_result
