# SPDX-License-Identifier: Apache-2.0
"""What a batch has of samples or of tokens, by the shapes of its arrays."""

import pytest

from trnlab.frontends.common.engine import counted


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
