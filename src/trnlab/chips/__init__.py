# SPDX-License-Identifier: Apache-2.0
"""The chips that are known, by name; nothing is chosen silently.

chip = chips.get("trn2")                      # one core of a generation
target = chips.target("trn1.2xlarge")         # an instance: chip, how many, price
faster = chips.with_figures(chip, {"dma.engine_bandwidth": 30e9})
"""

from trnlab.chips.catalog import NAMES, TARGETS, Target, get, target
from trnlab.chips.figures import assumed, figures, from_toml, to_toml, with_cores_at_work, with_figures
from trnlab.chips.settings import apply_settings
from trnlab.chips.spec import FEATURES, Chip, Confidence, Figure

__all__ = [
    "FEATURES",
    "NAMES",
    "TARGETS",
    "Chip",
    "Confidence",
    "Figure",
    "Target",
    "apply_settings",
    "assumed",
    "figures",
    "from_toml",
    "get",
    "target",
    "to_toml",
    "with_cores_at_work",
    "with_figures",
]
