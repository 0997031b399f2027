# SPDX-License-Identifier: Apache-2.0
"""The ladder of a bench for the terminal, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.bench.judging import REFUSED, RIGHT, TIMED, WRONG, CaseOutcome, Judgement
from trnlab.bench.ladder import TIE, LadderEntry, told_apart
from trnlab.documents import Bar, Bars, Document, HeadlineFigure, Note, Part, Section, Table
from trnlab.units import format_bytes, format_time

ENGINES = ("tensor", "vector", "scalar", "gpsimd")


@dataclass(frozen=True)
class BenchReport:
    """What a bench found. reference: its name, "" without one."""

    target: str
    reference: str
    cases: tuple[str, ...]
    seed: int
    entries: Sequence[LadderEntry]


def document(report: BenchReport) -> Document:
    """The ladder, the worst element of what is wrong, the reasons of what was refused, and counters."""
    good = [e for e in report.entries if e.judgement.verdict in (RIGHT, TIMED)]
    sections: list[Part] = [Section(parts=[ladder(to_json(report))], heading="Ladder")]
    if len(good) > 1:
        sections.append(Section(parts=[_bars(good)], heading="Time", on="page"))
    sections += [Section(parts=[Note(_remark(good))])] if len(good) > 1 else []
    wrong = [e for e in report.entries if e.judgement.verdict == WRONG]
    refused = [e for e in report.entries if e.judgement.verdict == REFUSED]
    if wrong:
        sections.append(Section("wrong", [_wrong(wrong)], say="The worst element of each case that is not right."))
    if refused:
        sections.append(Section("refused", [Note(f"{e.candidate.name}: {e.judgement.error}") for e in refused]))
    if good:
        sections.append(Section("counters, as the vendor's profiler names them", [_counters(good)]))
    best = good[0] if good else None
    return Document(
        f"{best.candidate.name}: {format_time(best.judgement.total)}" if best else "none is right",
        sections,
        over="trnlab bench",
        lede=_lede(report),
        figures=_figures(good),
        name="bench",
        record=lambda: to_json(report),
    )


def _lede(report: BenchReport) -> str:
    held = f"held against {report.reference} in {len(report.cases)} cases ({', '.join(report.cases)})"
    return f"{len(report.entries)} candidates on {report.target}, {held if report.reference else 'timed only'}."


def _figures(good: Sequence[LadderEntry]) -> list[HeadlineFigure]:
    if len(good) < 2:
        return []
    gain = good[-1].judgement.total / max(good[0].judgement.total, 1)
    return [HeadlineFigure("from the slowest to the best", f"{gain:.2f} x")]


def ladder(record: Mapping[str, Any]) -> Table:
    """The ladder of a record, as `to_json` makes it. Raises KeyError, TypeError, ValueError for one that is none."""
    times = [int(entry["time_ps"]) for entry in record["candidates"]]
    best = next(filter(None, times), 0)
    rows = [_rung(entry, total, best) for entry, total in zip(record["candidates"], times)]
    return Table(rows, ("", "kernel", "is", "time", "the evidence leaves open", "to best", "remarks"), (3, 5))


def _rung(entry: Mapping[str, Any], total: int, best: int) -> tuple[str, ...]:
    said = (str(entry["rank"]), str(entry["kernel"]), str(entry["verdict"]))
    if not total:
        return (*said, "", "", "", _note(entry))
    low, high = map(int, entry["band_ps"])
    band = f"{format_time(low)} to {format_time(high)}" if entry["banded"] else ""
    return (*said, format_time(total), band, f"{total / best:.2f}", _note(entry))


def _note(entry: Mapping[str, Any]) -> str:
    wrong = [str(case["name"]) for case in entry["cases"] if not case["right"]]
    said = [f"same instructions as {entry['same_as']}"] if entry["same_as"] else []
    said += [f"computes in {', '.join(map(str, entry['formats']))}"] if entry["formats"] else []
    said += [f"wrong for {', '.join(wrong)}"] if entry["verdict"] == WRONG else []
    said += [f"{entry['error']['code']}: {entry['error']['what']}"] if entry["error"] is not None else []
    return "; ".join(said)


def _bars(good: Sequence[LadderEntry]) -> Bars:
    longest = max(e.judgement.total for e in good)
    return Bars([Bar.of(e.candidate.name, e.judgement.total / longest, format_time(e.judgement.total)) for e in good])


def _remark(good: Sequence[LadderEntry]) -> str:
    """Which of the best cannot be told from the first."""
    first = good[0]
    open_ = [e.candidate.name for e in good[1:] if not told_apart(first.judgement, e.judgement)]
    if not open_:
        return f"{first.candidate.name} is the fastest, whatever the evidence leaves open."
    return (
        f"Not told from the first: {', '.join(open_)}: within {TIE:.0%}, or faster under a choice of the vendor's "
        "compiler that the evidence does not exclude."
    )


def _wrong(wrong: Sequence[LadderEntry]) -> Table:
    rows = [(e.candidate.name, o.name, *_worst(o)) for e in wrong for o in e.judgement.cases if not o.right]
    return Table(rows, ("kernel", "inputs", "got", "wanted", "off by, of what is allowed", "where"), (2, 3, 4))


def _worst(o: CaseOutcome) -> tuple[str, str, str, str]:
    if o.said:
        return "", "", "", o.said
    return f"{o.got:.7g}", f"{o.wanted:.7g}", f"{o.ratio:.3g} x", f"result {o.result} at {list(o.at)}"


def _counters(good: Sequence[LadderEntry]) -> Table:
    rows = []
    for e in good:
        c = e.judgement.counters
        active = [f"{c.get(f'{name}_engine_active_time_percent', 0.0):.0%}" for name in ENGINES]
        sizes = [format_bytes(int(c.get(name, 0))) for name in ("hbm_read_bytes", "hbm_write_bytes")]
        spills = int(c.get("spill_save_bytes", 0)) + int(c.get("spill_reload_bytes", 0))
        shares = [f"{c.get(name, 0.0):.1%}" for name in ("mfu_estimated_percent", "mbu_estimated_percent")]
        words = (e.candidate.name, *active, f"{c.get('dma_active_time_percent', 0.0):.0%}", *sizes)
        rows.append((*words, format_bytes(spills) if spills else "0", *shares, f"{e.judgement.instructions:,}"))
    head = ("kernel", *ENGINES, "dma", "HBM read", "written", "spilled", "mfu", "mbu", "instructions")
    return Table(rows, head, range(1, len(head)))


def to_json(report: BenchReport) -> dict[str, Any]:
    """The bench as plain values; times in picoseconds."""
    return {
        "target": report.target,
        "reference": report.reference,
        "cases": list(report.cases),
        "seed": report.seed,
        "candidates": [_entry(number + 1, e) for number, e in enumerate(report.entries)],
    }


def _entry(rank: int, e: LadderEntry) -> dict[str, Any]:
    j: Judgement = e.judgement
    error = None if j.error is None else {"code": j.error.code, "what": j.error.what, "text": str(j.error)}
    return {
        "rank": rank,
        "kernel": e.candidate.name,
        "file": str(e.candidate.path),
        "verdict": j.verdict,
        "time_ps": j.total,
        "band_ps": list(j.band),
        "banded": bool(j.others),
        "same_as": e.same_as,
        "formats": list(j.formats),
        "instructions": j.instructions,
        "cases": [_case(o) for o in j.cases],
        "counters": dict(j.counters),
        "error": error,
    }


def _case(o: CaseOutcome) -> Mapping[str, Any]:
    finite = o.ratio if o.ratio < float("inf") else None
    return {
        "name": o.name,
        "right": o.right,
        "of_allowed": finite,
        "error": o.error if o.error == o.error else None,
        "result": o.result,
        "at": list(o.at),
        "got": repr(o.got),
        "wanted": repr(o.wanted),
        "said": o.said,
    }
