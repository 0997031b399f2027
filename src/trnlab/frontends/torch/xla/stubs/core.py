# SPDX-License-Identifier: Apache-2.0
"""torch_xla.core, .utils, .test and packages of torch_neuronx: modules alone."""

from __future__ import annotations

from trnlab.frontends.torch.xla.names import refusing

__getattr__ = refusing("torch_xla", "import one of its modules, such as torch_xla.core.xla_model")
