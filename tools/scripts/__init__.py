# SPDX-License-Identifier: Apache-2.0
"""Scripts and libraries of others, unmodified, on the chip and beside the CPU."""
