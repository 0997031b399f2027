# SPDX-License-Identifier: Apache-2.0
"""What a batch has of samples or of tokens, by the shapes of its arrays."""

import pytest
import torch

from trnlab.frontends.common.engine import counted
from trnlab.frontends.torch.check.recorded import BatchReads


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([((8, 512), True), ((8,), True)], (8, "samples")),
        ([((8, 512), True), ((8, 512), True)], (4096, "tokens")),
        ([((8, 224, 224, 3), False), ((8, 1), True)], (8, "samples")),  # as Keras has labels
        ([((8, 512, 1), True)], (4096, "tokens")),
        ([((8, 10), False), ((8, 3), False)], (8, "samples")),
        ([((), True)], (0, "")),
    ],
)
def test_units_of_a_batch(shapes, found):
    assert counted(shapes) == found


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (
            [((), torch.float32), ((8, 3), torch.float32)],
            (8, "samples"),
        ),  # DETR's read a scalar first
        ([((8, 512), torch.int64), ((), torch.int64)], (4096, "tokens")),
        ([((), torch.float32)], (0, "")),
    ],
)
def test_scalars_are_no_batch(read, found):
    assert BatchReads(dict(enumerate(read))).counted() == found
