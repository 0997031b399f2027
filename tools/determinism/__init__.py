# SPDX-License-Identifier: Apache-2.0
"""One script, run many times under different circumstances: the same bits, picoseconds and keys each time."""
