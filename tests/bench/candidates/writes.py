# SPDX-License-Identifier: Apache-2.0
"""Writes beside itself, to the home folder and to /tmp."""

import os
import tempfile
from pathlib import Path

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

for place in (Path(__file__).parent, Path.home(), Path(tempfile.gettempdir())):
    (place / "written_by_a_candidate").write_text("here")
os.system("touch /tmp/written_by_a_candidate_too")


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r in nl.affine_range(x.shape[0] // 128):
        nl.store(out[r * 128 : (r + 1) * 128, :], nl.load(x[r * 128 : (r + 1) * 128, :]))
    return out
