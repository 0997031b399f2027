# SPDX-License-Identifier: Apache-2.0
"""A plan of serving for the terminal, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from trnlab import chips
from trnlab.documents import TERMINAL, Document, HeadlineFigure, Note, Part, Section, Table
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.layout import filled_up, padding
from trnlab.fleet.serving.offers import COMPILED, ROOFLINE, Offer, ReplicaSettings, is_neuron, logical_cores
from trnlab.fleet.serving.plan import ServingChoice, ServingPlan, ServingQuestion
from trnlab.fleet.serving.prompts import CHUNK, FAR, WHOLE
from trnlab.stacks import OURS, Stack
from trnlab.units import format_bytes
from trnlab.validation import inference

_SEEN = ("first token p50/p90/p99", "each token p50/p99", "request p50/p99", "batch")
FIGURES = ("ranks", "number", "$/h", "$/Mtok", *_SEEN)
LEGEND = "$/Mtok: of a million tokens of answers. number: instances; ranks: that share a copy of the model."


def document(stacked: Sequence[ServingPlan]) -> Document:
    """The plan under each stack, the first of them with all that it chose from."""
    found, q, notes = stacked[0], stacked[0].question, _notes(stacked[0])
    about = (
        f"{q.model.name}: {q.rate:g} requests a second of {q.request.prompt} + {q.request.output} tokens; 99 of 100 "
        f"within {_bound(q)}; {q.policy}{_given(q.given)}{_by(q.stack)}"
    )
    return Document(
        _title(found),
        [
            Note(about, on=TERMINAL),
            Section(heading="What serves it", say=LEGEND, parts=[_choices(found), *_late(found), *_refused(found)]),
            *(_by_stack(stacked) if len(stacked) > 1 else ()),
            Section(parts=[Note(LEGEND)], on=TERMINAL),
            *(_best(name, c, q.model) for name, c in found.best.items()),
            *([Section(heading="To know", parts=notes)] if notes else ()),
        ],
        over="trnlab serve-plan",
        lede=f"{about}.",
        figures=list(_large(found)),
        name=f"serving {q.model.name}",
        record=lambda: to_json(found) | {"stacks": [_stack_to_json(one) for one in stacked]},
    )


def _bound(q: ServingQuestion) -> str:
    return f"{q.first:g} s to the first token" + (f", {q.whole:g} s to the last" if q.whole else "")


def _cheapest(found: ServingPlan) -> tuple[str, ServingChoice] | None:
    """The best that has a price, among targets that were asked for and those beside."""
    priced = [(name, c) for name, c in found.best.items() if c.usd_per_hour is not None]
    return min(priced, key=lambda each: each[1].usd_per_hour or 0.0, default=None)


def _title(found: ServingPlan) -> str:
    first = _cheapest(found)
    if first is None:
        return "Nothing serves it in time" if not found.best else f"What serves {found.question.model.name}"
    name, c = first
    return f"{c.instances} x {name}: ${c.usd_per_hour:,.2f} an hour"


def _large(found: ServingPlan) -> Iterator[HeadlineFigure]:
    first = _cheapest(found)
    if first is None:
        return
    name, c = first
    yield HeadlineFigure("A million tokens", f"${c.usd_per_million:,.3g}", name)
    yield HeadlineFigure("First token", _s(c.first[99]), "99 of 100 within it")
    yield HeadlineFigure("Each token", _s(c.each[50]), "half of them")
    yield HeadlineFigure("Whole answer", _s(c.whole[99]), "99 of 100 within it")


def _choices(found: ServingPlan) -> Table:
    rows = [(c.offer.target, *_figures(c), c.offer.basis) for c in found.choices]
    return Table(rows, ("target", *FIGURES, "basis"), range(1, len(FIGURES) + 1))


def _late(found: ServingPlan) -> Iterator[Note]:
    for late in found.late:
        where, times = f"{late.offer.target} on {_ranks(late.offer)} ranks", (_s(late.first), _s(late.whole))
        yield Note(f"{where}: late: {times[0]} to the first token, {times[1]} to the last, alone")


def _given(given: ReplicaSettings) -> str:
    """What of copies was asked for."""
    parts = [f"{given.batch} together" if given.batch else "", f"{given.ranks} ranks" if given.ranks else ""]
    parts += [f"weights of blocks in {given.weights}" if given.weights != "bf16" else ""]
    return "".join(f"; {part}" for part in parts if part)


def _by(stack: Stack) -> str:
    return "" if stack.name == OURS else f"; programs as {stack.title} makes them"


def _by_stack(stacked: Sequence[ServingPlan]) -> Iterator[Section]:
    """The cheapest of each target of Neuron, under each stack."""
    rows: list[Sequence[str]] = []
    for name in filter(is_neuron, stacked[0].question.targets):
        for each in stacked:
            c = each.best.get(name)
            told = ("not in time, or not at all",) if c is None else _figures(c)
            rows.append((name, each.question.stack.title, *told))
    head = ("target", "by", *FIGURES)
    stacks = [each.question.stack for each in stacked]
    held = [Note(f"{stack.title}: rates {inference.held(True, stack.name)}") for stack in stacks]
    yield Section("by whose software", [Table(rows, head, range(2, len(head))), *held])


def _refused(found: ServingPlan) -> Iterator[Note]:
    """Sizes of tensor groups by target and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for r in found.refused:
        grouped.setdefault((r.target, r.why), []).append(str(r.tensor))
    for (target, why), ranks in grouped.items():
        yield Note(f"{target}: not on {', '.join(dict.fromkeys(ranks))} ranks: {why}")


def _figures(c: ServingChoice) -> tuple[str, ...]:
    """Under FIGURES."""
    usd = ("-", "-") if c.usd_per_hour is None else (f"{c.usd_per_hour:.2f}", f"{c.usd_per_million:.3f}")
    first = "/".join(_s(c.first[q]) for q in (50, 90, 99))
    each, whole = ("/".join(_s(v[q]) for q in (50, 99)) for v in (c.each, c.whole))
    return _ranks(c.offer), str(c.instances), *usd, first, each, whole, f"{c.batch:.1f}"


def _ranks(o: Offer) -> str:
    """Ranks of a copy, and among how many of them its experts are divided."""
    return f"{o.tensor}" if o.expert == 1 else f"{o.tensor}/{o.expert}"


def _copies(c: ServingChoice) -> str:
    o = c.offer
    return f"{c.instances} of it, each with {o.copies} of the model on {o.tensor} of its ranks ({o.basis})"


def _best(name: str, c: ServingChoice, model: Model) -> Section:
    title = f"{name}: {_copies(c)}"
    return Section(title, _told(name, c, model), heading=title)


def _told(name: str, c: ServingChoice, model: Model) -> list[Part]:
    o = c.offer
    steps = ", ".join(f"{batch}: {_s(seconds)}" for batch, seconds in o.engine.decode.items())
    free = o.room - o.weights - o.working
    lines = [
        f"prefill of a prompt {_s(o.engine.prefill)}; a step of a batch of {steps}"
        + (f"; {o.exposed:.0%} of it waiting for other ranks" if o.tensor > 1 and o.basis == COMPILED else ""),
        f"memory of a rank: weights {format_bytes(o.weights)}, {format_bytes(o.cache)} of cache for each request, "
        f"{format_bytes(o.working)} working; room for {free // o.cache} requests in {format_bytes(o.room)}",
        f"price: {o.price or 'none is public'}",
    ]
    if is_neuron(name):
        lines += filled_up(padding(model, o.tensor), o.tensor)
    if is_neuron(name) and logical_cores(chips.target(name)) > 1:
        lines.append("a rank is a logical core of two NeuronCores, which share what divides along its results")
    return list(map(Note, lines))


def _notes(found: ServingPlan) -> list[Part]:
    notes = []
    if found.question.request.padded > WHOLE:
        far = (
            f"; beyond {FAR:,} places the line is extrapolated" if found.question.request.padded > FAR + CHUNK else ""
        )
        notes.append(
            f"a prompt of more than {WHOLE:,} tokens is prefilled in chunks of {CHUNK:,}, whose times grow by a line "
            f"with the places before them{far}"
        )
    if any(c.offer.basis == ROOFLINE for c in found.choices):
        notes.append(
            "roofline: operations at the best rate measured for a product, bytes at the memory's; nobody's "
            "engine reaches it, so that these are the least that GPUs take"
        )
    if found.question.model.experts:
        notes += [
            "experts: ranks 8/4 are 8, among 4 of which experts are divided; all experts are taken equally often",
            "experts on GPUs: those that a batch meets are read; no rate of their small products is published here",
        ]
    kinds = {c.offer.price.kind for c in found.choices if c.offer.price is not None}
    if len(kinds) > 1:
        notes.append(f"prices are of several kinds ({', '.join(sorted(kinds))}): compare them with care")
    return list(map(Note, notes))


def _s(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g}s"
    return f"{seconds * 1e3:.3g}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g}us"


def to_json(found: ServingPlan) -> dict[str, object]:
    """For programs; docs/serving.md says what is what."""
    q = found.question
    return {
        "model": q.model.name,
        "prompt": q.request.prompt,
        "output": q.request.output,
        "qps": q.rate,
        "p99_s": q.first,
        "p99_request_s": q.whole,
        "policy": q.policy,
        "given": asdict(q.given),
        "compiled": found.compiled,
        "stack": q.stack.text,
        "choices": [_choice_to_json(c, q) for c in found.choices],
        "late": [
            {"target": x.offer.target, "tensor": x.offer.tensor, "first_s": x.first, "whole_s": x.whole}
            for x in found.late
        ],
        "refused": [asdict(r) for r in found.refused],
    }


def _choice_to_json(c: ServingChoice, q: ServingQuestion) -> dict[str, object]:
    heads = [{"heads": own, "filled_up_to": ranks} for own, ranks in padding(q.model, c.offer.tensor)]
    return asdict(c) | {"tokens_per_s": q.rate * q.request.output / c.instances, "padded_heads": heads}


def _stack_to_json(found: ServingPlan) -> dict[str, object]:
    """The cheapest way of each target of Neuron, under a stack."""
    stack, best = found.question.stack, found.best
    chosen = {name: _choice_to_json(c, found.question) for name, c in best.items() if is_neuron(name)}
    held = inference.held(True, stack.name)
    return {"stack": stack.text, "about": stack.title, "best": chosen, "published": asdict(held)}
