# SPDX-License-Identifier: Apache-2.0
"""Instructions that ranks and cores execute together."""
