# SPDX-License-Identifier: Apache-2.0
"""What the front ends share: what a captured program is, and what Python state its capture depended on."""
