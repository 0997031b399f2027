# SPDX-License-Identifier: Apache-2.0
"""`trnlab fabric`: the network of a cluster, and the vendor's collectives benchmark on it."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from trnlab.chips.interconnects import RUNTIMES, beside_others
from trnlab.cli import options
from trnlab.errors import UsageError
from trnlab.fabric import faults, measured
from trnlab.fabric.cluster import parse
from trnlab.fabric.health import TOLERANCE, Health, examine
from trnlab.fabric.nccom import DTYPES, OPERATIONS, Bench, NccomRow, sizes
from trnlab.fabric.network import Network, build
from trnlab.fabric.show import text
from trnlab.files import write_atomic
from trnlab.units import GIB, KIB, MIB

NEWEST = next(iter(RUNTIMES))
_RUNTIME = (
    f"whose launches and steps: {', '.join(RUNTIMES)}; the last two, of tens of microseconds, are of runs of these "
    f"chips that the vendor prints with neither date nor release; default: {NEWEST}"
)
_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB}


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab fabric`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="chips, links, rings, rails")
    test = actions.add_parser("test", help="the vendor's nccom-test, predicted: same flags, table, JSON")
    health = actions.add_parser("health", help="what a real nccom-test wrote, against the prediction")
    _health_arguments(health)
    for action in (show, test, health):
        action.add_argument("--target", required=True, metavar="NAME", help="trn2.48xlarge, or 4xtrn1.32xlarge")
        options.setting(action, "fault")
        action.add_argument("--runtime", default=NEWEST, metavar="NAME", help=_RUNTIME)
        action.add_argument(
            "--streams", type=options.whole(1), default=1, metavar="COUNT", help="at work at once; default: 1"
        )
    for action in (test, health):
        _collective_arguments(action)
    add = test.add_argument
    add("operation", metavar="OPERATION", help="allr, allg, redsct, alltoall, sendrecv or permute")
    add("-b", "--minbytes", metavar="BYTES", help="default: 32M, or as many as --maxbytes")
    add("-e", "--maxbytes", metavar="BYTES", default="32M", help="default: 32M")
    add("-i", "--stepbytes", metavar="BYTES", help="from size to size; default: a tenth of the way")
    add("-f", "--stepfactor", type=options.whole(2), metavar="FACTOR", help="from size to size")
    add("-c", "--check", nargs="?", const="random", choices=("random", "all_ones"), help="run it on data, too")
    add("--seed", type=options.SEED, default=0, help="of the data; default: 0")
    add("--show-algorithm", action="store_true", help="a column with the algorithm")
    add("--show-input-output-size", action="store_true", help="two columns with the bytes in and out")
    add("--report-to-json-file", type=Path, metavar="FILE", help="write the table as JSON")


def _collective_arguments(action: argparse.ArgumentParser) -> None:
    """Which ranks take part, and with what."""
    add = action.add_argument
    add("-r", "--nworkers", type=options.RANKS, metavar="RANKS", help="default: all that the target holds")
    add("-d", "--datatype", default="uint8", metavar="TYPE", help="such as fp32 or bf16; default: uint8")
    add(
        "--data-parallel-dimension",
        type=options.RANKS,
        metavar="SIZE",
        help="groups of this size, as far apart as possible",
    )
    add("--custom-replica-groups", type=Path, metavar="FILE", help="groups of ranks, as JSON")
    add("--custom-src-target-pairs", type=Path, metavar="FILE", help="pairs of permute, as JSON")


def _health_arguments(action: argparse.ArgumentParser) -> None:
    add = action.add_argument
    add("file", metavar="REAL", type=Path, help="JSON of --report-to-json-file, or the table that was printed")
    add("--operation", default="allr", metavar="NAME", help="which collective it was; default: allr")
    add("--baseline", type=Path, metavar="FILE", help="the same test when all was well")
    add("--tolerance", type=options.real(0, 100), metavar="SHARE", help="how far a size may be off; default: 0.1")
    add("--json", action="store_true", help="for programs")


def main(args: argparse.Namespace) -> int:
    """Show a network, or test a collective on it."""
    _known("runtime", args.runtime, list(RUNTIMES))
    costs = RUNTIMES[args.runtime]
    costs = beside_others(costs) if args.streams > 1 else costs
    network = faults.applied(build(parse(args.target), costs), args.fault or [])
    if args.action == "show":
        print(text(network))
        return 0
    return _health(args, network) if args.action == "health" else _test(args, network)


def _health(args: argparse.Namespace, network: Network) -> int:
    """0 when every size is within the tolerance, 1 when one is not."""
    rows = measured.read(args.file)
    before = measured.read(args.baseline) if args.baseline else ()
    tolerance = TOLERANCE if args.tolerance is None else args.tolerance
    if not 0 < tolerance < 1:
        raise UsageError(
            "this tolerance decides nothing",
            code="TRN185",
            limit="a share between 0 and 1",
            got=tolerance,
            remedy="try 0.1",
        )
    found = examine(rows, _bench(args, network), tolerance, before)
    print(json.dumps(found.as_json(), indent=2) if args.json else _told(found))
    return 0 if found.healthy else 1


def _told(found: Health) -> str:
    lines = [f"{'size(B)':>12}  {'measured(us)':>13}  {'expected(us)':>13}  {'ratio':>6}  algorithm"]
    for row, expected, algorithm, off in zip(found.rows, found.expected, found.algorithms, found.off):
        mark = "  <- off" if off else ""
        lines.append(
            f"{row.size:>12}  {row.microseconds:>13.2f}  {expected:>13.2f}  "
            f"{row.microseconds / expected:>6.2f}  {algorithm}{mark}"
        )
    if found.healthy:
        lines.append(f"healthy: every size is within {found.tolerance:.0%} of what is expected")
    elif any(found.off):
        lines.append(
            f"not healthy: {sum(found.off)} of {len(found.off)} sizes are off by more than {found.tolerance:.0%}"
        )
    else:
        lines.append(
            f"not healthy: no size is off by more than {found.tolerance:.0%}, but all together are too far off"
        )
    if not found.healthy and not found.explained:
        lines.append("nothing that was thought of explains it: no card, wire, latency or algorithm, nor two at once")
    names = ["likeliest", *["or"] * len(found.suspects)]
    if found.healthy and found.suspects:
        names[0] = "not excluded"
    for name, suspect in zip(names, found.suspects):
        lines.append(f"{name}: {suspect.text} ({suspect.share:.0%} likely; leaves {suspect.off:.1%})")
    lines += [
        f"not sure: this test would not show {each.text} (it changes it by {each.off:.1%})" for each in found.unseen
    ]
    if found.suspects:
        sure = "sure" if found.sure else "not sure"
        lines.append(f"{sure}; a healthy network is {found.well:.0%} likely, of all that was thought of")
    if found.advice is not None:
        lines.append(found.advice.text)
    return "\n".join(lines)


def _test(args: argparse.Namespace, network: Network) -> int:
    bench = _bench(args, network)
    rows, failed = [], 0
    print("  ".join(_columns(args)))
    last = nbytes(args.maxbytes)
    first = nbytes(args.minbytes) if args.minbytes is not None else min(nbytes("32M"), last)
    for size in sizes(first, last, args.stepbytes and nbytes(args.stepbytes), args.stepfactor):
        row = bench.row(size)
        rows.append(row)
        line = "  ".join(f"{cell:>{len(head)}}" for head, cell in zip(_columns(args), _cells(args, row)))
        print(line, flush=True)
        if args.check and not bench.check(size, args.check == "all_ones", args.seed):
            print(f"{size}: results differ from what the operation means")
            failed += 1
    average = sum(row.busbw for row in rows) / len(rows)
    print(f"Avg bus bandwidth:\t{average:.4f}GB/s")
    print(
        f"busiest at {rows[-1].size} bytes: {rows[-1].cost.busiest or 'nothing'}, {rows[-1].cost.busy * 1e6:.1f} us"
    )
    if args.report_to_json_file:
        report = {"results": [row.as_json() for row in rows]}
        write_atomic(args.report_to_json_file, (json.dumps(report, indent=4) + "\n").encode())
    return 1 if failed else 0


def _bench(args: argparse.Namespace, network: Network) -> Bench:
    """The operation on its groups."""
    ranks = network.cluster.ranks if args.nworkers is None else args.nworkers
    placed = network.cluster.placed(ranks)
    operation = OPERATIONS.get(args.operation, args.operation)
    _known("operation", operation, [*OPERATIONS, *OPERATIONS.values()])
    _known("type", args.datatype, list(DTYPES))
    groups = [list(range(ranks))]
    if args.custom_replica_groups:
        groups = _listed(args.custom_replica_groups, "replica_groups", ranks)
    elif args.data_parallel_dimension:
        groups = _strided(ranks, args.data_parallel_dimension)
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    if args.custom_src_target_pairs:
        pairs = [(a, b) for a, b in _listed(args.custom_src_target_pairs, "src_target_pairs", ranks)]
    return Bench(operation, network, placed, groups, args.datatype, pairs)


def _known(what: str, got: str, names: list[str]) -> None:
    if got not in names:
        raise UsageError(
            f"unknown {what} {got!r}",
            code="TRN185",
            limit=", ".join(names),
            got=got,
            remedy=f"choose one of the {what}s above",
        )


def _strided(ranks: int, size: int) -> list[list[int]]:
    if size < 1 or ranks % size:
        raise UsageError(
            "the groups do not cover all ranks",
            code="TRN185",
            limit=f"a divisor of {ranks}",
            got=size,
            remedy="choose --data-parallel-dimension among the divisors of -r",
        )
    return [list(range(first, ranks, ranks // size)) for first in range(ranks // size)]


def _listed(path: Path, key: str, ranks: int) -> list[list[int]]:
    """Groups or pairs from a file as the vendor's tool reads it: the first entry of a list of lists of ranks."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))[key][0]
        rows = [[int(rank) for rank in row] for row in found]
        good = rows and all(0 <= rank < ranks for row in rows for rank in row)
        if key == "replica_groups":
            every = [rank for row in rows for rank in row]
            good = good and len({len(row) for row in rows}) == 1 and len(set(every)) == len(every)
    except (ValueError, KeyError, IndexError, TypeError):
        good = False
    if not good:
        raise UsageError(
            f"{path} holds no {key}",
            code="TRN186",
            got=path.name,
            limit=f'{{"{key}": [[[0, 1], [2, 3]]]}} with ranks below {ranks}, groups of one size, no rank twice',
            remedy="see the vendor's nccom-test guide for the format",
        )
    return rows


def nbytes(spelled: str) -> int:
    """1024, 8k, 32MB, 1gb as bytes. Raises UsageError (TRN185) for what is no size."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", spelled.lower())
    if found is None:
        raise UsageError(
            f"{spelled!r} is no size",
            code="TRN185",
            limit="bytes, or with K, M, G",
            got=spelled,
            remedy="try 32M",
        )
    return int(found[1]) * _UNITS[found[2]]


def _columns(args: argparse.Namespace) -> list[str]:
    both = ["total_input_size(B)", "total_output_size(B)"] if args.show_input_output_size else []
    names = [f"{name:>12}" for name in ("size(B)", "count(elems)", *both, "type", "time:avg(us)")]
    more = ["      algorithm"] if args.show_algorithm else []
    return [*names, "algbw(GB/s)", "busbw(GB/s)", *more]


def _cells(args: argparse.Namespace, row: NccomRow) -> list[str]:
    both = [str(row.input_size), str(row.output_size)] if args.show_input_output_size else []
    more = [row.algorithm] if args.show_algorithm else []
    return [
        str(row.size),
        str(row.count),
        *both,
        row.dtype,
        f"{row.microseconds:.2f}",
        f"{row.algbw:.2f}",
        f"{row.busbw:.2f}",
        *more,
    ]
