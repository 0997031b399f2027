# SPDX-License-Identifier: Apache-2.0
"""Data and tiny models in the formats of other people's scripts: random, seeded, written into the script's folder."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np


def nothing(folder: Path) -> None:
    """The script makes its data, or has them."""


# -- images -------------------------------------------------------------------------------------------------------
def _mnist(root: Path, train: int, test: int) -> None:
    """Digits that a small model can learn, in MNIST's files."""
    rng = np.random.default_rng(0)
    shapes = (rng.random((10, 28, 28)) > 0.7) * 200
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)  # some look for two of each digit
        images = np.clip(shapes[labels] + rng.random((count, 28, 28)) * 55, 0, 255).astype(np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def mnist_mlp(folder: Path, train: int = 256) -> None:
    """As the vendor's mnist_mlp looks for it."""
    for root in (folder / "MNIST_DATA_train", folder / "MNIST_DATA_test", Path("/tmp/MNIST_DATA_train")):
        _mnist(root, train, 320)


def mnist_trained(folder: Path) -> None:
    """The same, and a checkpoint of the CPU's training."""
    import subprocess
    import sys

    mnist_mlp(folder, 6400)
    subprocess.run([sys.executable, "train_cpu.py"], cwd=folder, check=True, capture_output=True)


def _beside(folder: Path, train: int, test: int) -> None:
    for root in (folder.parent / "data", folder / "data"):
        _mnist(root, train, test)


def mnist_small(folder: Path) -> None:
    """As PyTorch's examples look for it: in ../data or ./data."""
    _beside(folder, 128, 64)


def mnist_tiny(folder: Path) -> None:
    """Fewer still."""
    _beside(folder, 40, 40)


def _images(root: Path, classes: int, each: int, size: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True, exist_ok=True)
        for number in range(each):
            pixels = rng.integers(0, 255, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number}.png")


def imagenet(folder: Path) -> None:
    """Folders of images by class."""
    _images(folder / "images" / "train", 2, 3, 64)
    _images(folder / "images" / "val", 2, 1, 64)


def images_and_unet(folder: Path) -> None:
    """Images of 16 pixels, and the configuration of a network that makes such."""
    _images(folder / "images", 1, 8, 16)
    config = {
        "_class_name": "UNet2DModel",
        "sample_size": 16,
        "in_channels": 3,
        "out_channels": 3,
        "layers_per_block": 1,
        "block_out_channels": [8, 16],
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        "norm_num_groups": 4,
        "attention_head_dim": 4,
    }
    (folder / "config").mkdir()
    (folder / "config" / "config.json").write_text(json.dumps(config))


def bsds(folder: Path) -> None:
    """The folders of BSDS300."""
    _images(folder / "dataset" / "BSDS300" / "images" / "x", 1, 4, 300)
    for part in ("train", "test"):
        target = folder / "dataset" / "BSDS300" / "images" / part
        shutil.copytree(folder / "dataset" / "BSDS300" / "images" / "x" / "class0", target)


def common(folder: Path) -> None:
    """The vendor's vision scripts import a module of a folder beside theirs; it comes with the sources."""
    for file in (folder.parents[0] / "common").glob("*.py"):
        shutil.copy(file, folder)


_MADE = """import numpy as np


def mnist():
    with np.load("mnist.npz") as file:
        return (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
"""


def keras_mnist(folder: Path, train: int = 64, test: int = 32) -> None:
    """What Keras' `mnist.load_data()` gives, from a module beside the script: Keras knows the digest of the file that
    it downloads."""
    rng = np.random.default_rng(0)
    shapes = (rng.random((10, 28, 28)) > 0.7) * 200
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        arrays[f"y_{part}"] = labels
        arrays[f"x_{part}"] = np.clip(shapes[labels] + rng.random((count, 28, 28)) * 55, 0, 255).astype(np.uint8)
    np.savez(folder / "mnist.npz", **arrays)
    (folder / "made.py").write_text(_MADE)


# -- words --------------------------------------------------------------------------------------------------------
def _text(lines: int) -> list[str]:
    rng = np.random.default_rng(0)
    names = [f"word{i}" for i in range(30)]
    return [" ".join(rng.choice(names, 12)) for _ in range(lines)]


def words(folder: Path) -> None:
    """Files of words."""
    (folder / "words").mkdir(exist_ok=True)
    for name, lines in (("train", 16), ("valid", 4), ("test", 4)):
        (folder / "words" / f"{name}.txt").write_text("\n".join(_text(lines)) + "\n")


def nano(folder: Path) -> None:
    """Tokens and their table, as nanoGPT's prepare.py of characters writes them."""
    target = folder / "data" / "shakespeare_char"
    text = "\n".join(_text(200))
    letters = sorted(set(text))
    codes = {letter: number for number, letter in enumerate(letters)}
    ids = np.array([codes[letter] for letter in text], np.uint16)
    ids[: len(ids) * 9 // 10].tofile(target / "train.bin")
    ids[len(ids) * 9 // 10 :].tofile(target / "val.bin")
    table = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": codes}
    (target / "meta.pkl").write_bytes(pickle.dumps(table))


def nano_trained(folder: Path) -> None:
    """The same, and a checkpoint of a model."""
    import sys

    import torch

    nano(folder)
    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    table = pickle.loads((folder / "data" / "shakespeare_char" / "meta.pkl").read_bytes())
    told = {
        "block_size": 16,
        "vocab_size": table["vocab_size"],
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 32,
        "bias": False,
    }
    torch.manual_seed(0)
    model = GPT(GPTConfig(**told))
    (folder / "out").mkdir(exist_ok=True)
    config = {"dataset": "shakespeare_char"}
    torch.save({"model": model.state_dict(), "model_args": told, "config": config}, folder / "out" / "ckpt.pt")
    sys.path.remove(str(folder))


def cora(folder: Path) -> None:
    """A graph of papers: features, classes and citations. The examples split it at fixed places."""
    rng = np.random.default_rng(0)
    nodes, features = 1700, 32
    (folder / "cora").mkdir(exist_ok=True)
    with (folder / "cora" / "cora.content").open("w") as file:
        for node in range(nodes):
            values = " ".join(map(str, rng.integers(0, 2, features)))
            file.write(f"{node} {values} class{node % 7}\n")
    pairs = rng.integers(0, nodes, (3 * nodes, 2))
    (folder / "cora" / "cora.cites").write_text("".join(f"{a} {b}\n" for a, b in pairs))


# -- tiny models of transformers ----------------------------------------------------------------------------------
def _vocabulary() -> list[str]:
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(30))]


def _tiny_bert(target: Path, kind: str) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    target.mkdir(parents=True, exist_ok=True)
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = getattr(transformers, kind)(config)
    config.architectures = [kind]
    config.save_pretrained(target)
    torch.save(model.state_dict(), target / "pytorch_model.bin")
    model.save_pretrained(target)
    (target / "vocab.txt").write_text("\n".join(_vocabulary()) + "\n")
    (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


def _bert(folder: Path, length: int) -> None:
    """Pairs of sentences with masked words in the files that the vendor's script reads, and a tiny model by the name
    that it asks for."""
    import h5py

    rng = np.random.default_rng(0)
    count, masked = 32, 5
    _tiny_bert(folder / "bert-large-uncased", "BertForPreTraining")
    (folder / "data").mkdir(exist_ok=True)
    for shard in range(2):
        with h5py.File(folder / "data" / f"part_{shard}_training_{shard}.hdf5", "w") as file:
            file["input_ids"] = rng.integers(5, 64, (count, length)).astype(np.int32)
            file["input_mask"] = np.ones((count, length), np.int8)
            file["segment_ids"] = np.repeat([[0] * (length // 2) + [1] * (length // 2)], count, 0).astype(np.int8)
            file["masked_lm_positions"] = np.sort(
                np.stack([rng.choice(length - 1, masked, replace=False) + 1 for _ in range(count)])
            ).astype(np.int32)
            file["masked_lm_ids"] = rng.integers(5, 64, (count, masked)).astype(np.int32)
            file["next_sentence_labels"] = rng.integers(0, 2, count).astype(np.int8)


def bert_16(folder: Path) -> None:
    """Sequences of 16."""
    _bert(folder, 16)


def bert_32(folder: Path) -> None:
    """Sequences of 32."""
    _bert(folder, 32)


_ACCURACY = """import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        right = sum(int(one == other) for one, other in zip(predictions, references))
        return {"accuracy": right / len(references)}
"""


def _metric(folder: Path) -> None:
    """What `evaluate.load("accuracy")` would fetch, in a folder of that name, where it looks first."""
    (folder / "accuracy").mkdir()
    (folder / "accuracy" / "accuracy.py").write_text(_ACCURACY)


def glue(folder: Path) -> None:
    """Sentences with labels, and a tiny model."""
    common(folder)
    _metric(folder)
    _tiny_bert(folder / "bert", "BertForSequenceClassification")
    lines = _text(16)
    (folder / "train.csv").write_text("sentence,label\n" + "".join(f"{t},{i % 2}\n" for i, t in enumerate(lines)))


def gpt2(folder: Path) -> None:
    """A tiny GPT-2's config and tokens that are cut to length already."""
    import datasets
    import transformers

    common(folder)
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    config.save_pretrained(folder)
    rng = np.random.default_rng(0)
    count = 2 * 2 * 5  # two ranks, batches of two, two and a half steps of two batches
    ids = rng.integers(5, 64, (count, 16)).tolist()
    rows = {"input_ids": ids, "attention_mask": [[1] * 16] * count, "labels": ids}
    made = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict({"train": made, "validation": made}).save_to_disk(str(folder / "tokenized"))
    _tiny_bert(folder / "tokenizer", "BertForMaskedLM")


def vit(folder: Path) -> None:
    """Images with labels by the names that cifar10 has, and a tiny vision transformer."""
    import datasets
    import torch
    import transformers

    torch.manual_seed(0)
    common(folder)
    _metric(folder)
    _images(folder / "drawn", 2, 6, 40)
    drawn = datasets.load_dataset("imagefolder", data_dir=str(folder / "drawn"), split="train")
    (folder / "images").mkdir()
    drawn.rename_column("image", "img").to_parquet(str(folder / "images" / "train.parquet"))
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder / "vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder / "vit")


# -- others' formats ----------------------------------------------------------------------------------------------
def stories(folder: Path) -> None:
    """Tokens in the files that llama2.c's tinystories.py writes."""
    rng = np.random.default_rng(0)
    target = folder / "data" / "tok64"
    target.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        rng.integers(0, 64, 16 * 40).astype(np.uint16).tofile(target / f"data{shard:02}.bin")


def mingpt(folder: Path) -> None:
    """The library where the project's script looks for it, which its README has installed."""
    shutil.copytree(folder / "mingpt", folder / "projects" / "adder" / "mingpt")


def notebook(folder: Path, name: str) -> None:
    """The cells of a notebook as a script."""
    cells = json.loads((folder / f"{name}.ipynb").read_text())["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (folder / f"{name}.py").write_text(text + "\n")


def spirals(folder: Path) -> None:
    """The notebook makes its own data."""
    notebook(folder, "train_rnn")


def titan(folder: Path) -> None:
    """Documents under the name of those that the repository holds."""
    documents = folder / "tests" / "assets" / "c4_test"
    documents.mkdir(parents=True, exist_ok=True)
    lines = _text(64)
    rows = ({"text": " ".join(lines[i:] + lines[:i]), "timestamp": "", "url": ""} for i in range(len(lines)))
    (documents / "data.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
