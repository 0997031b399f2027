# SPDX-License-Identifier: Apache-2.0
"""What `trnlab check` says of a script that asks for CUDA."""

from __future__ import annotations

import sys

from trnlab.findings import WARNING
from trnlab.frontends.torch.findings.survey import Survey


def ended(survey: Survey) -> None:
    """A script has come to its end: note the lines that ask for CUDA, where the chip was taken for it (TRN283), which
    it no longer is."""
    stand_in = sys.modules.get("trnlab.frontends.torch.cuda.stand_in")
    if stand_in is None:
        return
    for place in stand_in.asked if stand_in.used() else ():
        survey.note(
            "TRN283",
            "the script asks for CUDA, for which the chip was taken here",
            place,
            severity=WARNING,
            why="on an instance torch.cuda.is_available() is False, and a device called cuda is an error",
            do='write "neuron" for the device and its backend, torch.neuron for torch.cuda, or ask '
            "torch.accelerator.current_accelerator(), which is right on both",
            subject="cuda",
        )
    stand_in.uninstall()
