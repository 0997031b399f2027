# SPDX-License-Identifier: Apache-2.0
"""What the prefill of a prompt costs: in one program, or by chunks where it is long.

A program of all tokens of a long prompt takes minutes to compile, and its activations much of the memory. So a prompt
beyond WHOLE tokens comes in chunks of CHUNK, as NxD Inference can do it (chunked prefill): each attends to the cache
of those before it and to itself. Time of a chunk grows by a line with the places before it. The line goes through two
chunks that are compiled, the second one's and one FAR along, or the last one where that comes before.

An encoder reads all of a prompt at once; its decoder begins with a token that is always the same.
"""

from __future__ import annotations

from dataclasses import replace

from trnlab.fleet.layers.sizes import Experts
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.serving.costs import ServingCost, ServingCosts
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.fleet.serving.mixtures import met

WHOLE = 8192  # tokens of a prompt that one program prefills
CHUNK = 2048
FAR = 15 * CHUNK  # places before the chunk that the line goes through, beyond which times are extrapolated


def mixtures(model: Model) -> list[Experts]:
    """The networks of experts of its stacks."""
    return [block.network for _, block in model.stacks if isinstance(block.network, Experts)]


def of_prompt(model: Model, share: ServingProgram) -> ServingProgram:
    """A rank's program of a prefill: experts that the prompt's tokens meet, with room for the fullest of them."""
    networks = mixtures(model)
    if not networks:
        return share
    read, room = met(networks[0].count, networks[0].active, share.length, share.expert)
    return replace(share, read=read, room=room)


def prefill_cost(costs: ServingCosts, model: Model, share: ServingProgram, tokens: int) -> ServingCost:
    """The cost of a prompt of so many tokens, padded, up to the answer's first token. share: of a decoding step."""
    if share.memory:
        parts = [costs.of(kind, model, share) for kind in ("encode", "cross", "decode")]
        seconds, exposed = sum(cost.seconds for cost in parts), sum(cost.exposed for cost in parts)
        return ServingCost(seconds, exposed, max(cost.working for cost in parts), sum(cost.flops for cost in parts))
    if tokens <= WHOLE:
        return costs.of("prefill", model, of_prompt(model, replace(share, length=tokens)))
    chunk = of_prompt(model, replace(share, length=CHUNK))
    last = (tokens - 1) // CHUNK * CHUNK
    far = min(last, FAR)
    start, near, end = (costs.of("prefill", model, replace(chunk, before=n)) for n in (0, CHUNK, far))
    places = range(CHUNK, last + 1, CHUNK)
    reach = sum(n - CHUNK for n in places) / max(far - CHUNK, 1)

    def total(name: str) -> float:
        first, one, other = (float(getattr(cost, name)) for cost in (start, near, end))
        return first + len(places) * one + reach * (other - one)

    working = max(cost.working for cost in (start, near, end))
    return ServingCost(total("seconds"), total("exposed"), working, total("flops"))
