# SPDX-License-Identifier: Apache-2.0
"""What is no stack of transformer blocks: residual networks, U-Nets, recommenders."""

from __future__ import annotations

from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.diffusion import unet
from trnlab.fleet.models.recommend import dlrm
from trnlab.fleet.models.residual import resnet

architecture("resnet")(resnet)
architecture("UNet2DConditionModel")(unet)
architecture("dlrm")(dlrm)
