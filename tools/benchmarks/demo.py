# SPDX-License-Identifier: Apache-2.0
"""A training step of the demo as simulated instructions, against the same step in eager PyTorch fp32 on this CPU."""

from __future__ import annotations

from benchmarks import lines, subject
from trnlab.runtime.session import activate

ROUNDS = 9


def main() -> None:
    """Measure and report."""
    example = subject.train_gpt
    with activate(subject.session()):
        model, optimizer, batch = subject.model_and_batch("neuron")
        twin, its_optimizer, its_batch = subject.model_and_batch("cpu")
        simulated = example.captured_step(model, optimizer)
        eager = example.eager_step(twin, its_optimizer)
        ours, theirs = lines.in_turns([lambda: simulated(*batch), lambda: eager(*its_batch)], ROUNDS)
    note = f"{ours * 1e3:.0f} ms against {theirs * 1e3:.0f} ms"
    lines.report([lines.at_most("demo's step simulated / eager PyTorch fp32", ours / theirs, 3, "x", note)])


if __name__ == "__main__":
    main()
