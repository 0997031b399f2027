# SPDX-License-Identifier: Apache-2.0
"""torch_xla.experimental and torch_xla._internal: what libraries ask about TPUs."""

from trnlab.frontends.torch.xla import runtime as pjrt
from trnlab.frontends.torch.xla import tpu
from trnlab.frontends.torch.xla.names import refusing

__all__ = ["pjrt", "tpu"]
__getattr__ = refusing("torch_xla.experimental", "there is what libraries ask about TPUs: tpu and pjrt")
