# SPDX-License-Identifier: Apache-2.0
"""From a training step in Python to one graph, and what that graph depended on."""
