# SPDX-License-Identifier: Apache-2.0
"""Trainer, peft and generate() of Hugging Face, unmodified, under `trnlab run`: what the host gives, in few programs.

Run by `make zoo`, whose environment has the packages; skipped elsewhere.
"""

import importlib.util
import json
import subprocess
import sys

import pytest

MISSING = [name for name in ("transformers", "accelerate", "peft") if importlib.util.find_spec(name) is None]
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}")]

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
"""

TRAINER = (
    HEAD
    + """
from transformers import Trainer, TrainingArguments
if sys.argv[2] == "lora":
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian"))
frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
data = []
for i in range(8):
    ids = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(i))
    data.append({"input_ids": ids, "labels": ids})
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, max_steps=3, logging_steps=1, eval_strategy="steps", eval_steps=3,
    save_steps=3, learning_rate=1e-2, report_to=[], disable_tqdm=True, use_cpu=on_host, torch_compile=not on_host,
    gradient_accumulation_steps=2, dataloader_num_workers=1,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
trainer.train()
trainer.save_model("saved")
log = trainer.state.log_history
assert all(torch.equal(p.cpu(), frozen[n]) for n, p in model.named_parameters() if n in frozen)
losses = [entry[key] for key in ("loss", "eval_loss") for entry in log if key in entry]
print("RESULT", json.dumps({"losses": losses, "device": arguments.device.type}))
"""
)

GENERATE = (
    HEAD
    + """
from torch._dynamo.utils import counters
model.eval()
prompts = [torch.randint(2, 64, (2, n)) for n in (4, 5)]
if not on_host:
    model = model.to("neuron")
found = []
for options in ({"do_sample": False}, {"do_sample": True, "top_k": 10}):
    for prompt in prompts:
        torch.manual_seed(3)
        ids = model.generate(prompt.to(model.device), max_length=9, cache_implementation="static", **options)
        found.append(ids.tolist())
graphs = counters["stats"]["unique_graphs"]
ids = model.generate(prompts[0].to(model.device), max_length=9, cache_implementation="static", num_beams=2)
print("RESULT", json.dumps({"tokens": [*found, ids.tolist()], "graphs": graphs}))
"""
)


def result(folder, script, *arguments):
    """What the script prints, on the simulated chip unless it is told "host"."""
    (folder / "script.py").write_text(script)
    command = [sys.executable]
    if arguments[0] != "host":
        command += ["-m", "trnlab.cli.main", "run", "--target", "trn1", "--precision", "fp32"]
    ended = subprocess.run(
        [*command, "script.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(next(line[7:] for line in ended.stdout.splitlines() if line.startswith("RESULT ")))


@pytest.mark.parametrize("what", ["all", "lora"])
def test_trainer_trains_evaluates_and_saves(tmp_path, what):
    """Accumulation, a worker that loads, clipping and a schedule as Trainer has them; a checkpoint that loads."""
    expected, found = (result(tmp_path, TRAINER, where, what) for where in ("host", "neuron"))
    assert (expected["device"], found["device"]) == ("cpu", "neuron")
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    assert (tmp_path / "saved").is_dir()


def test_generate_with_a_static_cache(tmp_path):
    """Greedy, sampled and beam search; prompts of two lengths and all positions are decoded by one program."""
    expected, found = (result(tmp_path, GENERATE, where) for where in ("host", "neuron"))
    assert found["tokens"] == expected["tokens"]
    assert found["graphs"] == 1
