# SPDX-License-Identifier: Apache-2.0
"""nki.framework: what harnesses use of it."""
