# SPDX-License-Identifier: Apache-2.0
"""The scripts: models of other packages in their published widths, random weights, by name.

Layers that are alike are fewer than published where an estimate would take minutes: what they would say is said by
the first.
"""

from tools.sweep.models import decoders, diffusion, encoders, pictures, senses, whole
from tools.sweep.script import SCRIPTS, TrainingScript

__all__ = ["SCRIPTS", "TrainingScript", "decoders", "diffusion", "encoders", "pictures", "senses", "whole"]
