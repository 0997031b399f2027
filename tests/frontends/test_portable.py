# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in other layouts and formats are the same tensors, bit for bit."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trnlab import checkpoint
from trnlab.cli.main import main
from trnlab.errors import RunError, UsageError
from trnlab.frontends.torch.saving.portable import convert, dcp, hugging_face, vendor
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable, Chunk
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints
from trnlab.storage.layouts import ParallelDegrees, ShardingRules, chunk, covering, cut, parse, rules, stages

pytestmark = pytest.mark.torch
WIDTH, INNER, WORDS = 8, 12, 20


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up_proj, self.down_proj = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)


class Model(nn.Module):
    def __init__(self, layers: int = 3, tied: bool = True) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight


def trained(seed: int = 0, tied: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = Model(tied=tied).to(dtype).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for p in model.parameters():
        p.grad = torch.randn(p.shape).to(dtype).to("neuron")
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.007
    return model, optimizer


def saved(place: Path, **options: Any) -> tuple[Any, Any]:
    model, optimizer = trained(**options)
    run = checkpoint.resume(str(place), every=1, model=model, optimizer=optimizer)
    run.stepped()
    run.wait()
    return model, optimizer


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}


def equal(a: nn.Module, b: nn.Module) -> bool:
    x, y = bits(a), bits(b)
    return x.keys() == y.keys() and all(x[n].dtype == y[n].dtype and torch.equal(x[n], y[n]) for n in x)


@pytest.mark.parametrize(("first", "second"), [("dp2,tp4,pp3", "dp4"), ("dp3,tp5", "tp2,pp2"), ("tp7", "dp5,pp2")])
def test_from_any_layout_to_any_other_and_back(tmp_path: Path, first: str, second: str) -> None:
    model, optimizer = saved(tmp_path / "a")
    for i, layout in enumerate((first, second, "dp1")):
        assert (
            main(["checkpoint", "reshard", str(tmp_path / "abcd"[i]), str(tmp_path / "abcd"[i + 1]), "--to", layout])
            == 0
        )
    start, end = (convert.source(str(tmp_path / x), None, ShardingRules()) for x in "ad")
    assert convert.same(start.table, end.table) == []
    other, fresh = trained(1)
    run = checkpoint.resume(str(tmp_path / "b"), model=other, optimizer=fresh)  # of many ranks, read by one
    assert run.step == 1
    assert equal(model, other)
    assert fresh.param_groups[0]["lr"] == 0.007
    for p, q in zip(model.parameters(), other.parameters()):
        for key, value in optimizer.state[p].items():
            assert torch.equal(value.cpu(), fresh.state[q][key].cpu())


@pytest.mark.parametrize("layout", ["dp3,tp4", "dp2,tp2,pp3"])
def test_the_vendors_layout_is_written_and_read(tmp_path: Path, layout: str) -> None:
    model, _ = saved(tmp_path / "a")
    command = [
        "checkpoint",
        "reshard",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "--to",
        layout,
        "--format",
        "vendor",
    ]
    assert main(command) == 0
    place = parse(layout)
    names = {p.name for p in (tmp_path / "b/step_1/model").iterdir() if p.suffix == ".pt" and ".info" not in p.name}
    assert len(names) == place.tp * place.pp
    assert "dp_rank_00_tp_rank_00_pp_rank_00.pt" in names
    assert (tmp_path / "b/step_1/done").read_text() == "1"
    assert vendor.layout_of(open_store(tmp_path / "b"), "step_1") == place
    assert main(["checkpoint", "reshard", str(tmp_path / "b"), str(tmp_path / "c"), "--to", "dp2"]) == 0
    other, fresh = trained(1)
    run = checkpoint.resume(str(tmp_path / "c"), model=other, optimizer=fresh)
    assert run.step == 1
    assert equal(model, other)
    assert fresh.param_groups[0]["lr"] == 0.007


def test_a_vendors_file_with_its_tensors_inside_is_read(tmp_path: Path) -> None:
    """Written as the vendor's library does without a folder of tensors, two tensor-parallel ranks."""
    folder = tmp_path / "step_7" / "model"
    folder.mkdir(parents=True)
    whole = torch.arange(24.0).reshape(6, 4)
    for t in range(2):
        state = {"a.up_proj.weight": whole[3 * t : 3 * t + 3].clone(), "norm.weight": torch.ones(4)}
        torch.save(state, folder / f"dp_rank_00_tp_rank_{t:02d}_pp_rank_00.pt")
    (tmp_path / "step_7" / "done").write_text("1")
    found = convert.source(str(tmp_path), None, ShardingRules())
    assert (found.form, found.step) == ("vendor", 7)
    assert torch.equal(found.table.read("model.a.up_proj.weight"), whole)
    assert torch.equal(found.table.read("model.norm.weight"), torch.ones(4))
    with pytest.raises(RunError) as caught:
        convert.source(str(tmp_path), None, rules([r"up_proj=none"]))
    assert caught.value.code == "TRN544"
    sideways = convert.source(str(tmp_path), None, rules([r"up_proj\.weight$=1"]))
    assert sideways.table.entry("model.a.up_proj.weight").shape == (3, 8)


def test_what_does_not_divide_has_no_form_at_the_vendors(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    found = convert.source(str(tmp_path / "a"), None, ShardingRules())
    with pytest.raises(RunError) as caught:
        list(convert.reshard(found, open_store(tmp_path / "b"), ParallelDegrees(tp=7), "vendor", ShardingRules()))
    assert caught.value.code == "TRN544"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", ["1GiB", "1kb"])
def test_safetensors_and_back(tmp_path: Path, tied: bool, size: str) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="the extra `dev` has it")
    model, _ = saved(tmp_path / "a", tied=tied, dtype=torch.bfloat16)
    assert main(["checkpoint", "to-hf", str(tmp_path / "a"), str(tmp_path / "hf"), "--shard-size", size]) == 0
    files = sorted((tmp_path / "hf").glob("*.safetensors"))
    read = {name: t for file in files for name, t in safetensors.load_file(file).items()}
    assert ("lm_head.weight" in read) is not tied
    assert all(torch.equal(t, bits(model)[name]) and t.dtype == torch.bfloat16 for name, t in read.items())
    if size == "1kb":
        index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(read)
        assert index["metadata"]["total_size"] == sum(t.nbytes for t in read.values())
        assert all(file.name in index["weight_map"].values() for file in files)
    assert main(["checkpoint", "from-hf", str(tmp_path / "hf"), str(tmp_path / "c"), "--to", "dp2,tp2"]) == 0
    other, _ = trained(1, tied=tied, dtype=torch.bfloat16)
    assert checkpoint.load(str(tmp_path / "c"), model=other) == 0
    assert equal(model, other)


def test_buffers_that_nobody_saves_stay(tmp_path: Path) -> None:
    """A model of Hugging Face has its angles in such a buffer, and no file has them."""
    saved(tmp_path / "a")
    model, _ = trained(1)
    model.register_buffer("angles", torch.ones(3), persistent=False)
    assert checkpoint.load(str(tmp_path / "a"), model=model) == 1
    assert model.angles.tolist() == [1.0] * 3
    model.register_buffer("kept", torch.ones(3))
    with pytest.raises(RunError) as caught:
        checkpoint.load(str(tmp_path / "a"), model=model)
    assert caught.value.code == "TRN543"


def test_rounded_weights_are_those_of_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="the extra `dev` has it")
    model, _ = saved(tmp_path / "a", tied=False)
    assert main(["checkpoint", "to-hf", str(tmp_path / "a"), str(tmp_path / "hf"), "--dtype", "bf16"]) == 0
    found = hugging_face.table(open_store(tmp_path / "hf"))
    for name, tensor in bits(model).items():
        assert torch.equal(found.read(f"model.{name}"), tensor.bfloat16())


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    pick = random.Random(0)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    good = len(header).to_bytes(8, "little") + header + torch.tensor([1.0, 2.0]).numpy().tobytes()
    file = tmp_path / "model.safetensors"
    file.write_bytes(good)
    assert hugging_face.table(open_store(tmp_path)).read("model.w").tolist() == [1.0, 2.0]
    for _ in range(200):
        content = bytearray(good[: pick.choice((len(good), pick.randrange(len(good))))])
        for _ in range(pick.randrange(1, 4)):
            if content:
                content[pick.randrange(len(content))] = pick.randrange(256)
        file.write_bytes(content)
        with contextlib.suppress(RunError):  # and nothing else
            table = hugging_face.table(open_store(tmp_path))
            for name in table.entries:
                table.read(name)


def test_nothing_but_one_file_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 tensors never more than a file's worth is held between two writes."""
    monkeypatch.setattr(dcp, "FILE_BYTES", 4096)
    table, loaded = CheckpointTable(), []
    for i in range(64):
        name = f"layers.{i}.weight"

        def load(name: str = name) -> torch.Tensor:
            loaded.append(name)
            return torch.zeros(16, 16)

        table.add(f"model.{name}", ("model", name), torch.float32, (16, 16), Chunk(((0, 0), (16, 16)), load))
    store = open_store(tmp_path)
    sizes = []
    for _ in convert.reshard(
        convert.CheckpointSource("test", 1, table, {}), store, ParallelDegrees(2, 2, 2), "dcp", ShardingRules()
    ):
        held = len(loaded) * 1024 - sum(i.size for i in store.items("step_00000001/") if i.name.endswith("distcp"))
        sizes.append(held)
    assert len(loaded) == 64
    assert max(sizes) < 2 * 4096 + 1024
    assert Checkpoints(store, 0, 8).problems(1) == []


def test_slices_cover_a_tensor_once() -> None:
    for shape, tp, dp, dim in (
        ((7, 5), 3, 2, 0),
        ((7, 5), 3, 2, 1),
        ((3,), 4, 2, 0),
        ((), 2, 2, None),
        ((0, 4), 2, 2, 1),
    ):
        parts = {cut(shape, dim, (t, tp), (d, dp)) for t in range(tp) for d in range(dp)}
        whole = ((0,) * len(shape), shape)
        having = sorted(parts)
        assert len(list(covering(whole, having))) == sum(0 not in size for _, size in having)
    assert [chunk(7, 3, i) for i in range(3)] == [tuple(x) for x in ((0, 3), (3, 3), (6, 1))]
    assert [chunk(5, 4, i)[1] for i in range(4)] == [len(x) for x in torch.arange(5).chunk(4)] + [0]


def test_stages_have_layers_in_equal_numbers() -> None:
    names = [
        "embed_tokens.weight",
        *(f"layers.{i}.up.weight" for i in range(5)),
        "model.norm.weight",
        "lm_head.weight",
    ]
    assert [*stages(names, 2).values()] == [0, 0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(UsageError) as caught:
        stages(names, 6)
    assert caught.value.code == "TRN542"


@pytest.mark.parametrize("text", ["", "dp0", "dp2,dp2", "tp", "ep2", "dp2;tp2"])
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.code == "TRN542"


def test_what_has_no_model_is_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Linear(2, 2)
    run = checkpoint.resume(str(tmp_path / "a"), every=1, net=net)
    run.stepped()
    run.wait()
    assert main(["checkpoint", "reshard", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "dp2"]) == 2
    assert "TRN543" in capsys.readouterr().err
    assert main(["checkpoint", "show", str(tmp_path / "a")]) == 0
    assert "net.weight" in capsys.readouterr().out
