# SPDX-License-Identifier: Apache-2.0
"""Sizes of tiles on the chip that kernels are written for."""

from __future__ import annotations

from trnlab.chips.spec import Chip
from trnlab.lang.recorder import current, recording
from trnlab.nki.objects import NKIObject
from trnlab.nki.target import default_chip


class _TileSize(NKIObject):
    """Sizes of tiles that the hardware takes, for the chip at hand."""

    pmax = 128
    psum_fmax = psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = sbuf_min_align = 4

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks of a partition."""
        return _chip().psum.num_banks

    @property
    def sbuf_size_bytes(self) -> int:
        """SBUF of all partitions."""
        return int(_chip().sbuf.bytes_per_partition.value) * self.pmax

    @property
    def sbuf_fmax_bytes(self) -> int:
        """SBUF that kernels may use in one partition."""
        return _chip().sbuf.usable_bytes_per_partition

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """The same in float32 elements."""
        return self.sbuf_fmax_bytes // 4


tile_size = _TileSize()


def _chip() -> Chip:
    return current().chip if recording() else default_chip()
