# SPDX-License-Identifier: Apache-2.0
"""Trainer and Accelerator of Hugging Face on two ranks: what one process on the host learns from the whole batch.

Run by `make zoo`, whose environment has the packages; skipped elsewhere.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

MISSING = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}")]
SECONDS = 600

HEAD = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
from tools.zoo.run_one import declare_missing_operators
declare_missing_operators()
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=64, bos_token_id=1, eos_token_id=None, pad_token_id=0,
)
model = LlamaForCausalLM(config)
on_host = sys.argv[1] == "host"
data = []
for i in range(24):
    ids = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(i))
    data.append({"input_ids": ids, "labels": ids})
"""

TRAINER = (
    HEAD
    + """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4 if on_host else 2, max_steps=3, logging_steps=1, eval_strategy="steps",
    eval_steps=3, save_steps=3, learning_rate=1e-2, report_to=[], disable_tqdm=True, use_cpu=on_host,
    torch_compile=not on_host, gradient_accumulation_steps=2, ddp_find_unused_parameters=False,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
trainer.train()
trainer.save_model("saved")
log = trainer.state.log_history
losses = [entry[key] for key in ("loss", "eval_loss") for entry in log if key in entry]
again = LlamaForCausalLM.from_pretrained("saved")
assert all(torch.equal(p, q.detach().cpu()) for p, q in zip(again.parameters(), model.parameters()))
print("RESULT", json.dumps({"losses": losses, "device": arguments.device.type, "ranks": arguments.world_size}))
"""
)

ACCELERATOR = (
    HEAD
    + """
from accelerate import Accelerator
from accelerate.utils import set_seed
# by default an Accelerator on two ranks steps a schedule twice
accelerator = Accelerator(cpu=on_host, gradient_accumulation_steps=2, step_scheduler_with_optimizer=False)
set_seed(0)
loader = torch.utils.data.DataLoader(data, batch_size=4 if on_host else 2)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 6)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
losses = []
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
state = {name: p.clone() for name, p in model.state_dict().items()}
accelerator.save_state("state")
accelerator.wait_for_everyone()
for parameter in model.parameters():
    parameter.data.zero_()
accelerator.load_state("state", map_location="cpu")  # safetensors knows no neuron
assert all(torch.equal(p, state[name]) for name, p in model.state_dict().items())
seen = accelerator.gather_for_metrics(torch.full((2,), float(accelerator.process_index), device=accelerator.device))
accelerator.wait_for_everyone()
accelerator.unwrap_model(model).save_pretrained("saved", is_main_process=accelerator.is_main_process)
print("RESULT", json.dumps({"losses": losses, "device": accelerator.device.type, "ranks": accelerator.num_processes,
                            "kind": accelerator.distributed_type.value, "seen": seen.tolist()}), flush=True)
accelerator.end_training()
"""
)


def results(folder, script, *command):
    """What each rank says."""
    (folder / "script.py").write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRNLAB_PRECISION": "fp32", "HF_HUB_OFFLINE": "1"}
    if "accelerate.commands.launch" in command:
        environment["TRNLAB_TARGET"] = "trn1.32xlarge"
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=SECONDS, env=environment
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return [json.loads(line.split("RESULT ")[1]) for line in ended.stdout.splitlines() if "RESULT " in line]


def test_trainer_on_two_ranks(tmp_path):
    """Compiled, with accumulation, clipping, evaluation and saving."""
    (expected,) = results(tmp_path, TRAINER, "script.py", "host")
    ranks = ["-m", "trnlab.cli.main", "run", "--target", "trn1.32xlarge", "--ranks", "2"]
    found = results(tmp_path, TRAINER, *ranks, "script.py", "neuron")
    assert len(found) == 2
    for each in found:
        assert (each["device"], each["ranks"]) == ("neuron", 2)
        assert each["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    summary = json.loads((tmp_path / "runs" / "script-1" / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["network"]["by_purpose"]["gradient"]["calls"] > 0


def test_accelerate_launch_on_two_ranks(tmp_path):
    """An Accelerator's own loop, with accumulation, a schedule, gathering, and states that are saved and loaded."""
    (expected,) = results(tmp_path, ACCELERATOR, "script.py", "host")
    command = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]  # accelerate launch
    found = results(tmp_path, ACCELERATOR, *command, "script.py", "neuron")
    assert len(found) == 2
    for each in found:
        assert (each["device"], each["ranks"], each["kind"]) == ("neuron", 2, "MULTI_NEURON")
        assert each["seen"] == [0.0, 0.0, 1.0, 1.0]
        assert each["losses"] == pytest.approx(expected["losses"], abs=1e-5)
