# SPDX-License-Identifier: Apache-2.0
"""Which ops become one routine, and when two groups are the same."""
