# SPDX-License-Identifier: Apache-2.0
"""Which packages belong together: releases of the vendor's SDK, and whether what is installed is of one of them.

`releases.csv`: from src/helperscripts/n2-manifest.json (2026-08-17) of aws-neuron/aws-neuron-sdk at 81ce03ae.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

SOURCE = "n2-manifest.json of aws-neuron/aws-neuron-sdk, 2026-08-17 (81ce03ae)"
NAMES = (
    "torch-neuronx",
    "torch-xla",
    "libneuronxla",
    "neuronx-cc",
    "nki",
    "jax-neuronx",
    "neuronx-distributed",
    "neuronx-distributed-training",
)
_FRAMEWORKS = {"torch-neuronx": "torch", "torch-xla": "torch", "jax-neuronx": "jax"}


@dataclass(frozen=True)
class Package:
    """One of a release. pythons: that it is made for, such as "3.11"."""

    sdk: str
    name: str
    version: str
    pythons: tuple[str, ...]


@functools.cache
def known() -> tuple[Package, ...]:
    """All packages of all releases from 2.24 on, the newest first."""
    with files(__package__).joinpath("releases.csv").open(encoding="utf-8") as file:
        return tuple(
            Package(row["sdk"], row["package"], row["version"], tuple(row["pythons"].split()))
            for row in csv.DictReader(file)
        )


@dataclass(frozen=True)
class PackageMismatch:
    """Packages that do not fit. grave: they are known not to; otherwise nothing is known of them."""

    what: str
    got: str
    limit: str
    remedy: str
    grave: bool = True


def misfits(installed: Mapping[str, str], python: str) -> Iterator[PackageMismatch]:
    """What of the installed packages, by name and version, does not fit each other or this Python."""
    mine = {name: version for name, version in installed.items() if name in NAMES and name != "torch-xla"}
    releases = {name: _releases(name, version) for name, version in mine.items()}
    for name, of in releases.items():
        if not of:
            yield PackageMismatch(
                f"{name} {mine[name]} is of no release that is known",
                f"{name} {mine[name]}",
                SOURCE,
                "compare it with the release notes of its SDK",
                grave=False,
            )
    placed = {name: of for name, of in releases.items() if of}
    if placed and not set.intersection(*map(set, placed.values())):
        told = "; ".join(f"{name} {mine[name]}: SDK {', '.join(of)}" for name, of in sorted(placed.items()))
        newest = max((max(of, key=_numbers) for of in placed.values()), key=_numbers)
        yield PackageMismatch(
            "packages are of different releases of the SDK",
            told,
            f"one release of {SOURCE}",
            f"install all of one release, e.g. {newest}",
        )
    yield from _frameworks(installed, mine)
    for package in known():
        if mine.get(package.name) == package.version and package.pythons and python not in package.pythons:
            yield PackageMismatch(
                f"{package.name} {package.version} is not made for this Python",
                python,
                ", ".join(package.pythons),
                f"use Python {package.pythons[-1]}",
            )
            return


def _frameworks(installed: Mapping[str, str], mine: Mapping[str, str]) -> Iterator[PackageMismatch]:
    """A framework's plugin begins with the version of the framework that it is for."""
    for name in ("torch-neuronx", "jax-neuronx"):
        framework = _FRAMEWORKS[name]
        if name not in mine:
            continue
        wanted, have = _minor(mine[name]), installed.get(framework)
        ranged = name == "jax-neuronx" and _numbers(wanted) >= (0, 10)  # supports JAX 0.7.0 to 0.10.0
        fits = have is not None and (
            (0, 7) <= _numbers(_minor(have)) <= _numbers(wanted) if ranged else _minor(have) == wanted
        )
        if not fits:
            yield PackageMismatch(
                f"{name} {mine[name]} is for another {framework}",
                f"{framework} {have or 'missing'}",
                f"{framework} {'0.7 to ' if ranged else ''}{wanted}",
                f"pip install '{framework}=={wanted}.*'",
            )


def _releases(name: str, version: str) -> list[str]:
    return [each.sdk for each in known() if (each.name, each.version) == (name, version.split("+")[0])]


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
