# SPDX-License-Identifier: Apache-2.0
"""A script that draws without a seed, with one, as its own main module: seeded.py SCRIPT [ARGUMENT ...]."""

import os
import random
import runpy
import sys
from pathlib import Path

import numpy as np

random.seed(0)
np.random.seed(0)
uses = Path(sys.argv[1]).read_text() + os.environ.get("KERAS_BACKEND", "")
if "torch" in uses:
    import torch

    torch.manual_seed(0)
if "tensorflow" in uses:
    import tensorflow

    tensorflow.random.set_seed(0)
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
