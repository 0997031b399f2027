# SPDX-License-Identifier: Apache-2.0
"""A candidate's kernel as a trial. Its code runs in contained processes, once for each compiler that it is recorded
for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from trnlab.bench import contained
from trnlab.bench.candidate import KernelCandidate
from trnlab.bench.ideas import bits
from trnlab.bench.ideas.trial import KernelTrial
from trnlab.bench.ladder import KernelBench
from trnlab.bench.recording import RecordingJob
from trnlab.chips.spec import Chip
from trnlab.nki import portable
from trnlab.nki.portable import PortableKernel
from trnlab.nki.target import default_chip
from trnlab.view.request import ResourceLimits


def trial_of(bench: KernelBench, one: KernelCandidate) -> KernelTrial:
    """The trial of a candidate for the inputs of a bench. Raises what recording it raises, and UsageError (TRN849)
    for kernels that changes cannot be tried on."""
    arguments, chip = bench.arguments(), default_chip()
    job = replace(bench.job(one, arguments), policies=("",))
    (kernel,) = _recorded([""], job, bench.limits, chip)
    assert kernel is not None
    cases = bits.BitCases(arguments, bench.spec.seed)
    return KernelTrial(kernel, chip, cases, partial(_recorded, job=job, limits=bench.limits, chip=chip))


def _recorded(
    names: Sequence[str], job: RecordingJob, limits: ResourceLimits, chip: Chip
) -> list[PortableKernel | None]:
    """The kernel under policies of these names; None where another than the usual one refuses it."""
    (found,) = contained.recordings([replace(job, policies=tuple(names))], limits)
    if found.error is not None:
        raise found.error
    contents = [found.contents.get(name) for name in names]
    return [None if content is None else portable.loads(content, chip) for content in contents]
