# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch.elastic`: jobs that grow and shrink are another launcher's here."""

from __future__ import annotations

from typing import Any

from trnlab.errors import UsageError


def _refused(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            f"hvd.elastic.{name} waits for Horovod's launcher, which starts no ranks here",
            code="TRN280",
            remedy="start the script with `trnlab run --ranks MIN:MAX --max-restarts N`, or torchrun, and keep its "
            "state in trnlab.frontends.torch.checkpoints: ranks that are lost are started again from there",
        )

    return refuse


run, State, ObjectState, TorchState, ElasticSampler = map(
    _refused, ("run", "State", "ObjectState", "TorchState", "ElasticSampler")
)
