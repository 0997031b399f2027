# SPDX-License-Identifier: Apache-2.0
"""Commands about clusters: plans of training and serving, bake-offs, goodput, networks."""
