# SPDX-License-Identifier: Apache-2.0
"""Commands for writing kernels: judged, searched, read, explained."""
