# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.language.constants: sizes that kernels ask for.

Source: the kernels of aws-neuron/nki-samples (3a99c91) that import it.
"""

from __future__ import annotations

from typing import Any

from trnlab.lang.formats import format_of
from trnlab.nki.language import tile_size

sbuf_min_align, psum_min_align = tile_size.sbuf_min_align, tile_size.psum_min_align


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element."""
    return format_of(dtype).itemsize
