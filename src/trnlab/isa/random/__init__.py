# SPDX-License-Identifier: Apache-2.0
"""Random bits and numbers, and the state of their generators."""
