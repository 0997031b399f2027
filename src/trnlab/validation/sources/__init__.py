# SPDX-License-Identifier: Apache-2.0
"""Kernels timed from their own sources: what a user's kernel goes through, recording, scheduling and all.

    trnlab validate --sources DIR

The sources belong to others and are not a part of trnlab. `catalogue` lists them with what was measured, `checkout`
reads them out of clones that lie in DIR, `run` times them, `results` holds what came out last.
"""

from trnlab.validation.sources.catalogue import SourceKernel, load
from trnlab.validation.sources.checkout import fetch_list, missing
from trnlab.validation.sources.recording_cache import RecordingCache
from trnlab.validation.sources.report import document, sections, to_json
from trnlab.validation.sources.results import KernelRow, TimedKernel, record, recorded
from trnlab.validation.sources.run import time_all

__all__ = [
    "KernelRow",
    "RecordingCache",
    "SourceKernel",
    "TimedKernel",
    "document",
    "fetch_list",
    "load",
    "missing",
    "record",
    "recorded",
    "sections",
    "time_all",
    "to_json",
]
