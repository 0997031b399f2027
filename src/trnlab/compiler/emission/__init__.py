# SPDX-License-Identifier: Apache-2.0
"""From a group to the instructions of its loop, tile by tile."""
