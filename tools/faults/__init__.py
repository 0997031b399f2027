# SPDX-License-Identifier: Apache-2.0
"""Small faults planted in the package one at a time, to see which tests notice.

Coverage says what a suite runs, not what it proves. `kinds.py` knows small mistakes that people make, `draw.py` draws
some from a seed all over the package, `trial.py` plants one in a copy and runs the tests that reach its line, and
`python -m tools.faults compare` holds two suites beside each other. `contexts.py` is the pytest plugin with which
coverage learns which file of tests reached which line.
"""
