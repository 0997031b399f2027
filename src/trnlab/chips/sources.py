# SPDX-License-Identifier: Apache-2.0
"""Where the figures come from, and short ways to write one down.

The vendor's pages are those of github.com/aws-neuron/aws-neuron-sdk at commit 81ce03ae (August 2026); a source reads
"page:line". The measured profiles are Neuron profiler dumps of attention kernels on a trn2.3xlarge, published in
github.com/allenkchau/trainium-kernel-fusion at commit d709ddf1.
"""

from __future__ import annotations

from trnlab.chips.spec import Confidence, Figure, PerDtype

ARCH1 = "nki/guides/architecture/trainium_inferentia2_arch.rst"
ARCH2 = "nki/guides/architecture/trainium2_arch.rst"
ARCH3 = "nki/guides/architecture/trainium3_arch.rst"
CHIP1 = "about-neuron/arch/neuron-hardware/trainium.rst"
CHIP2 = "about-neuron/arch/neuron-hardware/trainium2.rst"
CHIP3 = "about-neuron/arch/neuron-hardware/trainium3.rst"
CORE2 = "about-neuron/arch/neuron-hardware/neuron-core-v2.rst"
PERF = "nki/deep-dives/nki_perf_guide.rst"
BANDWIDTH = "nki/deep-dives/nki-dma-bandwidth-guide.rst"
DGE = "nki/deep-dives/nki-dge.rst"
DMA_INTRO = "nki/get-started/about/nki-dma-overview.rst"
ISA = "nki/api/nki/isa/__init__.py"
# One text for trn1 and trn2: autocomp/agent_builder/.built/{trn1,trn2}-nki1.
ISA_OLD = "isa_docs.md of ucb-bar/autocomp (the vendor's earlier instruction pages)"
MATMUL = "nki/guides/tutorials/kernel-optimization.rst"
COLLECTIVES = "neuron-runtime/explore/intranode-collective-comm.rst"
OVERLAP = "neuron-runtime/explore/compute-comm-overlap.rst"
NCCOM = "tools/neuron-sys-tools/nccom-test.rst"
CONVOLUTION = "ucb-bar/autocomp at dd26a565, examples/trn-advanced/4_conv1d_trace.py, steps 5 and 6"
MAMBA = "nki/guides/tutorials/fused_mamba.rst"
PROFILES = "trainium-kernel-fusion profiles of 512 keys"
PUBLIC = "calibration rows of validation/data/sources/kernels.toml"


def documented(value: float, unit: str, source: str) -> Figure:
    """The vendor says so."""
    return Figure(value, unit, Confidence.DOCUMENTED, source)


def measured(value: float, unit: str, source: str) -> Figure:
    """Read from somebody's run of a real chip."""
    return Figure(value, unit, Confidence.MEASURED, source)


def derived(value: float, unit: str, source: str) -> Figure:
    """Arithmetic from documented or measured figures; `source` says which."""
    return Figure(value, unit, Confidence.DERIVED, source)


def assumed(value: float, unit: str, reason: str) -> Figure:
    """Nothing is published; `reason` says why this value."""
    return Figure(value, unit, Confidence.ASSUMED, reason)


def per_dtype(float32: Figure, half: Figure, fp8: Figure | None = None, fp8_e5m2: Figure | None = None) -> PerDtype:
    """The PE array's formats: float32, the half-width ones (tf32 streams like them), and the FP8 pair."""
    e4 = fp8 or half
    return PerDtype(float32, half, half, half, e4, fp8_e5m2 or e4)
