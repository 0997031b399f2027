# SPDX-License-Identifier: Apache-2.0
"""Whether a host is fit for a job: packages, environment, disk, limits, clock, huge pages, cache, a script's needs.

A check takes a `HostFacts`, which is what is known of a host, and yields findings; so each is tried on hosts of any
kind. A host without devices simulates them: what only a real one needs is then said as a warning.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trnlab.errors import TrnlabError
from trnlab.estimate.result import Report
from trnlab.fabric.cluster import Cluster
from trnlab.operations import host, releases, settings
from trnlab.storage import is_url, open_store
from trnlab.storage.store_errors import reason
from trnlab.units import format_bytes

ERROR, WARNING, OK = "error", "warning", "ok"
PACKAGES = ("torch", "jax", "tensorflow", "tensorflow-cpu", "numpy", *releases.NAMES)
ROOM = 5 << 30  # bytes of free disk below which a warning is due (assumed: a few caches of programs and a profile)
FILES_PER_RANK = 64  # open files of a rank besides its connections (assumed: libraries, the store, the run)
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


@dataclass(frozen=True)
class HostFinding:
    """What a check found. where: a variable, a folder. `limit`, `got` and `remedy` are empty where all is well."""

    code: str
    severity: str
    what: str
    where: str = ""
    limit: str = ""
    got: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class HostFacts:
    """What is known of a host, and of the job that it is for."""

    cluster: Cluster
    ranks: int
    environment: Mapping[str, str]
    packages: Mapping[str, str]
    python: str
    kernel: tuple[int, ...]
    devices: int
    adapters: int
    limits: Mapping[str, int]  # soft limits of memlock (bytes) and nofile, -1 for none
    free: Mapping[str, int]  # bytes of free disk by folder
    year: int  # of the clock
    synchronised: bool | None  # whether something keeps it, None where that is not known
    memory: Mapping[str, int]
    # cache, checkpoints: places
    cache: str
    checkpoints: str | None = None
    keep: int = 3
    report: Report | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def real(self) -> bool:
        """Whether it has Neuron devices."""
        return self.devices > 0


def this_host(cluster: Cluster, ranks: int, cache: str, checkpoints: str | None, keep: int) -> HostFacts:
    """What this host says of itself."""
    environment = dict(os.environ)
    return HostFacts(
        cluster,
        ranks,
        environment,
        _packages(),
        platform.python_version().rpartition(".")[0],
        _kernel(),
        len([*Path("/dev").glob("neuron[0-9]*")]),
        len([*Path("/sys/class/infiniband").glob("*")]),
        _limits(),
        _free(cache, checkpoints),
        time.gmtime().tm_year,
        _synchronised(),
        host.memory(),
        cache,
        checkpoints,
        keep,
    )


def examine(site: HostFacts) -> list[HostFinding]:
    """All findings, the gravest first, each kind in the order of the checks."""
    found = [finding for check in CHECKS for finding in check(site)]
    return sorted(found, key=lambda finding: (ERROR, WARNING, OK).index(finding.severity))


def failed(found: Sequence[HostFinding]) -> bool:
    """Whether the job would not work."""
    return any(finding.severity == ERROR for finding in found)


# -- the checks ---------------------------------------------------------------------------------------------------
def packages(site: HostFacts) -> Iterator[HostFinding]:
    """TRN559: versions that fit each other."""
    wrong = list(releases.misfits(site.packages, site.python))
    for each in wrong:
        yield HostFinding(
            "TRN559", ERROR if each.grave else WARNING, each.what, "packages", each.limit, each.got, each.remedy
        )
    if site.real and not set(site.packages) & {"torch-neuronx", "jax-neuronx", "libneuronxla"}:
        yield HostFinding(
            "TRN559",
            ERROR,
            "there are devices, and no package that uses them",
            "packages",
            "torch-neuronx, jax-neuronx or libneuronxla",
            "none of them",
            "pip install from https://pip.repos.neuron.amazonaws.com",
        )
    if not wrong:
        have = ", ".join(f"{name} {version}" for name, version in site.packages.items())
        yield HostFinding("TRN559", OK, f"Python {site.python}; {have or 'no framework'}")


def environment(site: HostFacts) -> Iterator[HostFinding]:
    """TRN560: variables of runtime, compiler and EFA."""
    place = settings.DeploymentTarget(
        site.cluster.target.chips * site.cluster.ranks_per_chip, site.cluster.instances, site.kernel
    )
    wrong = list(settings.judged(site.environment, place))
    for each in wrong:
        missing_here = not site.real and each.got == "unset"
        grave = each.grave and not missing_here
        yield HostFinding(
            "TRN560", ERROR if grave else WARNING, each.what, each.name, each.limit, each.got, each.remedy
        )
    if not wrong:
        told = sum(name in site.environment for name in settings.JUDGES)
        yield HostFinding(
            "TRN560", OK, f"{told} variables of runtime and EFA are set" if told else "runtime and EFA as usual"
        )


def devices(site: HostFacts) -> Iterator[HostFinding]:
    """TRN567: devices and network adapters of a real host."""
    if not site.real:
        yield HostFinding("TRN567", OK, f"no Neuron devices: {site.cluster.name} is simulated here")
        return
    wanted = site.cluster.target.chips
    if site.devices != wanted:
        yield HostFinding(
            "TRN567",
            ERROR,
            "the host has another number of devices than the target",
            "/dev/neuron*",
            f"{wanted} on {site.cluster.target.name}",
            str(site.devices),
            "check the driver (neuron-ls), and the instance type",
        )
    if site.cluster.instances > 1 and not site.adapters:
        yield HostFinding(
            "TRN567",
            ERROR,
            "there is no EFA adapter",
            "/sys/class/infiniband",
            "at least one",
            "none",
            "start the instance with EFA interfaces, and install aws-efa-installer",
        )
    if site.devices == wanted and (site.adapters or site.cluster.instances == 1):
        yield HostFinding("TRN567", OK, f"{site.devices} devices, {site.adapters} network adapters")


def disk(site: HostFacts) -> Iterator[HostFinding]:
    """TRN561: room where runs, programs and checkpoints go."""
    need = checkpoint_bytes(site) * (site.keep + 1)
    for folder, free in site.free.items():
        least = need if folder == site.checkpoints else 0
        if free < least:
            yield HostFinding(
                "TRN561",
                ERROR,
                f"{site.keep} checkpoints and one that is written do not fit",
                folder,
                f"{format_bytes(least)}: {site.keep + 1} of {format_bytes(checkpoint_bytes(site))}",
                f"{format_bytes(free)} free",
                "free some space, keep fewer, or use s3://",
            )
        elif free < ROOM:
            yield HostFinding(
                "TRN561",
                WARNING,
                "little room is left on the disk",
                folder,
                format_bytes(ROOM),
                f"{format_bytes(free)} free",
                "free some space",
            )
        else:
            yield HostFinding("TRN561", OK, f"{format_bytes(free)} free in {folder}")


def limits(site: HostFacts) -> Iterator[HostFinding]:
    """TRN562: what a process may lock in memory, and how many files it may open."""
    memlock, nofile = site.limits.get("memlock", -1), site.limits.get("nofile", -1)
    several = site.cluster.instances > 1
    if several and memlock != -1:
        yield HostFinding(
            "TRN562",
            ERROR if site.real else WARNING,
            "EFA registers memory, which must not be limited",
            "ulimit -l",
            "unlimited",
            format_bytes(memlock),
            "'* - memlock unlimited' in /etc/security/limits.conf; --ulimit memlock=-1",
        )
    here = site.ranks // site.cluster.instances if site.real else site.ranks
    least = site.ranks + FILES_PER_RANK if site.real or here > 1 else FILES_PER_RANK
    if nofile != -1 and nofile < least:
        yield HostFinding(
            "TRN562",
            ERROR,
            "a rank may not open a connection to each of the others",
            "ulimit -n",
            f"{least}: {site.ranks} ranks, and {FILES_PER_RANK} besides",
            str(nofile),
            f"ulimit -n {max(65536, least)}",
        )
    elif not (several and memlock != -1):
        told = "unlimited" if memlock == -1 else format_bytes(memlock)
        yield HostFinding(
            "TRN562", OK, f"{told} memory locked, {'any number of' if nofile == -1 else nofile} files open"
        )


def clock(site: HostFacts) -> Iterator[HostFinding]:
    """TRN563: a clock that is wrong makes requests to S3 be refused, and certificates."""
    if site.year < 2026:
        yield HostFinding(
            "TRN563",
            ERROR,
            "the clock is years behind",
            "clock",
            "2026 or later",
            str(site.year),
            "synchronise it: systemctl start chronyd",
        )
    elif site.synchronised is False:
        yield HostFinding(
            "TRN563",
            WARNING,
            "nothing keeps the clock right, and S3 refuses requests 15 minutes off",
            "clock",
            "synchronised",
            "not synchronised",
            "systemctl start chronyd",
        )
    else:
        yield HostFinding(
            "TRN563", OK, "the clock is synchronised" if site.synchronised else "the clock says this year"
        )


def huge_pages(site: HostFacts) -> Iterator[HostFinding]:
    """TRN564: huge pages, which the EFA provider takes where it finds them."""
    pages = site.memory.get("HugePages_Total", 0)
    if site.real and site.cluster.instances > 1 and not pages:
        yield HostFinding(
            "TRN564",
            WARNING,
            "no huge pages are set aside; EFA's provider then uses small ones",
            "/proc/meminfo",
            "HugePages_Total above 0",
            "0",
            "sysctl -w vm.nr_hugepages=2560",
        )
    else:
        yield HostFinding("TRN564", OK, f"{pages} huge pages set aside")


def places(site: HostFacts) -> Iterator[HostFinding]:
    """TRN565: the cache and the place of checkpoints can be written, read and cleaned."""
    for what, where in (("cache", site.cache.split(",")[0]), ("checkpoints", site.checkpoints)):
        if not where:
            continue
        try:
            store, name = open_store(where), f"doctor-{os.getpid()}-{time.time_ns()}"
            store.write(name, b"trnlab doctor")
            read = store.read(name)
            store.delete(name)
        except (OSError, TrnlabError) as error:
            why = reason(error) if isinstance(error, OSError) else error.what
            yield HostFinding(
                "TRN565",
                ERROR,
                f"the place of {what} cannot be used: {why}",
                where,
                "it can be written",
                type(error).__name__,
                "check credentials and permissions, or name another place",
            )
            continue
        if read != b"trnlab doctor":
            yield HostFinding(
                "TRN565",
                ERROR,
                f"the place of {what} does not give back what was written",
                where,
                "the same bytes",
                f"{len(read)} other bytes",
                "name another place",
            )
        else:
            yield HostFinding("TRN565", OK, f"{what}: {where} can be written and read")


def script(site: HostFacts) -> Iterator[HostFinding]:
    """TRN566: what the script needs, by `trnlab check` or `trnlab estimate`."""
    if site.report is None:
        return
    for finding in site.report.having("error"):
        yield HostFinding(
            "TRN566",
            ERROR,
            finding.what,
            str(finding.place) or site.report.script,
            got=finding.code,
            remedy=finding.do or "trnlab check says more",
        )
    for target in site.report.targets:
        need, room = target.memory.total, target.capacity
        told = f"{format_bytes(need)} of a core's {format_bytes(room)} in HBM on {target.name}"
        if not target.fits:
            yield HostFinding(
                "TRN566",
                ERROR,
                "the step does not fit in the memory of a core",
                target.name,
                format_bytes(room),
                format_bytes(need),
                "trnlab check lists the largest",
            )
        else:
            checkpoint = format_bytes(checkpoint_bytes(site))
            yield HostFinding("TRN566", OK, f"{told}; a checkpoint takes {checkpoint}")


CHECKS: tuple[Callable[[HostFacts], Iterator[HostFinding]], ...] = (
    packages,
    environment,
    devices,
    disk,
    limits,
    clock,
    huge_pages,
    places,
    script,
)


def checkpoint_bytes(site: HostFacts) -> int:
    """Bytes of a checkpoint: parameters and the optimizer's state of each rank, all ranks together."""
    if site.report is None or not site.report.targets:
        return 0
    memory = site.report.targets[0].memory
    return (memory.parameters + memory.state) * max(1, site.ranks)


def with_report(site: HostFacts, report: Report) -> HostFacts:
    """The same host, for a script."""
    return replace(site, report=report)


# -- what comes out -----------------------------------------------------------------------------------------------
_MARKS = {ERROR: "ERROR", WARNING: "warn", OK: "ok"}


def text(site: HostFacts, found: Sequence[HostFinding]) -> str:
    """One page."""
    kind = "real" if site.real else "simulated"
    lines = [f"{site.cluster.name}, {kind}, {site.ranks} rank{'' if site.ranks == 1 else 's'}", ""]
    for finding in found:
        lines.append(f"{_MARKS[finding.severity]:<6} {finding.code}  {finding.what}")
        for label in ("where", "limit", "got", "remedy") if finding.severity != OK else ():
            if getattr(finding, label):
                lines.append(f"{'':<15}{'do' if label == 'remedy' else label:<6} {getattr(finding, label)}")
    errors, warnings = (sum(f.severity == severity for f in found) for severity in (ERROR, WARNING))
    verdict = "not fit for the job" if errors else "fit for the job"
    return "\n".join([*lines, "", f"{verdict}: {errors} errors, {warnings} warnings"])


def as_json(site: HostFacts, found: Sequence[HostFinding]) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "schema": "trnlab.doctor",
        "version": 1,
        "target": site.cluster.name,
        "ranks": site.ranks,
        "real": site.real,
        "failed": failed(found),
        "packages": dict(site.packages),
        "python": site.python,
        "findings": [asdict(finding) for finding in found],
    }


# -- this host ----------------------------------------------------------------------------------------------------
def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdecimal())


def _limits() -> dict[str, int]:
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # not of Unix
        return {}
    unlimited = resource.RLIM_INFINITY
    soft = {
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    return {name: -1 if value == unlimited else value for name, value in soft.items()}


def _free(cache: str, checkpoints: str | None) -> dict[str, int]:
    """Free space of the working folder, and of the places that are folders."""
    told = [str(Path.cwd()), *(place for place in (cache.split(",")[0], checkpoints) if place and not is_url(place))]
    found = {}
    for place in dict.fromkeys(told):
        existing = next((p for p in (Path(place).absolute(), *Path(place).absolute().parents) if p.exists()), None)
        if existing is not None:
            found[place] = shutil.disk_usage(existing).free
    return found


def _synchronised() -> bool | None:
    """As the kernel says, without a change to it; None where it says nothing."""
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    except (OSError, AttributeError, TypeError):
        return None
    return None if state < 0 else state != UNSYNCHRONISED
