# SPDX-License-Identifier: Apache-2.0
"""Plans and bake-offs as text, page and plain data."""
