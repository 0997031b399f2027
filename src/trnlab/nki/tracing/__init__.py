# SPDX-License-Identifier: Apache-2.0
"""From a kernel's function to its recorded program: arguments, cores, launch grids, arrays."""
