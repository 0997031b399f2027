# SPDX-License-Identifier: Apache-2.0
"""What environment variables of the vendor's runtime and compiler and of EFA may say, and what is wrong with others.

Sources, of aws-neuron/aws-neuron-sdk at 81ce03ae (2026-08-21): nrt-configurable-parameters.rst for NEURON_RT_*,
setup-trn1-multi-node-execution.rst for FI_*, nrt-troubleshoot.rst for fork safety, and of the compiler
api-reference-guide/index.rst for NEURON_CC_FLAGS.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trnlab.errors import nearest

Complaint = tuple[str, str]  # what a value may be, and the way out
Judge = Callable[[str, "DeploymentTarget"], "Complaint | None"]
LEVELS = ("ERROR", "WARNING", "WARN", "INFO", "DEBUG", "TRACE", "QUIET")
NEW_ENOUGH = (5, 15)  # kernels that need no fork safety of EFA


@dataclass(frozen=True)
class DeploymentTarget:
    """Where a job is to run: logical cores of an instance, instances, the release of the kernel."""

    cores: int
    instances: int
    kernel: tuple[int, ...]


def _one_of(*allowed: str) -> Judge:
    told = ", ".join(allowed)

    def judge(value: str, place: DeploymentTarget) -> Complaint | None:
        return (
            None if value.upper() in (a.upper() for a in allowed) else (told, f"set it to one of {told}, or unset it")
        )

    return judge


def _whole(least: int, most: int | None = None) -> Judge:
    limit = f"a whole number from {least}" + ("" if most is None else f" to {most}")

    def judge(value: str, place: DeploymentTarget) -> Complaint | None:
        fits = value.isdecimal() and int(value) >= least and (most is None or int(value) <= most)
        return None if fits else (limit, f"set it to {limit}, or unset it")

    return judge


def _cores(value: str, place: DeploymentTarget) -> Complaint | None:
    if value.isdecimal() and int(value) <= place.cores:
        return None
    return f"0 (all) to {place.cores} cores of the instance", f"set it to {place.cores} or fewer, or unset it for all"


def _visible(value: str, place: DeploymentTarget) -> Complaint | None:
    limit = f"cores 0 to {place.cores - 1}, as 0-3 or 0,2,4-7"
    found = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in value.split(",")]
    ranges = [(int(part[1]), int(part[2] or part[1])) for part in found if part is not None]
    if len(ranges) == len(found) and all(first <= last < place.cores for first, last in ranges):
        return None
    return limit, f"name {limit}"


def _address(value: str, place: DeploymentTarget) -> Complaint | None:
    host, _, port = value.rpartition(":")
    if host and port.isdecimal() and 0 < int(port) < 65536:
        return None
    return "ADDRESS:PORT of the first instance", "such as 10.0.0.5:44000"


def _compiler(value: str, place: DeploymentTarget) -> Complaint | None:
    try:
        words = shlex.split(value)
    except ValueError as error:
        return "options as on a command line", f"close the quotes ({error})"
    for word in words:
        if word.startswith("-O") and word not in ("-O1", "-O2", "-O3"):
            return "-O1, -O2 or -O3", f"replace {word}"
        if word.startswith("--model-type=") and word[13:] not in ("generic", "transformer", "unet-inference"):
            return "--model-type=generic, transformer or unet-inference", f"replace {word}"
    return None


def _fork_safe(value: str, place: DeploymentTarget) -> Complaint | None:
    return _one_of("0", "1")(value, place)


JUDGES: Mapping[str, Judge] = {
    "NEURON_RT_NUM_CORES": _cores,
    "NEURON_RT_VISIBLE_CORES": _visible,
    "NEURON_RT_LOG_LEVEL": _one_of(*LEVELS),
    "NEURON_RT_LOG_LOCATION": _one_of("console", "syslog"),
    "NEURON_RT_EXEC_TIMEOUT": _whole(0, 2**31 - 1),
    "NEURON_RT_VALIDATE_HASH": _one_of("true", "false", "1", "0"),
    "NEURON_RT_MULTI_INSTANCE_SHARED_WEIGHTS": _one_of("true", "false", "1", "0"),
    "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": _whole(0, 2**31 - 1),
    "NEURON_RT_ALLOW_LEGACY_NEFF": _one_of("true", "false", "1", "0"),
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": _one_of("0", "1"),
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED": _whole(0),
    "NEURON_RT_ROOT_COMM_ID": _address,
    "NEURON_LOGICAL_NC_CONFIG": _one_of("1", "2"),
    "NEURON_CC_FLAGS": _compiler,
    "FI_EFA_USE_DEVICE_RDMA": _one_of("1"),
    "FI_EFA_FORK_SAFE": _fork_safe,
    "FI_PROVIDER": _one_of("efa"),
}
MULTI = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}  # what a job of several instances needs
OLD = {
    "NEURONCORE_GROUP_SIZES": "use NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES",
    "XLA_USE_BF16": "cast the model to bfloat16, or use autocast",
    "XLA_DOWNCAST_BF16": "cast the model to bfloat16, or use autocast",
}


@dataclass(frozen=True)
class SettingProblem:
    """A variable that is wrong or missing. grave: the job will not work with it."""

    name: str
    what: str
    got: str
    limit: str
    remedy: str
    grave: bool = True


def judged(environment: Mapping[str, str], place: DeploymentTarget) -> Iterator[SettingProblem]:
    """Everything that is wrong with these variables for this place."""
    for name, judge in JUDGES.items():
        value = environment.get(name)
        complaint = judge(value, place) if value is not None else None
        if value is not None and complaint is not None:
            yield SettingProblem(name, f"{name} has a value that it cannot have", repr(value), *complaint)
    yield from _several(environment, place)
    yield from _together(environment)
    for name in sorted(set(environment) & set(OLD)):
        yield SettingProblem(
            name, f"{name} is no longer read, or not for long", environment[name], "unset", OLD[name], False
        )
    for name in sorted(environment):
        if name.startswith("NEURON_RT_") and name not in JUDGES:
            close = nearest(name, JUDGES, cutoff=0.85)
            if close and not name.startswith(("NEURON_RT_LOG_LEVEL_", "NEURON_RT_LOG_LOCATION_")):
                yield SettingProblem(
                    name, f"{name} is not known", environment[name], close, f"did you mean {close}?", False
                )


def _several(environment: Mapping[str, str], place: DeploymentTarget) -> Iterator[SettingProblem]:
    """What several instances need to talk over EFA."""
    if place.instances < 2:
        return
    for name, value in MULTI.items():
        if name not in environment:
            yield SettingProblem(
                name,
                f"{name} is not set, and several instances talk over EFA",
                "unset",
                value,
                f"export {name}={value}",
            )
    if place.kernel and place.kernel < NEW_ENOUGH and environment.get("FI_EFA_FORK_SAFE") != "1":
        yield SettingProblem(
            "FI_EFA_FORK_SAFE",
            "forks beside EFA on an old kernel",
            ".".join(map(str, place.kernel)),
            "1 on kernels before 5.15",
            "export FI_EFA_FORK_SAFE=1",
        )


def _together(environment: Mapping[str, str]) -> Iterator[SettingProblem]:
    if "NEURON_RT_VISIBLE_CORES" in environment and "NEURON_RT_NUM_CORES" in environment:
        yield SettingProblem(
            "NEURON_RT_NUM_CORES",
            "NEURON_RT_VISIBLE_CORES comes first, and this one is not read",
            environment["NEURON_RT_NUM_CORES"],
            "one of the two",
            "unset one of them",
            False,
        )
    inflight = environment.get("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "")
    if inflight.isdecimal() and int(inflight) > 3:
        yield SettingProblem(
            "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS",
            "so many requests may not fit in memory",
            inflight,
            "up to 3, as the vendor recommends",
            "set it to 3",
            False,
        )
