# SPDX-License-Identifier: Apache-2.0
"""Whole steps of scripts that nobody edited: operators on `neuron` tensors are recorded until a value is needed.

    from trnlab.frontends.torch import recording

    recording.flush()         # compute what was recorded, as xm.mark_step() does

What was recorded is one program. It runs when a value is asked for (`.item()`, printing, a copy to the host), at the
end of an optimizer's step, and before anything else reads or writes the device's memory. TRNLAB_EAGER says otherwise:
`operators` (each is a program, after the first that `torch.compile` makes) and `host` (the host computes them).
"""

from __future__ import annotations

import torch  # noqa: F401  (first: it loads the device, which is made of what is here)

from trnlab.frontends.torch.recording.choice import flush, forget, mode, register, using

__all__ = ["flush", "forget", "mode", "register", "using"]
