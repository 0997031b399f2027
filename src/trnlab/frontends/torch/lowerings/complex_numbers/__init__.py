# SPDX-License-Identifier: Apache-2.0
"""complex64 on a chip without complex numbers: float32 with one more dimension, of real and imaginary parts."""

from trnlab.frontends.torch.lowerings.complex_numbers import arithmetic, moving
from trnlab.frontends.torch.lowerings.complex_numbers.values import COMPLEX, ComplexValue, lowering_of, meets_complex

__all__ = ["COMPLEX", "ComplexValue", "arithmetic", "lowering_of", "meets_complex", "moving"]
