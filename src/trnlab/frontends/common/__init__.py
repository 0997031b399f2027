# SPDX-License-Identifier: Apache-2.0
"""What the front ends share: what a captured program is, formats and engines."""
