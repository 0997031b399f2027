# SPDX-License-Identifier: Apache-2.0
"""What checkpoints of a run would cost on the simulated instances, in simulated seconds: the planner's figures.

Figures and their sources are those of `stores` and `reliability`. A folder is taken for a file system of FSx for
Lustre: which class it is nobody says. Latencies of requests are not in it: none is published.
"""

from __future__ import annotations

from trnlab.fleet.reliability import Reliability

FOLDER = "lustre-250"


def sentence(place: str, nbytes: int, chips: int, per_instance: int) -> str:
    """One line of a checkpoint of so many bytes on so many chips. Raises UsageError (TRN165) for what cannot be."""
    kind = "s3" if place.startswith(("s3://", "s3a://")) else FOLDER
    found = Reliability(store=kind).goodput(chips, nbytes, per_instance)
    reading = found.phases["reading the checkpoint"]
    return (
        f"simulated: on {chips} chips and {kind} a checkpoint holds training up for {found.stall:.3g} s and counts "
        f"{found.upload:.3g} s later; going on reads it for {reading:.3g} s; least is lost with one every "
        f"{found.interval / 60:.3g} min, at one failure in {found.between / 3600:.3g} h"
    )
