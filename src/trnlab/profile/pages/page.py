# SPDX-License-Identifier: Apache-2.0
"""report.html: one page that needs nothing but itself, pictures first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from statistics import median
from typing import Any

from trnlab.documents import html
from trnlab.documents.html import section, table
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


def page(profile: Profile) -> str:
    """The page of a run, with as much as the run left."""
    s, step = profile.summary, profile.step
    drawn = () if step is None else _pictures(profile, step)
    body = "\n".join([*_top(s), *pictures.loss(s), *drawn, *_tables(s)])
    return document(s["name"], body)


def document(title: str, body: str) -> str:
    """A whole page around the body, with the scripts that timelines need."""
    return html.document(title, body, SCRIPTS)


def _top(s: Summary) -> Iterator[str]:
    about = ", ".join(escape(s[key]) for key in ("target", "chip", "precision"))
    yield f'<header>\n<p class="over">trnlab run on {about}</p>\n<h1>{escape(s["name"])}</h1>'
    if "step_time_s" in s:
        tokens = f" on {s['tokens_per_step']:,} tokens" if s["tokens_per_step"] else ""
        both = s["cost"]["cores_used"] > 1
        what = f"A training step{tokens} takes {'a logical core of two NeuronCores' if both else 'one NeuronCore'}"
        if words.only_kernels(s):
            count = len(s["kernels"])
            what = "The kernel takes" if count == 1 else f"The {count} kernels, each called once, take"
        yield (
            f'<p class="lede">{what} '
            f"<b>{_time(s['step_time_s'])}</b>{_between(s)}. What decides that: {escape(words.bound(s))}.</p>"
        )
    if not s["complete"]:
        yield f'<p class="notice">This run is <b>{escape(s["status"])}</b>; what follows is partial.</p>'
    yield f'<dl class="figures">{"".join(_figure(*figure) for figure in _figures(s))}</dl>\n</header>'


def _figures(s: Summary) -> Iterator[tuple[str, str, str]]:
    if s["loss"]:
        first, last = pictures.number(s["loss"][0]), pictures.number(s["loss"][-1])
        yield "Loss", last, f"from {first} in {s['steps']} steps"
    if "step_time_s" not in s:
        return
    here = f"{nice_time(median(s['step_wall_s']) * PS_PER_S)} to simulate" if s["step_wall_s"] else ""
    yield "All kernels, once" if words.only_kernels(s) else "One step", _time(s["step_time_s"]), here
    if s["tokens_per_step"]:
        yield (
            "Tokens per second",
            format_count(s["tokens_per_s"]),
            "on one core" if s["cost"]["cores_used"] == 1 else "on two cores",
        )
    yield "MFU", f"{s['mfu']:.1%}", f"of {format_count(s['peak_flops'])}FLOP/s"
    usd = s["cost"]["usd_per_million_tokens"]
    if s.get("kernels"):
        calls = sum(kernel["calls"] for kernel in s["kernels"])
        yield "Kernel calls", f"{calls:,}", f"of {len(s['kernels'])} kernels and forms of arguments"
    if usd is not None:
        yield "A million tokens", f"${usd:.3g}", f"{s['cost']['price_kind']}, {s['cost']['price_date']}"


def _figure(name: str, value: str, more: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"


def _pictures(profile: Profile, step: Step) -> Iterator[str]:
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
    yield f'<div class="columns">{pictures.engines(s)}{pictures.hbm(s)}</div>'


def _kernels(s: Summary) -> str:
    """The kernels that the script called by themselves."""
    engines = list(s["kernels"][0]["engines"])
    head = ("kernel", "chip", "calls", "instructions", "one call", *(f"{name} busy" for name in engines))
    rows = []
    for k in s["kernels"]:
        busy = [f"{k['engines'][name]['busy']:.0%}" for name in engines]
        rows.append((k["name"], k["chip"], str(k["calls"]), f"{k['instructions']:,}", _time(k["time_s"]), *busy))
    say = "Those that the script called by themselves, once for each form of their arguments; times are predicted."
    return section("Kernels", say, table(head, rows, tuple(range(2, len(head)))))


def _tables(s: Summary) -> Iterator[str]:
    if s.get("kernels"):
        yield _kernels(s)
    yield section("Numbers", "", table((), list(_numbers(s))))
    if s.get("assumptions"):
        yield _assumed(s)
    command = " ".join([s["script"], *s["arguments"]])
    yield (
        f"<footer>{escape(command)} · started {escape(s['started'])} · trnlab {escape(s['trnlab'])} · "
        "the same numbers are in summary.json, the timeline for Perfetto in trace.json</footer>"
    )


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


def _assumed(s: Summary) -> str:
    head = ("figure", "value", "half", "twice", "why")
    rows = [
        (a["figure"], f"{a['value']:g} {a['unit']}", f"{a['halved']:+.2%}", f"{a['doubled']:+.2%}", a["reason"])
        for a in s["assumptions"]
    ]
    say = (
        "Figures of the chip that nobody has published and that this step's time depends on, and how the time "
        f"changes with half and twice the value. `trnlab chips {s['chip']}` shows all figures with their sources."
    )
    return section("Assumed figures", say, table(head, rows, (1, 2, 3)))


def _time(seconds: float) -> str:
    return nice_time(seconds * PS_PER_S)
