# SPDX-License-Identifier: Apache-2.0
"""A run as a document: its answers for the terminal, and report.html, a page that needs nothing but itself, pictures
first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from statistics import median
from typing import Any

from trnlab.documents import PAGE, Document, HeadlineFigure, Later, Section, Table
from trnlab.profile import compiled
from trnlab.profile import summary as words
from trnlab.profile.band import band
from trnlab.profile.critical import pieces
from trnlab.profile.data import Profile, Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages import findings, pictures
from trnlab.profile.pages.communication_panel import panel
from trnlab.profile.pages.ranks_panel import ranks
from trnlab.units import PS_PER_S, format_count

Summary = Mapping[str, Any]

_ASSETS = files(__package__).joinpath("assets")
SCRIPTS = tuple(
    _ASSETS.joinpath(name) for name in ("timeline_data.js", "timeline_paint.js", "timeline.js", "ranks.js")
)
_BESIDE = "the same numbers are in summary.json, the timeline for Perfetto in trace.json"


def document(profile: Profile) -> Document:
    """A run, with as much as it left."""
    s = profile.summary
    command = " ".join([s["script"], *s["arguments"]])
    state = f"This run is {s['status']}; what follows is partial."
    return Document(
        s["name"],
        [*words.answers(s), Later(lambda: _sections(profile), on=PAGE)],
        over=f"trnlab run on {', '.join(s[key] for key in ('target', 'chip', 'precision'))}",
        lede=_lede(s) if "step_time_s" in s else "",
        notice="" if s["complete"] else state,
        figures=list(_figures(s)),
        foot=" · ".join((command, f"started {s['started']}", f"trnlab {s['trnlab']}", _BESIDE)),
        scripts=SCRIPTS,
        record=lambda: s,
    )


def _sections(profile: Profile) -> Iterator[Section]:
    """The sections of the page."""
    s, step = profile.summary, profile.step
    yield from pictures.loss(s)
    if step is not None:
        yield from _pictures(profile, step)
    if s.get("kernels"):
        yield _kernels(s)
    yield Section(heading="Numbers", parts=[Table(list(_numbers(s)))])
    if s.get("assumptions"):
        yield _assumed(s)


def _lede(s: Summary) -> str:
    """How long it takes, and what decides that."""
    tokens = f" on {s['tokens_per_step']:,} tokens" if s["tokens_per_step"] else ""
    both = s["cost"]["cores_used"] > 1
    what = f"A training step{tokens} takes {'a logical core of two NeuronCores' if both else 'one NeuronCore'}"
    if words.only_kernels(s):
        count = len(s["kernels"])
        what = "The kernel takes" if count == 1 else f"The {count} kernels, each called once, take"
    return f"{what} {_time(s['step_time_s'])}{_between(s)}. What decides that: {words.bound(s)}."


def _figures(s: Summary) -> Iterator[HeadlineFigure]:
    """The answer in large numbers."""
    if s["loss"]:
        first, last = pictures.number(s["loss"][0]), pictures.number(s["loss"][-1])
        yield HeadlineFigure("Loss", last, f"from {first} in {s['steps']} steps")
    if "step_time_s" not in s:
        return
    here = f"{nice_time(median(s['step_wall_s']) * PS_PER_S)} to simulate" if s["step_wall_s"] else ""
    whole = "All kernels, once" if words.only_kernels(s) else "One step"
    yield HeadlineFigure(whole, _time(s["step_time_s"]), here)
    if s["tokens_per_step"]:
        cores = "on one core" if s["cost"]["cores_used"] == 1 else "on two cores"
        yield HeadlineFigure("Tokens per second", format_count(s["tokens_per_s"]), cores)
    yield HeadlineFigure("MFU", f"{s['mfu']:.1%}", f"of {format_count(s['peak_flops'])}FLOP/s")
    usd = s["cost"]["usd_per_million_tokens"]
    if s.get("kernels"):
        calls = sum(kernel["calls"] for kernel in s["kernels"])
        yield HeadlineFigure("Kernel calls", f"{calls:,}", f"of {len(s['kernels'])} kernels and forms of arguments")
    if usd is not None:
        kind = f"{s['cost']['price_kind']}, {s['cost']['price_date']}"
        yield HeadlineFigure("A million tokens", f"${usd:.3g}", kind)


def _pictures(profile: Profile, step: Step) -> Iterator[Section]:
    s, chain = profile.summary, pieces(step)
    yield from findings.steps(s)
    title = "Instruction by instruction" if words.only_kernels(s) else pictures.STEP
    yield pictures.timeline(s, step, list(zip(findings.step_names(s), profile.kinds)), title)
    if "communication" in s:
        yield panel(s["communication"], s["step_time_s"])
    if profile.together is not None:
        yield ranks(profile.together)
    yield from findings.findings(s)
    yield pictures.where(step, chain)
    yield from pictures.roofs(step)
    yield Section(parts=[pictures.engines(s), pictures.hbm(s)], style="columns")


def _kernels(s: Summary) -> Section:
    """The kernels that the script called by themselves."""
    engines = list(s["kernels"][0]["engines"])
    head = ("kernel", "chip", "calls", "instructions", "one call", *(f"{name} busy" for name in engines))
    rows = []
    for k in s["kernels"]:
        busy = [f"{k['engines'][name]['busy']:.0%}" for name in engines]
        rows.append((k["name"], k["chip"], str(k["calls"]), f"{k['instructions']:,}", _time(k["time_s"]), *busy))
    say = "Those that the script called by themselves, once for each form of their arguments; times are predicted."
    return Section(heading="Kernels", say=say, parts=[Table(rows, head, range(2, len(head)))])


def _numbers(s: Summary) -> Iterator[tuple[str, str]]:
    yield "loss", words.learning(s).replace("->", "→")
    if "step_time_s" in s:
        yield "step", f"{_time(s['step_time_s'])}, {s['instructions_per_step']:,} instructions"
        if s["tokens_per_step"]:
            yield "throughput", f"{s['tokens_per_s']:,.0f} tokens/s, {s['tokens_per_step']:,} tokens a step"
        yield "utilisation", _utilisation(s)
        yield "HBM", words.memory(s)
        if "dma" in s:
            yield "DMA", words.transfers(s)
        for i, line in enumerate(compiled.room(s)):
            yield "" if i else "no room", line
        for kernel in s.get("kernels", ()):
            if "policy" in kernel:
                yield f"{kernel['name']} as compiled", compiled.compiled(kernel)
        yield "cost", words.price(s)
        yield "price from", s["cost"]["price_source"] or "unknown"
    for i, line in enumerate([*words.input_wait(s), *words.reading(s)]):
        yield "" if i else "data", line
    yield "compiling", words.compiling(s)
    yield "on the host", words.on_the_host(s)
    for phase, when in (("training", "in training"), ("setup", "before it")):
        for name, count in s["host_fallbacks"][phase].items():
            yield "", f"{name}, {count:,} times {when}"
    rounding = f"stochastic, seed {s['seed']}" if s["stochastic_rounding"] else "to nearest, ties to even"
    yield "precision", f"{s['precision']} matrix products, sums in fp32, rounding {rounding}"
    yield "here", f"{s['steps']} steps in {s['wall_s']:.1f} s"


def _utilisation(s: Summary) -> str:
    model = f"{format_count(s['model_flops_per_step'])}FLOP a step in the model's matrix products"
    flops = f"MFU {s['mfu']:.2%}, HFU {s['hfu']:.2%} of {format_count(s['peak_flops'])}FLOP/s"
    return f"{flops}, MBU {s['hbm']['bandwidth_used']:.2%}; {model}"


def _between(s: Summary) -> str:
    """The band of the step's time."""
    low, high = (_time(t) for t in band(s["step_time_s"], s["assumptions"], s.get("choices", ())))
    return f" ({low} to {high}, by what is not known)" if low != high else ""


def _assumed(s: Summary) -> Section:
    head = ("figure", "value", "half", "twice", "why")
    rows = [
        (a["figure"], f"{a['value']:g} {a['unit']}", f"{a['halved']:+.2%}", f"{a['doubled']:+.2%}", a["reason"])
        for a in s["assumptions"]
    ]
    say = (
        "Figures of the chip that nobody has published and that this step's time depends on, and how the time "
        f"changes with half and twice the value. `trnlab chips {s['chip']}` shows all figures with their sources."
    )
    return Section(heading="Assumed figures", say=say, parts=[Table(rows, head, (1, 2, 3))])


def _time(seconds: float) -> str:
    return nice_time(seconds * PS_PER_S)
