# SPDX-License-Identifier: Apache-2.0
"""From a question to instances: how many of which serve so many requests a second in time, and for how much.

found = plan(Question(model("llama3-8b"), Request(2000, 300), 20.0, ("inf2.48xlarge", "trn2.3xlarge"), first=2.0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trnlab import chips
from trnlab.errors import UsageError
from trnlab.fleet.models.encoder_decoder import EncoderDecoderModel
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.serving.costs import ServingCosts
from trnlab.fleet.serving.graphs import supported
from trnlab.fleet.serving.offers import (
    STORED,
    GenerationRequest,
    Offer,
    RefusedOffer,
    ReplicaSettings,
    is_neuron,
    of_neuron,
    of_others,
)
from trnlab.fleet.serving.queue import POLICIES, PREFILL_FIRST, Array, RequestLatencies, serve
from trnlab.runtime.session import Session
from trnlab.stacks import OWN, Stack
from trnlab.units import SECONDS_PER_HOUR

REQUESTS = 4000  # of a simulation
EARLY = 0.1  # of them are left out: the engine begins empty
MOST = 1 << 16  # instances
MOST_BATCH = 1024  # requests that decode together: programs of more were never compiled here
MOST_RANKS = 1 << 12  # of a copy, which lies on one instance or UltraServer
QUANTILES = (50, 90, 99)


@dataclass(frozen=True)
class ServingQuestion:
    """What is to be served: a model, the requests, and how long they may take."""

    model: Model
    request: GenerationRequest
    rate: float  # requests a second
    targets: tuple[str, ...]
    first: float  # seconds within which 99 of 100 requests have their first token
    whole: float | None = None  # and their last, None where it does not matter
    policy: str = PREFILL_FIRST
    given: ReplicaSettings = field(default_factory=ReplicaSettings)
    requests: int = REQUESTS
    seed: int = 0
    # whose compiler makes Neuron's programs; what a host traces does not matter to compiled ones
    stack: Stack = OWN


@dataclass(frozen=True)
class ServingChoice:
    """An offer on so many instances, and what requests see of it. Seconds by quantile: to the first token, for each
    later one, to the last."""

    offer: Offer
    instances: int
    first: dict[int, float]
    each: dict[int, float]
    whole: dict[int, float]
    batch: float
    busy: float
    usd_per_hour: float | None
    usd_per_million: float | None  # tokens of answers
    usd_per_million_all: float | None  # of prompts, too


@dataclass(frozen=True)
class LateOffer:
    """An offer that is late however many instances there are: seconds of a request that is alone."""

    offer: Offer
    first: float
    whole: float


@dataclass
class ServingPlan:
    """Choices, cheapest first; those without price follow by instances."""

    question: ServingQuestion
    choices: list[ServingChoice] = field(default_factory=list)
    late: list[LateOffer] = field(default_factory=list)
    refused: list[RefusedOffer] = field(default_factory=list)
    compiled: int = 0

    @property
    def best(self) -> dict[str, ServingChoice]:
        """The first of each target."""
        found: dict[str, ServingChoice] = {}
        for choice in self.choices:
            found.setdefault(choice.offer.target, choice)
        return found


def plan(
    question: ServingQuestion, folder: Path | None = None, said: Callable[[str], None] = lambda _: None
) -> ServingPlan:
    """All ways of all targets. folder: where costs of programs are kept. said: is told how far it is.

    Raises UsageError for a model that has no programs (TRN167), amounts that cannot be (TRN168), and where nothing
    fits or is in time (TRN169).
    """
    found = searched(question, folder, said)
    if not found.choices:
        raise _nothing(found)
    return found


def of_stacks(
    question: ServingQuestion,
    stacks: Sequence[Stack],
    folder: Path | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> list[ServingPlan]:
    """The plan under each stack; instances of other vendors are in that of the first alone. Raises UsageError as
    `plan` where none of them has a choice."""
    found: list[ServingPlan] = []
    for stack in stacks:
        targets = question.targets if not found else tuple(filter(is_neuron, question.targets))
        said(f"as {stack.title} has it")
        found.append(searched(replace(question, stack=stack, targets=targets), folder, said))
    if not any(one.choices for one in found):
        raise _nothing(found[0])
    return found


def searched(
    question: ServingQuestion, folder: Path | None = None, said: Callable[[str], None] = lambda _: None
) -> ServingPlan:
    """As `plan`, also where there is no choice."""
    supported(question.model)
    _checked(question)
    found = ServingPlan(question)
    for name in question.targets:
        said(f"{name}: {len(found.choices)} ways so far, {found.compiled} programs compiled")
        for offer in _offers(name, question, folder, found):
            if isinstance(offer, RefusedOffer):
                found.refused.append(offer)
            else:
                _settle(found, offer)
    found.choices.sort(key=lambda c: (c.usd_per_hour is None, c.usd_per_hour or 0.0, c.instances, c.whole[99]))
    return found


def _checked(question: ServingQuestion) -> None:
    amounts = {
        "requests a second": question.rate,
        "seconds to the first token": question.first,
        "seconds to the last token": question.whole or 1.0,
        "tokens of a prompt": question.request.prompt,
        "tokens of an answer": question.request.output,
    }
    for name, value in amounts.items():
        if not 0 < value < math.inf:
            raise UsageError(
                f"nothing is served with {value:g} {name}",
                code="TRN168",
                limit="more than 0",
                got=value,
                remedy="give a positive number",
            )
    length, most = question.request.prompt + question.request.output, question.model.sequence
    if isinstance(question.model, EncoderDecoderModel):  # the answer has places of its own
        length = max(question.request.prompt, question.request.output)
    if length > most:
        raise UsageError(
            f"{question.model.name} has no places for {length} tokens",
            code="TRN168",
            limit=f"{most} tokens",
            got=length,
            remedy="shorten prompt or answer, take a model of longer contexts, or a config.json whose "
            "max_position_embeddings is what its positions reach",
        )
    _check_given(question.given)
    if question.policy not in POLICIES:
        raise UsageError(
            f"unknown policy {question.policy!r}",
            code="TRN168",
            limit=", ".join(POLICIES),
            got=question.policy,
            remedy="choose one of those above",
        )


def _check_given(given: ReplicaSettings) -> None:
    for name, value, most in (("--batch", given.batch, MOST_BATCH), ("--ranks", given.ranks, MOST_RANKS)):
        if value is not None and not 1 <= value <= most:
            raise UsageError(
                f"{name} {value} is out of range",
                code="TRN168",
                limit=f"1 to {most}",
                got=value,
                remedy="give a number in that range, or leave it out and have it chosen",
            )
    if given.weights not in STORED:
        raise UsageError(
            f"unknown format of weights {given.weights!r}",
            code="TRN168",
            limit=", ".join(STORED),
            got=given.weights,
            remedy="choose one of those above",
        )


def _offers(
    name: str, question: ServingQuestion, folder: Path | None, found: ServingPlan
) -> list[Offer | RefusedOffer]:
    if not is_neuron(name):
        return list(of_others(name, question.model, question.request, question.policy, question.given))
    costs = ServingCosts(Session(chips.target(name), stack=question.stack), folder)
    offers = list(of_neuron(costs, question.model, question.request, question.policy, question.given))
    found.compiled += costs.compiled
    return offers


def _settle(found: ServingPlan, offer: Offer) -> None:
    """How many instances an offer takes."""
    question, engine = found.question, offer.engine
    alone = engine.prefill + (question.request.output - 1) * engine.step(1)
    if engine.prefill > question.first or alone > (question.whole or math.inf):
        found.late.append(LateOffer(offer, engine.prefill, alone))
        return
    least = int(question.rate / (offer.copies * engine.capacity(question.request.output))) + 1
    count = _fewest(lambda n: _in_time(question, simulated(question, offer, n)), least)
    if count is None:
        found.late.append(LateOffer(offer, engine.prefill, alone))
        return
    found.choices.append(_choice(question, offer, count))


def _fewest(enough: Callable[[int], bool], least: int) -> int | None:
    """The smallest number from `least` on that is enough; None where none of any size is."""
    low, high = least - 1, least
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def simulated(question: ServingQuestion, offer: Offer, count: int) -> RequestLatencies:
    """What one copy sees: requests go to one at random, so that each has its share of the rate."""
    rate = question.rate / (count * offer.copies)
    return serve(offer.engine, rate, question.request.output, question.requests, question.seed)


def _in_time(question: ServingQuestion, seen: RequestLatencies) -> bool:
    bounds = ((question.first, seen.first), (question.whole, seen.whole))
    return all(most is None or _quantile(values, 99) <= most for most, values in bounds)


def _quantile(values: Array, quantile: int) -> float:
    return float(np.percentile(values[int(EARLY * len(values)) :], quantile))


def _choice(question: ServingQuestion, offer: Offer, count: int) -> ServingChoice:
    seen = simulated(question, offer, count)
    first, each, whole = ({q: _quantile(v, q) for q in QUANTILES} for v in (seen.first, seen.each, seen.whole))
    usd = offer.price.usd(count) if offer.price is not None else None
    answers = question.rate * SECONDS_PER_HOUR * question.request.output / 1e6
    every = answers * (question.request.output + question.request.prompt) / question.request.output
    return ServingChoice(
        offer,
        count,
        first,
        each,
        whole,
        seen.batch,
        seen.busy,
        usd,
        usd / answers if usd is not None else None,
        usd / every if usd is not None else None,
    )


def _nothing(found: ServingPlan) -> UsageError:
    question = found.question
    if found.late:
        nearest = min(found.late, key=lambda late: late.whole if question.whole else late.first)
        got = (
            f"at best {nearest.first:.3g} s to the first token and {nearest.whole:.3g} s to the last, alone, on "
            f"{nearest.offer.target} with {nearest.offer.tensor} ranks for a copy"
        )
        remedy = "allow more time, shorten prompts or answers, or take a target with more bandwidth in a tensor group"
    else:
        got = "; ".join(f"{r.target}, {r.tensor} ranks: {r.why}" for r in found.refused[:6])
        remedy = "take instances with more memory or more chips, a smaller model, or what the reasons above name"
    limit = f"{question.first:g} s to the first token" + (
        f" and {question.whole:g} s to the last" if question.whole else ""
    )
    return UsageError(
        f"nothing that was asked for serves {question.model.name} in time"
        if found.late
        else f"{question.model.name} is served by none of the targets",
        code="TRN169",
        limit=limit,
        got=got,
        remedy=remedy,
    )
