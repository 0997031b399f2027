# SPDX-License-Identifier: Apache-2.0
"""The compile cache: keys, files of executables, and their care."""
