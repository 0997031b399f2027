# SPDX-License-Identifier: Apache-2.0
"""What a comparison of the chip's numbers with a reference says: bounds, verdicts, report. No framework, no chip."""
