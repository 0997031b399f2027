# SPDX-License-Identifier: Apache-2.0
"""The models: code of their own packages, tiny sizes, random weights, by name."""

from tools.zoo.models import (
    decoders,
    detection,
    diffusion,
    encoders,
    handwritten,
    language,
    science,
    senses,
    timm_models,
    video,
    vision,
)
from tools.zoo.models.base import MODELS, Subject

__all__ = [
    "MODELS",
    "Subject",
    "decoders",
    "detection",
    "diffusion",
    "encoders",
    "handwritten",
    "language",
    "science",
    "senses",
    "timm_models",
    "video",
    "vision",
]
