# SPDX-License-Identifier: Apache-2.0
"""How implementations store the weights that a definition asks for: matrices either way round, in more dimensions or
fewer, those that read the same thing as one, experts apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from math import prod

from trnlab.fleet.models.counts import BIAS, Asked

Shape = tuple[int, ...]


def plain(shape: Iterable[int]) -> Shape:
    """Whichever way round a weight is kept, without dimensions of 1."""
    return tuple(sorted(n for n in shape if n != 1))


def plainly(shapes: Iterable[Shape]) -> Counter[Shape]:
    """So many weights of each shape."""
    return Counter(map(plain, shapes))


def stores(has: Counter[Shape], asked: Asked) -> bool:
    """Whether weights of just these shapes, as `plainly` gives them, can be those that are asked for."""
    size = sum(prod(shape) * n for shape, n in has.items())
    return size == asked.size and any(_matched(has, plainly(shapes)) for shapes in _ways(asked))


def _ways(asked: Asked) -> Iterator[list[Shape]]:
    """Shapes of all weights, in each way in which they may be stored."""
    free = [n for n in asked.shapes if not n.endswith(BIAS) and not any(n in group for group in asked.together)]
    groups = [*asked.together, *((name,) for name in free)]
    for parted in product(*(_parted(group) for group in groups)):
        joined = [part for parts in parted for part in parts]
        for apart in (False, True) if asked.experts else (False,):
            yield list(chain.from_iterable(_one(asked, part, apart) for part in joined))


def _parted(names: Sequence[str]) -> Iterator[list[Sequence[str]]]:
    """Each way to cut a list into lists of neighbours."""
    if not names:
        yield []
    for i in range(1, len(names) + 1):
        for rest in _parted(names[i:]):
            yield [names[:i], *rest]


def _one(asked: Asked, names: Sequence[str], apart: bool) -> Iterator[Shape]:
    """Shapes of weights that are stored as one, beside each other by their rows, and of their biases. apart: experts
    each by themselves."""
    shapes = [asked.shapes[name] for name in names]
    if len(names) > 1:
        *before, _, columns = shapes[0]
        shapes = [(*before, sum(shape[-2] for shape in shapes), columns)]
    if apart and names[0] in asked.experts:
        shapes *= shapes[0][0]
        shapes = [shape[1:] for shape in shapes]
    yield from shapes
    biases = [asked.shapes[name + BIAS][0] for name in names if name + BIAS in asked.shapes]
    if biases:
        yield (sum(biases),)


def _matched(has: Counter[Shape], wanted: Counter[Shape]) -> bool:
    """Whether each weight is one that is wanted, some of them in other dimensions."""
    return _paired(list((has - wanted).elements()), wanted - has)


def _paired(left: list[Shape], wanted: Counter[Shape]) -> bool:
    if not left:
        return not +wanted
    first, *rest = left
    fits = [shape for shape, n in wanted.items() if n and (_refines(first, shape) or _refines(shape, first))]
    return any(_paired(rest, wanted - Counter([shape])) for shape in fits)


def _refines(fine: Shape, coarse: Shape) -> bool:
    """Whether the dimensions of one, taken together in groups, are those of the other."""
    if prod(fine) != prod(coarse) or len(fine) <= len(coarse):
        return False
    if len(coarse) < 2:
        return True
    head, *others = coarse
    return any(
        prod(taken) == head and (len(others) == 1 or _refines(rest, tuple(others)) or rest == tuple(others))
        for taken, rest in _taken(fine)
    )


def _taken(shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Some dimensions, and the others."""
    for chosen in product((False, True), repeat=len(shape)):
        yield tuple(n for n, c in zip(shape, chosen) if c), tuple(n for n, c in zip(shape, chosen) if not c)
