# SPDX-License-Identifier: Apache-2.0
"""torch_xla.core: a package of one module."""

from __future__ import annotations

from trnlab.frontends.torch.xla import model as xla_model

__all__ = ["xla_model"]
