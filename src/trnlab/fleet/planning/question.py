# SPDX-License-Identifier: Apache-2.0
"""What a plan is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trnlab.chips.catalog import Target
from trnlab.chips.prices import told
from trnlab.errors import UsageError
from trnlab.fleet.models.captured import CapturedWork
from trnlab.fleet.models.recommend import Recommender
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.reliability.goodput import Reliability
from trnlab.fleet.search.shard_costs import Training
from trnlab.runtime.session import Session
from trnlab.stacks import OWN as OWN_STACK
from trnlab.stacks import Stack

BATCH = 1024
FORMS = {"bf16": "bfloat16", "fp32": "float32"}  # of a precision: what weights and activations are kept in


@dataclass(frozen=True)
class Question:
    """What is asked for.

    Raises UsageError (TRN178) for what contradicts itself, TRN577 for a model of which nothing says what it computes.
    """

    model: Model
    tokens: float
    targets: tuple[str, ...]
    instances: tuple[int, int] = (1, 16)  # fewest and most of each target
    deadline: float | None = None  # seconds, None without one
    batch: int = BATCH  # sequences in a step
    sequence: int = 0  # tokens of each; 0 for what the model is usually trained on
    precision: str = "bf16"
    fixed: Mapping[str, int] = field(default_factory=dict)  # columns of `Layouts` that are given
    reliability: Reliability = field(default_factory=Reliability)
    # a script's step that is divided by data alone, where nothing is known of `model` but that
    captured: CapturedWork | None = None
    spelled: tuple[str, ...] = ()
    epoch: float = 0.0
    stack: Stack = OWN_STACK
    prices: Mapping[str, float] = field(default_factory=dict)  # dollars an hour of instances that cost otherwise

    def __post_init__(self) -> None:
        if self.precision not in FORMS:
            raise _contradiction(
                f"plans are made in {' and '.join(FORMS)}",
                ", ".join(FORMS),
                self.precision,
                "`trnlab precision SCRIPT` compares the others for a script",
            )
        positions, model = self.training.sequence, self.model
        if model.positions and positions > model.positions:
            raise _contradiction(
                f"{model.name} has {model.positions} learned positions",
                model.positions,
                positions,
                "take a shorter --sequence, or a model with more positions",
            )
        if self.tokens < self.training.tokens:
            raise _contradiction(
                f"the {model.counted} do not fill one step",
                f"{self.training.tokens:,} in a step",
                f"{self.tokens:,.0f}",
                "take a smaller --global-batch or --sequence, or more --tokens or --samples",
            )
        if isinstance(model, UnpartitionedModel) and not isinstance(model, Recommender) and self.source is None:
            raise _no_step(model)
        if not self.targets:
            raise _contradiction("no target was named", "a target", "none", "name one: --target trn2.48xlarge")

    @property
    def source(self) -> CapturedWork | UnpartitionedModel | None:
        """Where steps come from that are divided by data alone; None for other models."""
        model = self.model
        return self.captured or (
            model if isinstance(model, UnpartitionedModel) and model.network is not None else None
        )

    @property
    def pinned(self) -> Mapping[str, int]:
        """Columns of `Layouts` that are given, by whoever asks or by the stack."""
        return {**self.stack.layout, **self.fixed}

    def priced(self, target: Target) -> Target:
        """A target with its price as it was told, where it was."""
        usd = self.prices.get(target.name)
        return target if usd is None else replace(target, told=told(target.name, usd))

    def session(self, target: Target) -> Session:
        """In which programs are compiled for a target."""
        return Session(target, precision=self.precision, stack=self.stack)

    @property
    def training(self) -> Training:
        """What a step has to do."""
        return Training(self.model, self.batch, self.sequence or self.model.sequence, FORMS[self.precision])


def _no_step(model: Model) -> UsageError:
    return UsageError(
        f"{model.name} is no stack of blocks, and nothing says what its step is",
        code="TRN577",
        got="no step",
        limit="captured=: a step",
        remedy="give the step that a script was captured as: Question(..., captured=step)",
    )


def _contradiction(what: str, limit: object, got: object, remedy: str) -> UsageError:
    return UsageError(what, code="TRN178", limit=limit, got=got, remedy=remedy)
