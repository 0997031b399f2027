# SPDX-License-Identifier: Apache-2.0
"""What is trained: models by their configurations, with their parameters and operations."""
