# SPDX-License-Identifier: Apache-2.0
"""The models: code of their own packages, tiny sizes, random weights, by name."""

from tools.zoo.models import diffusion, handwritten, language, science, vision
from tools.zoo.models.base import MODELS, Subject

__all__ = ["MODELS", "Subject", "diffusion", "handwritten", "language", "science", "vision"]
