# SPDX-License-Identifier: Apache-2.0
"""`trnlab serve-plan`: which instances serve a model at a rate and in time, and for how much."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from trnlab import chips
from trnlab.cli import options
from trnlab.errors import UsageError
from trnlab.fleet.models import configurations
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.quantities import TIME, parse
from trnlab.fleet.search.layout import filled_up, padding
from trnlab.fleet.serving.offers import (
    COMPILED,
    ROOFLINE,
    GenerationRequest,
    Offer,
    ReplicaSettings,
    is_neuron,
    logical_cores,
)
from trnlab.fleet.serving.plan import ServingChoice, ServingPlan, ServingQuestion, of_stacks
from trnlab.fleet.serving.prompts import CHUNK, FAR, WHOLE
from trnlab.runtime.notices import say
from trnlab.runtime.settings import kept_folder
from trnlab.stacks import OURS, Stack
from trnlab.units import format_bytes
from trnlab.validation import inference

HEAD = (
    f"{'ranks':>5} {'number':>6} {'$/h':>8} {'$/Mtok':>7} {'first token p50/p90/p99':>24} {'each token p50/p99':>19} "
    f"{'request p50/p99':>16} {'batch':>5}"
)


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab serve-plan`."""
    add = command.add_argument
    add("model", metavar="MODEL", help="a model by name, or its config.json")
    add("--target", metavar="A,B,...", required=True, help="instances, e.g. inf2.48xlarge,trn2.3xlarge")
    add(
        "--beside",
        metavar="A,B,...",
        default="p5.48xlarge,g6e.xlarge",
        help="other vendors' instances, by a roofline; default: p5.48xlarge,g6e.xlarge",
    )
    add("--prompt", metavar="TOKENS", type=options.COUNT, default=2000, help="of each request; default: 2000")
    add("--output", metavar="TOKENS", type=options.COUNT, default=300, help="of each answer; default: 300")
    add(
        "--qps",
        metavar="RATE",
        type=options.real(0, 1e9, above=True),
        default=1.0,
        help="requests a second, at random; default: 1",
    )
    add("--p99", metavar="TIME", default="2s", help="within which 99 of 100 have their first token; default: 2s")
    add("--p99-request", metavar="TIME", help="within which 99 of 100 have their last token; default: whenever")
    add("--policy", metavar="NAME", default="prefill-first", help="prefill-first or turns; default: prefill-first")
    add(
        "--batch",
        metavar="N",
        type=options.whole(1, 1024),
        help="requests that decode together at most; default: chosen",
    )
    add(
        "--ranks",
        metavar="N",
        type=options.whole(1, 4096),
        help="that share a copy of the model; default: all sizes are tried",
    )
    add("--weights", metavar="FORMAT", default="bf16", help="of blocks in memory: bf16, fp8 or int8; default: bf16")
    options.stack(command)
    add("--seed", type=options.SEED, default=0, help="of the arrivals; default: 0")
    add("--json", action="store_true", help="everything as JSON, see docs/serving.md")
    options.cache(command)


def main(args: argparse.Namespace) -> int:
    """Print the plan. 1 where a target that was asked for, and not only named beside, cannot serve."""
    folder = None if args.no_cache else kept_folder(args) / "serving"
    found, *others = stacked = of_stacks(_question(args), options.stacks_of(args), folder, say)
    record = to_json(found) | {"stacks": [_stack_to_json(one) for one in stacked]}
    print(json.dumps(record, indent=2) if args.json else text(found, others))
    missed = [name for name in dict.fromkeys(args.target.split(",")) if name and name not in found.best]
    if missed:
        say(f"{' and '.join(missed)} cannot serve this")
    return 1 if missed else 0


def _question(args: argparse.Namespace) -> ServingQuestion:
    targets = tuple(name for name in dict.fromkeys(f"{args.target},{args.beside}".split(",")) if name)
    if not targets:
        raise UsageError(
            "no target", code="TRN168", limit="at least one instance", got="", remedy="--target inf2.48xlarge"
        )
    return ServingQuestion(
        configurations.model(args.model),
        GenerationRequest(args.prompt, args.output),
        args.qps,
        targets,
        parse(args.p99, TIME, "--p99"),
        parse(args.p99_request, TIME, "--p99-request") if args.p99_request else None,
        args.policy,
        ReplicaSettings(args.batch, args.ranks, args.weights),
        seed=args.seed,
    )


def text(found: ServingPlan, others: Sequence[ServingPlan] = ()) -> str:
    """For people. others: the plans under other stacks."""
    q = found.question
    bound = f"{q.first:g} s to the first token" + (f", {q.whole:g} s to the last" if q.whole else "")
    lines = [
        f"{q.model.name}: {q.rate:g} requests a second of {q.request.prompt} + {q.request.output} tokens; 99 of 100 "
        f"within {bound}; {q.policy}{_given(q.given)}{_by(q.stack)}",
        "",
        f"{'target':<18} {HEAD}  basis",
    ]
    lines += [_row(choice) for choice in found.choices]
    for late in found.late:
        lines.append(
            f"{late.offer.target:<18} {_ranks(late.offer):>5}   late: {_s(late.first)} to the first token, "
            f"{_s(late.whole)} to the last, alone"
        )
    lines += [f"{target:<18} not on {ranks} ranks: {why}" for (target, why), ranks in _refused(found).items()]
    lines += _by_stack([found, *others]) if others else []
    lines += ["", "$/Mtok: of a million tokens of answers. number: instances; ranks: that share a copy of the model."]
    for name, choice in found.best.items():
        lines += ["", *_told(name, choice, q.model)]
    return "\n".join([*lines, "", *_notes(found)])


def _given(given: ReplicaSettings) -> str:
    """What of copies was asked for."""
    parts = [f"{given.batch} together" if given.batch else "", f"{given.ranks} ranks" if given.ranks else ""]
    parts += [f"weights of blocks in {given.weights}" if given.weights != "bf16" else ""]
    return "".join(f"; {part}" for part in parts if part)


def _by(stack: Stack) -> str:
    return "" if stack.name == OURS else f"; programs as {stack.title} makes them"


def _by_stack(plans: Sequence[ServingPlan]) -> list[str]:
    """The cheapest of each target of Neuron, under each stack."""
    lines = ["", f"{'by whose software':<46} {HEAD}"]
    for name in filter(is_neuron, plans[0].question.targets):
        for each in plans:
            c = each.best.get(name)
            told = "not in time, or not at all" if c is None else _figures(c)
            lines.append(f"{name:<18} {each.question.stack.title:<27} {told}")
    stacks = [one.question.stack for one in plans]
    return [*lines, *(f"{stack.title}: rates {inference.held(True, stack.name)}" for stack in stacks)]


def _refused(found: ServingPlan) -> dict[tuple[str, str], str]:
    """Sizes of tensor groups by target and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for r in found.refused:
        grouped.setdefault((r.target, r.why), []).append(str(r.tensor))
    return {key: ", ".join(dict.fromkeys(ranks)) for key, ranks in grouped.items()}


def _row(c: ServingChoice) -> str:
    return f"{c.offer.target:<18} {_figures(c)}  {c.offer.basis}"


def _figures(c: ServingChoice) -> str:
    """Under HEAD."""
    usd = f"{c.usd_per_hour:8.2f} {c.usd_per_million:7.3f}" if c.usd_per_hour is not None else f"{'-':>8} {'-':>7}"
    first = "/".join(_s(c.first[q]) for q in (50, 90, 99))
    each, whole = ("/".join(_s(v[q]) for q in (50, 99)) for v in (c.each, c.whole))
    return f"{_ranks(c.offer):>5} {c.instances:>6} {usd} {first:>24} {each:>19} {whole:>16} {c.batch:>5.1f}"


def _ranks(o: Offer) -> str:
    """Ranks of a copy, and among how many of them its experts are divided."""
    return f"{o.tensor}" if o.expert == 1 else f"{o.tensor}/{o.expert}"


def _told(name: str, c: ServingChoice, model: Model) -> list[str]:
    o = c.offer
    steps = ", ".join(f"{batch}: {_s(seconds)}" for batch, seconds in o.engine.decode.items())
    free = o.room - o.weights - o.working
    lines = [
        f"{name}: {c.instances} of it, each with {o.copies} of the model on {o.tensor} of its ranks ({o.basis})",
        f"  prefill of a prompt {_s(o.engine.prefill)}; a step of a batch of {steps}"
        + (f"; {o.exposed:.0%} of it waiting for other ranks" if o.tensor > 1 and o.basis == COMPILED else ""),
        f"  memory of a rank: weights {format_bytes(o.weights)}, {format_bytes(o.cache)} of cache for each request, "
        f"{format_bytes(o.working)} working; room for {free // o.cache} requests in {format_bytes(o.room)}",
        f"  price: {o.price or 'none is public'}",
    ]
    if is_neuron(name):
        lines += [f"  {line}" for line in filled_up(padding(model, o.tensor), o.tensor)]
    if is_neuron(name) and logical_cores(chips.target(name)) > 1:
        lines.append("  a rank is a logical core of two NeuronCores, which share what divides along its results")
    return lines


def _notes(found: ServingPlan) -> list[str]:
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
    return notes


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
