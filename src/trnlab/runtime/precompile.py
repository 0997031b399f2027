# SPDX-License-Identifier: Apache-2.0
"""Programs compiled ahead of time, in several processes, into the cache of a session."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from trnlab.errors import TrnlabError
from trnlab.graph.ir import Graph
from trnlab.runtime import device
from trnlab.runtime.cache.fingerprint import fingerprint
from trnlab.runtime.session import Session


@dataclass(frozen=True)
class PrecompiledProgram:
    """One program: how it was had (`miss`: compiled here, `hit`: in the cache), what it cost; problem: why there is
    none, with its code."""

    key: str
    name: str
    how: str
    seconds: float
    size: int
    problem: str = ""


def distinct(graphs: Sequence[Graph], session: Session) -> dict[str, Graph]:
    """The graphs by the key of their program, each once, with those of first calls (`Graph.start`)."""
    found: dict[str, Graph] = {}
    for graph in graphs:
        for each in (graph, graph.start.graph) if graph.start is not None else (graph,):
            key = fingerprint(each, session.chip, device.options_of(each, session)).key
            found.setdefault(key, each)
    return found


def compile_all(programs: dict[str, Graph], session: Session, jobs: int) -> Iterator[PrecompiledProgram]:
    """Compile the programs in `jobs` processes, largest graph first; yields each when it is done.

    Processes are forks, which have the graphs; where there are none, one after the other in this process.
    """
    order = sorted(programs, key=lambda key: -len(programs[key].ops))
    if jobs == 1 or len(order) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        for key in order:
            yield _compile(key, programs[key], session)
        return
    _work.update(programs=programs, session=session)
    try:
        with ProcessPoolExecutor(min(jobs, len(order)), multiprocessing.get_context("fork")) as pool:
            futures: list[Future[PrecompiledProgram]] = [pool.submit(_in_worker, key) for key in order]
            for future in as_completed(futures):
                yield future.result()
    finally:
        _work.clear()


_work: dict[str, object] = {}  # what the forks inherit


def _in_worker(key: str) -> PrecompiledProgram:
    programs, session = _work["programs"], _work["session"]
    assert isinstance(programs, dict)
    assert isinstance(session, Session)
    return _compile(key, programs[key], session)


def _compile(key: str, graph: Graph, session: Session) -> PrecompiledProgram:
    started = time.perf_counter()
    try:
        executable = device.compile_graph(graph, session)
    except TrnlabError as error:
        return PrecompiledProgram(
            key, graph.name, "refused", time.perf_counter() - started, 0, f"{error.code}: {error.what}"
        )
    size = session.cache.sizes.get(key, 0) if session.cache is not None else 0
    return PrecompiledProgram(key, graph.name, executable.cache, time.perf_counter() - started, size)
