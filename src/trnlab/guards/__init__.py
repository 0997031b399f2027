# SPDX-License-Identifier: Apache-2.0
"""Whether what a trace depended on has changed: of recorded kernels and of captured steps. Knows no framework.

`bytecode` reads which names a piece of code mentions. `functions.Guards` finds what a kernel may read before it runs,
by following these names, and keeps a `snapshot` of each value. `state_snapshot.StateSnapshot` holds the objects that
a step could read, node by node (`nodes`, `kinds`), while `watch.FunctionWatch` tells it which functions run.
`collected` gathers the guards of every trace that a piece of work uses.
"""
