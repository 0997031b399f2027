# SPDX-License-Identifier: Apache-2.0
"""Steps of recipes, captured when a plan asks for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from trnlab import chips
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.models.captured import Captured
from trnlab.fleet.models.unpartitioned import Whole
from trnlab.frontends.torch.check.planned import captured
from trnlab.frontends.torch.check.ranks import one_of
from trnlab.porting.job import Unheard
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session

TARGET = "trn1.32xlarge"  # a step is the same for all targets: its programs are not


@dataclass
class Steps:
    """Steps of a model that has a recipe, in a precision: a `fleet.ranks.Source`."""

    model: Whole
    precision: str = "bf16"
    _known: dict[tuple[int, bool], Captured] = field(default_factory=dict)

    def step(self, microbatch: int, again: bool) -> Captured:
        """The step of so many samples, with activations made again or kept. Raises UsageError (TRN193) where the
        recipe makes no step of them."""
        key = microbatch, again
        if key not in self._known:
            self._known[key] = self._captured(microbatch, again)
        return self._known[key]

    def _captured(self, microbatch: int, again: bool) -> Captured:
        recipe = self.model.recipe
        assert recipe is not None, self.model.name
        torch.empty(0, device="neuron")  # before anything is followed
        session = Session(chips.target(TARGET), precision=self.precision, communicator=Unheard(0, 1))
        script = Script(
            Path(__file__).with_name(f"{recipe.script}.py"), recipe.words(microbatch, again, self.precision)
        )
        with one_of(Cluster(session.target, 1), 0, 1):
            found = captured(script, session)
        return replace(found, name=self.model.name, samples=microbatch, units=1, source=self.model.source)
