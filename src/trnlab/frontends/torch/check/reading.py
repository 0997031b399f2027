# SPDX-License-Identifier: Apache-2.0
"""What a step waits for the batches of `trnlab.data` that it takes, as part of what the step takes and costs."""

from __future__ import annotations

from collections.abc import Mapping

from trnlab.chips.catalog import Target
from trnlab.estimate.result import TargetResult
from trnlab.frontends.torch.data import Loader
from trnlab.runtime.session import Session


def account(result: TargetResult, read: Mapping[Loader, int], target: Target, session: Session) -> None:
    """Set how long a step waits for its data on a target; rates, MFU and prices are with that then.

    read: batches that a step takes of each loader. Those in stores without figures (`memory://`) are left out.
    """
    step_s = result.step_s if result.job is None else result.job.step_s
    if not read or not step_s:
        return
    from trnlab.fleet.reliability import data_cost  # a planner takes a while

    ranks = None if result.job is not None else _readers(result)
    costs = {
        loader: loader.cost(step_s, target, session.instances if result.job is not None else 1, batches, ranks)
        for loader, batches in read.items()
    }
    known = {loader: cost for loader, cost in costs.items() if cost is not None}
    result.reading = [
        {
            "place": loader.reader.shards.store.url,
            "batches": read[loader],
            "reading_s": cost.reading,
            **cost.as_json(),
        }
        for loader, cost in known.items()
    ]
    result.input_s = data_cost.waited(list(known.values()), step_s)
    _longer(result, 1 + result.input_s / step_s)


def _readers(result: TargetResult) -> int:
    """Ranks of an instance whose cores work on batches of their own, as its rates and prices are told."""
    return max(result.cores // (result.layout.cores if result.layout is not None else 1), 1)


def _longer(result: TargetResult, times: float) -> None:
    """A step takes so many times as long."""
    if result.job is not None:
        result.job.input_s = result.input_s
        result.job.usd_per_step *= times
    result.mfu = None if result.mfu is None else result.mfu / times
    result.per_s = None if result.per_s is None else result.per_s / times
    result.per_s_of_core = None if result.per_s_of_core is None else result.per_s_of_core / times
    result.usd_per_step = None if result.usd_per_step is None else result.usd_per_step * times
    result.usd_per_million = None if result.usd_per_million is None else result.usd_per_million * times
