# SPDX-License-Identifier: Apache-2.0
"""Changes to kernels keep every bit or are told to break them, gain what they say, and are refused where none is."""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnlab import chips, policy
from trnlab.bench import laboratory
from trnlab.bench.ideas import bits, engines, fusing, rows, search, sources
from trnlab.bench.ideas.change import KernelChange, SourceEdit
from trnlab.bench.ideas.trial import KernelTrial, TriedChange
from trnlab.cli.main import main
from trnlab.errors import TrnlabError, UsageError
from trnlab.isa import BY_OPCODE
from trnlab.nki import checks, install_imports, portable
from trnlab.nki.portable import PortableKernel
from trnlab.program.routine import Routine

sys.path.insert(0, str(Path(__file__).parents[1] / "program"))
from random_kernels import arguments, made

install_imports()  # before a kernel's source asks for nki
CHIP = chips.get("trn2")
HEAD = "import nki\nimport nki.language as nl\nimport nki.isa as nisa\n\n\n@nki.jit\n"
# Blocks side by side, one tensor loaded again, an operator with a number before one on two tiles.
BLOCKS = (
    HEAD
    + """def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r in range(x.shape[0] // 128):
        for c in range(x.shape[1] // 128):
            a = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
            b = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
            t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[r * 128 : (r + 1) * 128, c * 128 : (c + 1) * 128])
            nisa.dma_copy(dst=b, src=y[0:128, c * 128 : (c + 1) * 128])
            nisa.tensor_scalar(dst=t, data=a, op0=nl.multiply, operand0=0.9)
            nisa.tensor_tensor(dst=a, data1=b, data2=t, op=nl.subtract)
            nisa.dma_copy(dst=out[r * 128 : (r + 1) * 128, c * 128 : (c + 1) * 128], src=a)
    return out
"""
)
SHAPES = ((256, 512), (128, 512))


def kernel_of(source: str) -> Any:
    linecache.cache["<ideas>"] = (len(source), None, source.splitlines(keepends=True), "<ideas>")
    space: dict[str, Any] = {"__name__": "ideas"}
    exec(compile(source, "<ideas>", "exec"), space)
    return space["kernel"]


def trial_of(kernel: Any, given: Sequence[Any], chip: Any = CHIP) -> KernelTrial:
    kernel.chip = chip

    def record(names: Sequence[str]) -> list[PortableKernel | None]:
        found: list[PortableKernel | None] = []
        for name in names:
            try:
                with policy.use(name or None), checks(accumulation="off"):
                    trace = kernel.trace(*given)
                found.append(portable.loads(portable.dump(kernel, trace, chip), chip))
            except TrnlabError:
                found.append(None)
        return found

    (first,) = record([""])
    assert first is not None
    return KernelTrial(first, chip, bits.BitCases(given, 7), record)


def blocks(source: str = BLOCKS) -> KernelTrial:
    return trial_of(kernel_of(source), [np.zeros(shape, np.float32) for shape in SHAPES])


def names_of(routine: Routine) -> list[str]:
    return [BY_OPCODE[code].name for code in routine.opcode.tolist()]


def remade(trial: KernelTrial, routine: Routine) -> TriedChange:
    program = replace(trial.kernel.trace.program, routines=(routine,))
    changed = replace(trial.kernel, trace=replace(trial.kernel.trace, program=program))
    change = KernelChange("a", "b", "c", "d", "e", make=lambda routine, chip: routine)
    return TriedChange(change, changed, changed.timeline(trial.chip).total)


# -- the law --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", ["neuronxcc", "nki"])
@pytest.mark.parametrize("seed", range(2))
def test_every_change_of_a_random_kernel_keeps_its_bits(seed: int, dialect: str) -> None:
    trial = trial_of(made(seed, dialect).kernel(), arguments(seed))
    tried = list(trial.tried())
    assert tried
    for each in tried:
        # Sums in PSUM are of other order where the vendor's compiler would accumulate: found, and told.
        broken = trial.checked(each).broken
        assert broken == () or each.change.name == "accumulate-in-psum", (each.change.name, broken)


def test_a_change_of_the_numbers_is_found_and_never_made() -> None:
    trial = blocks()
    routine = trial.kernel.trace.routine
    for name, value in (("operand0", 0.9000001), ("op0", "add"), ("reverse0", True)):
        table = tuple(tuple((k, value if k == name else v) for k, v in row) for row in routine.attr_table)
        tried = trial.checked(remade(trial, replace(routine, attr_table=table, _memo={})))
        # 0.9 * a is a * 0.9; all else are other numbers
        assert tried.keeps_numbers == (name == "reverse0"), name


def test_an_order_that_only_time_shows_is_looked_at() -> None:
    """Two stores to the same place, by engines that do not wait for each other: one order is right by chance."""
    assert set(bits.ORDERS) == {"in the order of the program", "in the order of the timeline"}
    trial = blocks()
    for name, arrays in trial.cases:
        one, other = (execute(trial.kernel, arrays, CHIP) for execute in bits.ORDERS.values())
        assert not bits.differs(one, other), name


def test_nan_is_nan_and_zero_has_a_sign() -> None:
    one = [np.array([np.nan, 0.0, 1e-40], np.float32)]
    assert not bits.differs(one, [np.array([-np.nan, 0.0, 1e-40], np.float32)])
    assert bits.differs(one, [np.array([np.nan, -0.0, 1e-40], np.float32)])
    assert bits.differs(one, [np.array([np.nan, 0.0, 0.0], np.float32)])
    assert bits.differs(one, [one[0][:2]])
    assert bits.differs(one, [])


def test_cases_have_what_kernels_seldom_meet() -> None:
    cases = dict(bits.BitCases([np.zeros((64, 512), np.float32), 3, np.arange(4)], 1))
    assert np.isfinite(cases["mixed"][0].data).all()
    special, whole = (cases["special"][n].data for n in range(2))
    assert np.isposinf(special).any()
    assert np.isneginf(special).any()
    assert np.isnan(special).any()
    assert ((np.abs(special) < 1e-38) & (special != 0)).any()
    assert (np.signbit(special) & (special == 0)).any()
    assert whole.tolist() == [0, 1, 2, 3]
    assert not np.count_nonzero(cases["zeros"][0].data)


# -- fusing ---------------------------------------------------------------------------------------------------------
def fused(source: str) -> int:
    """How many instructions fusing saves."""
    trial = blocks(source)
    changed = fusing.fuse(trial.kernel.trace.routine, CHIP)
    if changed is None:
        return 0
    tried = trial.checked(remade(trial, changed))
    assert tried.keeps_numbers, tried.broken
    return len(trial.kernel.trace.routine) - len(changed)


def test_a_number_and_a_tile_are_one_instruction() -> None:
    assert fused(BLOCKS) == 8
    assert fused(BLOCKS.replace("data1=b, data2=t", "data1=t, data2=b")) == 8
    two = BLOCKS.replace(
        "tensor_tensor(dst=a, data1=b, data2=t, op=nl.subtract)", "tensor_scalar(a, t, nl.add, 1e-3)"
    )
    assert fused(two) == 8


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dtype=nl.float32", "dtype=nl.bfloat16"),  # what lies between is rounded
        ("data1=b, data2=t", "data1=t, data2=t"),  # it is read twice
        ("data2=t", "data2=t[:, 0:128]"),  # the same, said otherwise: this one is fused
        (
            "operand0=0.9)",
            "operand0=0.9)\n            nisa.tensor_copy(dst=a[:, 0:64], src=b[:, 0:64])",
        ),  # changed between
        ("operand0=0.9", "operand0=0.9, op1=nl.add, operand1=1.0"),  # it has two operators already
        ("src=a)\n    return", "src=t)\n    return"),  # it is stored, too
    ],
)
def test_what_would_change_the_numbers_is_not_fused(old: str, new: str) -> None:
    assert old in BLOCKS
    assert fused(BLOCKS.replace(old, new)) == (8 if "[:, 0:128]" in new else 0)


# -- loads of rows --------------------------------------------------------------------------------------------------
def joined(source: str, longest: int = 0) -> list[str] | None:
    trial = blocks(source)
    routine = trial.kernel.trace.routine
    some = [rows.load_rows(routine, CHIP, tensors=(b.id,), longest=longest) for b in routine.buffers if b.name == "y"]
    if some[0] is None:
        return None
    assert trial.checked(remade(trial, some[0])).keeps_numbers
    return names_of(some[0])


def test_rows_are_loaded_once() -> None:
    before = names_of(blocks().kernel.trace.routine).count("dma_copy")
    for longest, loads in ((0, 1), (1024, 2), (512, 4)):
        found = joined(BLOCKS, longest)
        assert found is not None
        assert before - found.count("dma_copy") == 8 - loads


def test_what_the_kernel_writes_is_not_loaded_once() -> None:
    written = BLOCKS.replace("    return out", "    nisa.dma_copy(dst=y[0:128, 0:128], src=a)\n    return out")
    assert joined(written) is None
    scalar = "            nisa.tensor_scalar("
    again = BLOCKS.replace(scalar, f"{scalar}dst=b, data=b, op0=nl.add, operand0=1.0)\n{scalar}")
    assert joined(again) is None  # the tile that holds it changes


# -- engines --------------------------------------------------------------------------------------------------------
def test_engines_are_those_that_execute_the_instruction() -> None:
    trial = blocks()
    routine = trial.kernel.trace.routine
    found = {c.name: c for c in engines.changes(routine, CHIP, "nki", {"vector": 0.9})}
    assert "engine:tensor_tensor@17:gpsimd" in found
    assert not any("tensor_tensor" in name and name.endswith(("scalar", "tensor")) for name in found)
    assert any(name.startswith("engine:dma_copy") for name in found)
    assert not any("dma" in c.name for c in engines.changes(routine, CHIP, "neuronxcc", {"vector": 0.9}))
    half = found["engine:tensor_tensor@17:gpsimd/2"].make
    assert half is not None
    changed = half(routine, CHIP)
    assert changed is not None
    assert (changed.engine != routine.engine).sum() == 4
    assert trial.checked(remade(trial, changed)).keeps_numbers


def test_what_an_engine_remembers_stays_with_it() -> None:
    keeping = [i for i in BY_OPCODE.values() if any(spec.state for spec in i.operands) or "rng" in i.name]
    assert {"activation_reduce"} <= {i.name for i in keeping}
    for instr in keeping:
        for dialect in ("nki", "neuronxcc"):
            assert not engines._may_say(engines._Group(instr.opcode, 0, instr.engines[0]), dialect), instr.name


# -- what users see -------------------------------------------------------------------------------------------------
def test_the_ladder_is_what_its_steps_say() -> None:
    trial = blocks()
    changed, steps = search.climbed(trial, 3)
    assert trial.total > changed.total
    assert [s.before for s in steps] == [trial.total, *(s.tried.total for s in steps[:-1])]
    again, made_again = search.applied(trial, [s.tried.change.name for s in steps])
    assert again.total == changed.total == made_again[-1].tried.total
    with pytest.raises(UsageError, match="no such change") as refused:
        search.applied(trial, ["no-such"])
    assert refused.value.code == "TRN849"


def test_the_command_proposes_and_writes_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "blocks.py"
    file.write_text(BLOCKS)
    words = ["ideas", str(file), "--json", "--input", "float32[256,512]", "--input", "float32[128,512]"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["proposals"][0]
    assert best["time_ps"] < found["time_ps"]
    assert best["bits"] == "the same"
    assert {"what", "why", "how", "source"} <= set(best)
    out = tmp_path / "out"
    assert main([*words, "--apply", best["name"], "--out", str(out)]) == 0
    made_now = json.loads(capsys.readouterr().out)
    assert made_now["made"][0]["time_ps"] == best["time_ps"]
    written = portable.loads((out / "blocks.neff").read_bytes(), CHIP)
    assert written.timeline(CHIP).total == best["time_ps"]
    assert (out / "ideas.html").exists()
    assert main([*words, "--apply", "no-such"]) != 0


def test_an_engine_is_written_into_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit = sources.edited
    assert edit("y = nisa.f(a, b)\n", [SourceEdit(1, "f", "engine.x")]) == "y = nisa.f(a, b, engine=nisa.engine.x)\n"
    named = edit("y = m.f(\n    a, engine=m.engine.y,\n    b=1,\n)\n", [SourceEdit(3, "f", "engine.x")])
    assert named == "y = m.f(\n    a, engine=m.engine.x,\n    b=1,\n)\n"
    assert edit("y = m.f(\n    a,\n)\n", [SourceEdit(1, "f", "z_engine")]) == "y = m.f(\n    a,\nengine=m.z_engine)\n"
    assert edit("y = m.f(m.f(a))\n", [SourceEdit(1, "f", "engine.x")]) is None  # which of the two?
    assert edit("y = m.g(a)\n", [SourceEdit(1, "f", "engine.x")]) is None
    assert edit("y = m.f(a, # )\n)\n", [SourceEdit(1, "f", "e")]) == "y = m.f(a, # )\nengine=m.e)\n"
    file, out = tmp_path / "blocks.py", tmp_path / "out"
    file.write_text(BLOCKS)
    words = ["ideas", str(file), "--json", "--input", "float32[256,512]", "--input", "float32[128,512]"]
    name = "engine:dma_copy@15:scalar"
    assert main([*words, "--apply", name, "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (out / "blocks.py").read_text().splitlines()[14].endswith("engine=nisa.engine.scalar)")
    assert main(["bench", "--json", "--no-band", *words[3:], str(out / "blocks.py")]) == 0
    judged = json.loads(capsys.readouterr().out)["candidates"][0]
    assert judged["time_ps"] == pytest.approx(said["made"][0]["time_ps"], rel=0.02)


def test_a_source_is_written_to_a_new_file_and_keeps_what_was_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, new = tmp_path / "blocks.py", tmp_path / "faster.py"
    file.write_text(BLOCKS)
    words = ["ideas", str(file), "--json", "--input", "float32[256,512]", "--input", "float32[128,512]"]
    engine = ["--apply", "engine:dma_copy@15:scalar"]
    assert main([*words, *engine, "--write", str(file)]) == 2  # never the user's own file
    assert main([*words, *engine, "--out", str(tmp_path)]) == 0
    assert file.read_text() == BLOCKS
    assert "the kernel itself" in capsys.readouterr().err
    assert main([*words, *engine, "--write", str(new)]) == 0
    promised = json.loads(capsys.readouterr().out)["made"][0]
    assert promised["in_source"]
    assert main(["bench", "--json", "--no-band", *words[3:], "--reference", f"{file}:kernel", str(new)]) == 0
    judged = json.loads(capsys.readouterr().out)["candidates"][0]
    assert judged["verdict"] == "right"
    assert judged["time_ps"] <= promised["time_ps"] * 1.005
    other = tmp_path / "other.py"
    assert main([*words, "--apply", "load-rows:y", "--write", str(other)]) == 2
    assert "are made on the recorded instructions" in capsys.readouterr().err
    assert main([*words, "--write", str(other)]) == 2
    monkeypatch.setattr(sources, "edited", lambda text, edits: BLOCKS.replace("operand0=0.9", "operand0=0.8"))
    assert main([*words, *engine, "--write", str(other)]) == 2
    assert "does not keep what they promise" in capsys.readouterr().err
    assert not other.exists()


def test_programs_get_the_same() -> None:
    given = ["float32[256,512]", "float32[128,512]"]
    told = laboratory.ideas(BLOCKS, inputs=given)
    assert told["changes"][0]["faster_by"] > 1
    assert len(json.dumps(told)) < 8000
    applied = laboratory.ideas(BLOCKS, inputs=given, apply=[told["changes"][0]["name"]])
    assert applied["faster_by"] == told["changes"][0]["faster_by"]
    assert "TRN849" in laboratory.ideas(BLOCKS, inputs=given, apply=["nothing"])["error"]


def test_kernels_that_depend_on_data_are_refused() -> None:
    trial = blocks()
    with pytest.raises(UsageError) as refused:
        KernelTrial(replace(trial.kernel, recorded_anew=True), CHIP, trial.cases, trial.record)
    assert refused.value.code == "TRN849"
