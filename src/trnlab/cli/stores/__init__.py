# SPDX-License-Identifier: Apache-2.0
"""Commands about what is kept: compiled programs, checkpoints, data sets."""
