# SPDX-License-Identifier: Apache-2.0
"""torch_xla.debug, its metrics and its profiler: nothing is counted or written; `trnlab run` keeps a timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trnlab.frontends.torch.xla.names import refusing


@contextmanager
def Trace(name: str = "", **_: Any) -> Iterator[None]:  # noqa: N802 (their name)
    """A block that is not traced."""
    yield


StepTrace = Trace


def trace_me(scope: str) -> Callable[[Any], Any]:
    """A decorator that changes nothing."""
    return lambda function: function


def start_server(port: int, **_: Any) -> None:
    """Nothing."""


start_trace = stop_trace = trace = trace_detached = lambda *_, **__: None


def metrics_report() -> str:
    """Where the figures are."""
    return "torch_xla counts nothing here: see the summary and timeline that trnlab run writes"


short_metrics_report = metrics_report


def clear_all() -> None:
    """Nothing."""


clear_counters = clear_metrics = clear_all


def counter_names() -> list[str]:
    """None."""
    return []


metric_names = counter_names


def counter_value(name: str) -> None:
    """No value."""


metric_data = counter_value


def get_tracer_marked_step() -> bool:
    """No: nothing traces."""
    return False


def set_tracer_marked_step(value: bool) -> None:
    """Nothing."""


__getattr__ = refusing(
    "torch_xla.debug", "trnlab run writes a summary and a timeline", ("metrics_compare_utils", "graph_saver")
)
