# SPDX-License-Identifier: Apache-2.0
"""What a batch has of samples or of tokens, by the shapes of its arrays."""

import pytest
import torch

from trnlab.frontends.common.engine import counted
from trnlab.frontends.torch.check.recorded import BatchReads


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([((8, 512), "int32"), ((8,), "int32")], (8, "samples")),
        ([((8, 512), "int32"), ((8, 512), "int32")], (4096, "tokens")),
        ([((8, 224, 224, 3), "float32"), ((8, 1), "int32")], (8, "samples")),  # as Keras has labels
        ([((8, 512, 1), "int32")], (4096, "tokens")),
        ([((8, 10), "float32"), ((8, 3), "float32")], (8, "samples")),
        ([((), "int32")], (0, "")),
        ([((2, 3, 512, 512), "float32"), ((2, 512, 512), "int32")], (2, "samples")),  # classes of pixels
        ([((2, 512, 512, 3), "float32"), ((2, 512, 512), "int32")], (2, "samples")),
        ([((2, 512, 512, 3), "float32"), ((2, 512, 512, 1), "int32")], (2, "samples")),
        ([((64, 32, 32, 3), "uint8"), ((64, 1), "uint8")], (64, "samples")),  # as Keras has CIFAR-10
        ([((64, 32, 32, 3), "uint8"), ((64,), "int64")], (64, "samples")),
        ([((2, 3, 480, 480), "float32"), ((5,), "int64"), ((5, 4), "float32")], (2, "samples")),  # objects in them
        ([((3, 3, 64, 64), "float32"), ((8, 224, 224, 3), "float32"), ((8,), "int32")], (8, "samples")),  # a kernel
        ([((2, 8, 64), "float32"), ((2, 64), "int32")], (128, "tokens")),
        ([((2, 3, 224, 224), "float32"), ((2, 4, 64), "int32")], (512, "tokens")),  # four captions each
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
        ([((2, 3, 64, 48), torch.float32), ((2, 64, 48), torch.int64)], (2, "samples")),
    ],
)
def test_scalars_are_no_batch(read, found):
    assert BatchReads(dict(enumerate(read))).counted(range(len(read))) == found
