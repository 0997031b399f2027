# SPDX-License-Identifier: Apache-2.0
"""Data sets in a training script, in a folder or on S3.

    from trnlab import checkpoint, data

    loader = data.loader("s3://team/tokens", batch=8, sequence=1024, dtype="uint16")
    run = checkpoint.resume(model=model, optimizer=optimizer)
    for x, y in run.batches(loader, epochs=3):
        loss = step(x, y)
        run.stepped()

See `docs/data.md`.
"""

from trnlab.frontends.torch.data import Loader, loader, write

__all__ = ["Loader", "loader", "write"]
