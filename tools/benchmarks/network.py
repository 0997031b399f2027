# SPDX-License-Identifier: Apache-2.0
"""How long it takes to time collectives on the network of a cluster."""

from __future__ import annotations

from benchmarks import lines
from trnlab.fabric.cluster import parse
from trnlab.fabric.nccom import Bench
from trnlab.fabric.network import build
from trnlab.units import GIB

ROUNDS = 5


def timed(target: str) -> float:
    """Time 1 GiB reduced by all ranks of a cluster, the making of its network included."""
    cluster = parse(target)
    bench = Bench("all_reduce", build(cluster), cluster.placed(cluster.ranks), [range(cluster.ranks)])
    return bench.row(GIB).cost.seconds


def main() -> None:
    """Measure and report."""
    one, many = lines.in_turns([lambda: timed("trn2.48xlarge"), lambda: timed("1024xtrn2.48xlarge")], ROUNDS)
    lines.report(
        [
            lines.at_most("network: all-reduce of 1 GiB, 64 ranks", one * 1e3, 50, "ms"),
            lines.at_most("network: the same on 1,024 instances, 65,536 ranks", many, 2, "s"),
        ]
    )


if __name__ == "__main__":
    main()
