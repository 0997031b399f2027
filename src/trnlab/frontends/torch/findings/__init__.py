# SPDX-License-Identifier: Apache-2.0
"""Where an operator comes from, and what stands in the way of a step."""
