# SPDX-License-Identifier: Apache-2.0
"""`trnlab check`: a training script is followed without values, to see what would be in its way on the chip."""
