# SPDX-License-Identifier: Apache-2.0
"""The answers of a run, in words; `pages.page` makes a document of them and of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from trnlab.documents import TERMINAL, Note, Part, Table, blocks
from trnlab.documents.terminal import bar
from trnlab.profile import communication
from trnlab.profile.band import band
from trnlab.profile.compiled import compiled, room
from trnlab.profile.words import advice_text, waited
from trnlab.units import PS_PER_S, format_bytes, format_count, format_time

Summary = Mapping[str, Any]
NAMED = 3  # assumed figures that are called by name
ADVICE = 3  # causes and advice that are told; the report has all
SMALL = 0.005  # share of the critical path below which nothing is named
REPORT = "trnlab.frontends.torch.report_step(loss, tokens)"
CACHE = {"hit": "from the cache", "miss": "not in the cache before", "off": "no cache"}
FOUND_BY = {"optimizer": "the steps of the optimizer", "repetition": "what the run repeated", "report": "report"}


def text(summary: Summary) -> str:
    """What the run was and came to, each answer on a line or a few."""
    return "\n\n".join(blocks(answers(summary)))


def answers(s: Summary) -> list[Part]:
    """The same as parts of a document, for the terminal."""
    state = "" if s["complete"] else f", {s['status']}: what follows is partial"
    loss = [] if only_kernels(s) else [("loss", learning(s))]
    shared = [("network" if not i else "", line) for i, line in enumerate(network(s))]
    shared += [("" if i else "data", line) for i, line in enumerate([*input_wait(s), *reading(s)])]
    done = ("executed" if loss == [] else "compiling", compiling(s))
    rows = [*loss, *_kernels(s), *_timed(s), *shared, done, ("on the host", on_the_host(s))]
    head = f"{s['name']} on {s['target']} ({s['chip']}, {s['precision']}){state}"
    return [Note(head, on=TERMINAL), Note("", on=TERMINAL), Table(rows, on=TERMINAL)]


def input_wait(s: Summary) -> Iterable[str]:
    """How long a step waited for its data on this machine, beside what it takes on the chip."""
    if s.get("input_s") and s["steps"]:
        each = s["input_s"] / s["steps"]
        device = s.get("step_time_s")
        beside = f", {each / device:.2g} times what it takes on the chip" if device else ""
        yield f"waited for {format_time(each * PS_PER_S)} a step on this machine{beside}"


def reading(s: Summary) -> Iterable[str]:
    """What was read of each data set, in how many requests, and how long the first batch was waited for."""
    for read in s.get("data", ()):
        again = f", {read['retries']:,} repeated" if read["retries"] else ""
        samples = f"{read['batches']:,} batches of {read['batch']:,} samples from {read['place']}"
        yield (
            f"{samples}: {format_bytes(read['read_bytes'])} in {read['requests']:,} requests{again}; "
            f"the first was waited for {format_time(read['first_s'] * PS_PER_S)}"
        )
        if "simulated" in read:
            yield from from_store(read["simulated"])


def from_store(found: Mapping[str, Any]) -> Iterable[str]:
    """What reading would take and cost on the simulated instances."""
    wait, enough, waits = found["step_wait_s"], found["prefetch_enough"], found["epoch_waits_usd"]
    hidden = f", which prefetch={enough} hides" if wait and enough else ""
    held = f"{format_bytes(found['bytes_per_s'])}/s a rank, held by {found['bound_by']}"
    step = f"a step waits {format_time(wait * PS_PER_S)}{hidden}" if wait else "no step waits"
    yield f"on {found['store']}: {held}; {step}, the first batch {format_time(found['first_s'] * PS_PER_S)}"
    lost = f", instances that wait for it ${waits:.3g}" if wait and waits is not None else ""
    yield (
        f"an epoch is ${found['epoch_requests_usd']:.3g} of requests{lost}; the data set is "
        f"${found['month_usd']:.3g} a month"
    )


def network(s: Summary) -> Iterable[str]:
    """What ranks sent each other outside of compiled programs, and how each of them ended where one failed."""
    if "network" in s and s["network"]["by_purpose"]:
        used = s["network"]
        kinds = ", ".join(
            f"{name} {format_time(each['seconds'] * PS_PER_S)} ({each['calls']:,}, {format_bytes(each['bytes'])})"
            for name, each in sorted(used["by_purpose"].items(), key=lambda item: -item[1]["seconds"])
        )
        yield f"{format_time(used['seconds'] * PS_PER_S)} in collectives of the whole run: {kinds}"
        if used["busiest"]:
            yield f"busiest: {used['busiest']['link']}, {format_time(used['busiest']['seconds'] * PS_PER_S)}"
        if "faults" in used:
            yield f"with {', '.join(used['faults'])}; healthy {format_time(used['healthy_seconds'] * PS_PER_S)}"
    if "together" in s:
        yield side_by_side(s["together"])
    for rank in s.get("ranks", ()):
        if rank["status"] != "complete":
            yield f"rank {rank['rank']} {rank['status']}" + (f": {rank['failure']}" if "failure" in rank else "")


def side_by_side(together: Mapping[str, Any]) -> str:
    """How long a step of all ranks takes, and who waits longest in it."""
    step = f"a step of all ranks takes {format_time(together['step_s'] * PS_PER_S)}"
    longest, who = max((lane["waits_s"], lane["ranks"]) for lane in together["lanes"])
    if not longest:
        return step
    waits = f"{named(who)} wait{'s' * (len(who) == 1)} longest for others"
    return f"{step}; {waits}, {format_time(longest * PS_PER_S)}"


def named(ranks: Sequence[int]) -> str:
    """rank 3, ranks 0 to 2, ranks 0, 2."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def only_kernels(s: Summary) -> bool:
    """Whether the run trained nothing: its "step" is the kernels that the script called, once each."""
    called = {kernel["executable"] for kernel in s.get("kernels", ())}
    return bool(called) and called == {entry["executable"] for entry in s["step"]}


def kernel_line(kernel: Mapping[str, Any]) -> str:
    """One kernel that the script called: how often, how long it takes, and which engines are busy meanwhile."""
    busy = sorted(kernel["engines"].items(), key=lambda item: -item[1]["busy"])
    shares = ", ".join(f"{name} {use['busy']:.0%}" for name, use in busy if use["busy"] >= SMALL)
    calls = f"{kernel['calls']} call{'s' * (kernel['calls'] != 1)}"
    work = f"{calls} of {kernel['instructions']:,} instructions"
    return (
        f"{kernel['name']}: {format_time(kernel['time_s'] * PS_PER_S)} predicted, {work}; busy: {shares or 'nothing'}"
    )


def learning(s: Summary) -> str:
    """The loss at both ends, and how far the curve is from its reference."""
    if not s["loss"]:
        steps = f"; {s['steps']:,} steps by {FOUND_BY[s['steps_found_by']]}" if s["steps_found_by"] else ""
        return f"none reported in {s['wall_s']:.1f} s{steps}"
    first, last = ("NaN" if x is None else f"{x:.4f}" for x in (s["loss"][0], s["loss"][-1]))
    gap = s["reference_loss_gap"]
    apart = "" if gap is None else f", at most {gap:.4f} from the CPU in fp32"
    return f"{first} -> {last} in {s['steps']} steps{apart}"


def bound(s: Summary) -> str:
    """What most of the critical path is spent on."""
    shares = [f"{name} {share:.0%}" for name, share in s["critical_path"].items() if share >= SMALL]
    return f"{', '.join(shares[:5])} of the critical path"


def memory(s: Summary) -> str:
    """Traffic and peak of HBM."""
    hbm, used = s["hbm"], s["memory"]
    traffic = f"{format_bytes(hbm['read_bytes'])} read, {format_bytes(hbm['write_bytes'])} written a step"
    peak = f"at most {format_bytes(used['peak_bytes'])} of {format_bytes(used['capacity_bytes'])} in use"
    return f"{traffic} ({hbm['bandwidth_used']:.0%} of its bandwidth), {peak}"


def compiling(s: Summary) -> str:
    """What it took to get the programs, and how much of the run they did."""
    made = s["compile"]
    how = CACHE.get(made["cache"], "nothing to compile")
    done = f"{s['instructions']:,} instructions executed"
    return done if only_kernels(s) else f"{made['seconds']:.2f} s, {how}; {done}"


def on_the_host(s: Summary) -> str:
    """How many operators the host computed, in training and before it."""
    setup, training = (s["host_fallback_ops"][phase] for phase in ("setup", "training"))
    if not s["instructions"] and setup + training:
        return f"everything, {counted(setup + training)}; nothing ran on the simulated chip"
    most = ", ".join(f"{name} {count:,}" for name, count in list(s["host_fallbacks"]["training"].items())[:NAMED])
    during = f"{counted(training)} in training ({most})" if training else "no operator in training"
    return f"{during}, {counted(setup)} before it"


def counted(operators: int) -> str:
    """A number of operators in words."""
    return f"{operators:,} operator{'s' * (operators != 1)}" if operators else "none"


def price(s: Summary) -> str:
    """Dollars for a million tokens, with the price they rest on and where that is from."""
    cost = s["cost"]
    if cost["usd_per_hour"] is None:
        return "no price of this instance is known"
    rate = f"${cost['usd_per_hour']:g}/h {cost['price_kind']}, {cost['price_date']}"
    if cost["usd_per_million_tokens"] is None:
        return f"{rate}; the script does not say how many tokens it learns from: {REPORT}"
    working = "one" if cost["cores_used"] == 1 else str(cost["cores_used"])
    cores = f" with {working} of {cores} cores at work" if (cores := cost["cores"]) > 1 else ""
    return f"${cost['usd_per_million_tokens']:.3g} per million tokens{cores} ({rate})"


def assumption_line(s: Summary) -> str:
    """How many assumed figures the step's time depends on, and which of them the most."""
    assumed = s["assumptions"]
    if not assumed:
        return "no assumed figure"
    named = [f"{a['figure']} {leverage(a)}" for a in assumed[:NAMED]]
    count = f"{len(assumed)} assumed figure{'s' * (len(assumed) != 1)}"
    return f"{count}; wrong by a factor of two they move the step: {', '.join(named)}"


def leverage(assumption: Mapping[str, Any]) -> str:
    """The larger change of the step's time when the figure is halved or doubled."""
    return f"{max(assumption['halved'], assumption['doubled'], key=abs):+.1%}"


def _why(s: Summary) -> Iterable[tuple[str, str]]:
    """What holds the step up, and what could make it faster."""
    if "lost" not in s:
        return
    causes = [row for row in s["lost"] if row["cause"]][:ADVICE]
    for i, row in enumerate(causes):
        yield "" if i else "held up by", f"{row['ps'] / s['step_ps']:>4.0%}  {waited(row)}"
    costs = [entry for entry in s["advice"] if entry["way"]][:ADVICE]
    for i, entry in enumerate(costs):
        yield "" if i else "could gain", f"{entry['gain']:>4.0%}  {advice_text(entry, s['script'])}:"
        yield "", f"      {entry['way']}"
    yield "DMA", transfers(s)
    if "communication" in s:
        for i, line in enumerate(communication.lines(s["communication"], s["step_time_s"])):
            yield "" if i else "collectives", line
        for line in _sick(s["faults"]) if "faults" in s else ():
            yield "", line
        for i, line in enumerate(communication.remedies(s["communication"])):
            yield "" if i else "would help", line
    for i, line in enumerate(room(s)):
        yield "" if i else "no room", line


def _sick(found: Mapping[str, Any]) -> Iterable[str]:
    """What faults of the network do: the step beside that of a healthy one, and the collectives that slow down."""
    well, sick = (format_time(found[key] * PS_PER_S) for key in ("healthy_s", "sick_s"))
    yield f"with {', '.join(found['faults'])}: {sick} a step, {well} on a healthy network (x{found['slowdown']:.2f})"
    for each in found["slowed"]:
        well, sick = (format_time(each[key] * PS_PER_S) for key in ("healthy_s", "sick_s"))
        what = f"{each['count']} {each['kind']}, {format_bytes(each['bytes'])}"
        yield f"{what}: {well} -> {sick}, held by {each['link']}"


def transfers(s: Summary) -> str:
    """What the DMA engines moved, how fast they were at it, and what was spilled."""
    dma, spill = s["dma"], s["spill"]
    moved = f"{format_bytes(dma['bytes'])} at {dma['efficiency']:.0%} of the DMA engines' rate while they move"
    spilled = spill["save_bytes"] + spill["reload_bytes"]
    return f"{moved}; {format_bytes(spilled)} spilled and reloaded" if spilled else f"{moved}; nothing spilled"


def _kernels(s: Summary) -> Iterable[tuple[str, str]]:
    for i, kernel in enumerate(s.get("kernels", ())):
        yield "" if i else "kernels", kernel_line(kernel)
        if "policy" in kernel:
            yield "", f"    as compiled: {compiled(kernel)}"


def _between(s: Summary) -> str:
    """The band of the step's time, where what is not known moves it by more than nothing."""
    low, high = (format_time(t * PS_PER_S) for t in band(s["step_time_s"], s["assumptions"], s.get("choices", ())))
    return f" ({low} to {high})" if low != high else ""


def lowering_words(found: Mapping[str, Any]) -> str:
    """What was chosen for a program of lowerings that compete, and the next best, in words."""
    chosen = ", ".join(f"{name} {value}" for name, value in found["chosen"].items())
    gain = 1 - found["seconds"] / found["rules_s"]
    words = (
        f"{found['program']}: {chosen}, {gain:.1%} sooner than by rules"
        if chosen
        else f"{found['program']}: by rules"
    )
    if found["next_best"] is not None:
        other = found["next_best"] or "by rules"
        words += f"; next best of {found['tried']} tried: {other}, {found['next_best_s'] / found['seconds'] - 1:+.1%}"
    return words


def _timed(s: Summary) -> Iterable[tuple[str, str]]:
    if "step_time_s" not in s:
        return
    tokens = f" for {s['tokens_per_step']:,} tokens" if s["tokens_per_step"] else ""
    here = s["step_wall_s"]
    wall = f"; simulated here in {format_time(median(here) * PS_PER_S)}" if here else ""
    whole = "all, once" if only_kernels(s) else "one step" if s["steps_found_by"] else "whole run"
    yield whole, f"{format_time(s['step_time_s'] * PS_PER_S)}{_between(s)} on the chip{tokens}{wall}"
    speed = f"{format_count(s['tokens_per_s'])} tokens/s, " if s["tokens_per_step"] else ""
    yield "throughput", f"{speed}MFU {s['mfu']:.1%}, HFU {s['hfu']:.1%} of {format_count(s['peak_flops'])}FLOP/s"
    if "limit" in s:
        limit = s["limit"]
        least = format_time(limit["seconds"] * PS_PER_S)
        yield "limit", f"{limit['seconds'] / s['step_time_s']:.0%} of what this chip allows: {least} by {limit['by']}"
    for i, found in enumerate(s.get("lowerings", ())):
        yield "" if i else "lowerings", lowering_words(found)
    yield "bound by", bound(s)
    engines = sorted(s["engines"].items(), key=lambda item: -item[1]["active"])
    for i, (name, use) in enumerate(engines):
        yield "" if i else "engines active", f"{name:<7} {use['active']:>4.0%}  {bar(use['active'])}".rstrip()
    yield from _why(s)
    yield "HBM", memory(s)
    for i, choice in enumerate(s.get("choices", ())):
        yield "" if i else "otherwise", f"{choice['change']:+.1%} if {choice['option']}={choice['value']}"
    if only_kernels(s):
        yield "leans on", assumption_line(s)
        return
    yield "cost", price(s)
    yield "", f"price from: {s['cost']['price_source']}" if s["cost"]["price_source"] else "no source of prices"
    yield "leans on", assumption_line(s)
