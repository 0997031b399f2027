# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a training script.

    from trnlab import checkpoint

    run = checkpoint.resume(model=model, optimizer=optimizer)
    for x, y in run.batches(loader, epochs=3):
        loss = step(x, y)
        run.stepped()

See `docs/checkpoints.md`.
"""

from trnlab.frontends.torch.checkpoints import Run, load, resume

__all__ = ["Run", "load", "resume"]
