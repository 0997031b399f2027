# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.compiler.backends.neuron.dimensions: VNC(n), a launch grid's dimension over n cores, as nl.nc(n).

Source: its use in aws-neuron/neuronx-distributed (fbac349, modules/moe/blockwise.py).
"""

from __future__ import annotations

from trnlab.nki.neuronxcc.language import nc as VNC  # noqa: N812 (their name)

__all__ = ["VNC"]
