# SPDX-License-Identifier: Apache-2.0
"""What accelerators reach of their peaks, from `efficiency.toml`; where nobody measured it, that is said."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trnlab.fleet.gpus.catalogue import Accelerator, Instance

LOW, HIGH = 0.5, 0.95  # of the peak, where no best product is published: about the least and most of those that are
_NETWORKS = {"aws": "efa", "gcp": "ethernet"}
INFINIBAND = "infiniband"


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("efficiency.toml").read_text("utf-8"))


@dataclass(frozen=True)
class MatmulEfficiency:
    """The best matrix product of an accelerator: its share of the peak, and whether somebody measured that."""

    share: float
    published: bool
    source: str


def product(accelerator: Accelerator, form: str) -> MatmulEfficiency:
    """Efficiency of the best product in a format."""
    known = _data()["matrix"]
    share = known.get(form, {}).get(accelerator.name)
    if share is not None:
        return MatmulEfficiency(share, True, known["source"])
    return MatmulEfficiency(
        (LOW + HIGH) / 2, False, f"assumed: no best product in {form} is published for {accelerator.name}"
    )


def of_size(flops: float) -> float:
    """Efficiency of that again, for a product of so many operations."""
    return _step(_data()["size"]["steps"], flops)


def of_memory(nbytes: float) -> float:
    """Efficiency of the memory's bandwidth, for so many bytes."""
    return _step(_data()["memory"]["steps"], nbytes)


def _step(steps: list[tuple[float, float]], size: float) -> float:
    return next(share for least, share in steps if size >= least)


@dataclass(frozen=True)
class Path:
    """A way between accelerators: byte/s of one of them in one direction, seconds to start, and the source."""

    bandwidth: float
    latency: float
    source: str

    def ring(self, nbytes: float, count: int, passes: int = 1) -> float:
        """Seconds of `passes` ring passes over `count` members: 1 for a gather or reduce-scatter of so many bytes,
        2 for an all-reduce."""
        if count < 2 or nbytes <= 0:
            return 0.0
        return passes * (count - 1) / count * nbytes / self.bandwidth + self.latency

    def send(self, nbytes: float) -> float:
        """Seconds of one message."""
        return nbytes / self.bandwidth + self.latency


def inside(instance: Instance) -> Path:
    """Within the domain that fast links join."""
    link = _data()["link"]
    return Path(max(instance.accelerator.link, 1.0) * link["share"], link["latency"], link["source"])


def between(instance: Instance, network: str = "") -> Path:
    """To other instances, which the accelerators of one share."""
    name = network or _NETWORKS.get(instance.provider, INFINIBAND)
    out = _data()["scaleout"][name]
    return Path(instance.scaleout / instance.count * out["share"], out["latency"], out["source"])
