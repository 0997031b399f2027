# SPDX-License-Identifier: Apache-2.0
"""The step of a transformer on GPUs, layer by layer, from operations, bytes and exchange; nothing in it is fitted.

A product takes its operations at the best rate that was measured for the accelerator, then its bytes: as in
Calculon's processing mode `no_overlap` (Isaev et al. 2023), which stands for how a kernel begins and ends.

Layers are divided as Megatron does it: tensor parallel ranks share products and heads, and with sequence parallelism
what lies between them (Korthikanti et al. 2022, arXiv:2205.05198); pipelines are 1F1B, interleaved or not (Narayanan
et al. 2021). All times are of one rank and one microbatch unless it is said otherwise.

b sequences, s tokens, h hidden size, t tensor parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnlab.errors import UsageError
from trnlab.fleet.layout import Layout, layers_of
from trnlab.fleet.models import Block, Dense, Model
from trnlab.fleet.others import efficiency
from trnlab.fleet.others.catalogue import Instance

HALF, FULL = 2, 4  # bytes of an element
RECOMPUTE = ("none", "selective", "full")
ADAM_BYTES = 34  # a parameter: master, mean and square read and written, the gradient read, the weight written


@dataclass(frozen=True)
class Software:
    """What the training library does. fused: attention without its scores in memory (FlashAttention). overlap:
    gradients are exchanged while the last backward pass is still under way. sequence_parallel: see the module."""

    fused: bool = True
    overlap: bool = True
    sequence_parallel: bool = True
    network: str = ""


@dataclass(frozen=True)
class Job:
    """A step of `batch` sequences of `sequence` tokens, divided by a layout over instances of a type."""

    model: Model
    layout: Layout
    instance: Instance
    batch: int
    sequence: int
    form: str = "bf16"
    software: Software = field(default_factory=Software)

    @property
    def accelerators(self) -> int:
        """Of the whole job."""
        return self.layout.ranks


@dataclass(frozen=True)
class Roofline:
    """A step: seconds by cause, which add up to `total`; bytes by class on the rank with most."""

    total: float
    seconds: dict[str, float]
    bytes: dict[str, float]
    mfu: float
    assumed: tuple[str, ...] = ()

    @property
    def exchange(self) -> float:
        """The share of the step in which ranks wait for the network."""
        return sum(self.seconds[k] for k in ("tensor parallel", "pipeline sends", "gradients")) / self.total


@dataclass(frozen=True)
class Pass:
    """Seconds of a layer, one way: products, what streams through memory, and exposed exchange."""

    work: float = 0.0
    talk: float = 0.0

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.work + other.work, self.talk + other.talk)

    def times(self, n: float) -> Pass:
        """So many of it."""
        return Pass(self.work * n, self.talk * n)

    @property
    def total(self) -> float:
        """Of both."""
        return self.work + self.talk


def step(job: Job) -> Roofline:
    """The step of a job. Raises UsageError: TRN155 for a format that the accelerator has not, TRN157 for a model
    without a roofline."""
    if any(not isinstance(block.network, Dense) for _, block in job.model.stacks):
        raise UsageError(
            f"{job.model.name} has experts, for which there is no roofline", code="TRN157",
            limit="models of dense networks", got=job.model.name,
            remedy="published utilisations are compared without one: see the band",
        )  # fmt: skip
    if job.model.decoded:
        raise UsageError(
            f"{job.model.name} is an encoder with a decoder, for which there is no roofline", code="TRN157",
            limit="models of one stack", got=job.model.name,
            remedy="published utilisations are compared without one: see the band",
        )  # fmt: skip
    return _Step(job).made()


class _Step:
    def __init__(self, job: Job) -> None:
        self.job, self.layout = job, job.layout
        best = efficiency.product(job.instance.accelerator, job.form)
        self.rate = job.instance.accelerator.peak(job.form) * best.share
        self.assumed = () if best.published else (best.source,)
        self.inside = efficiency.inside(job.instance)
        self.between = efficiency.between(job.instance, job.software.network)
        self.tokens = job.layout.microbatch * job.sequence
        self.spread = job.layout.tensor if job.software.sequence_parallel else 1

    # -- single operations --------------------------------------------------------------------------------------
    def product(self, m: float, k: float, n: float, count: float = 1) -> float:
        """Seconds of `count` products of m x k and k x n."""
        flops, nbytes = 2.0 * m * k * n * count, HALF * count * (m * k + k * n + m * n)
        return flops / (self.rate * efficiency.of_size(flops)) + self.stream(nbytes)

    def stream(self, nbytes: float) -> float:
        """Seconds to move so many bytes through memory."""
        return nbytes / (self.job.instance.accelerator.bandwidth * efficiency.of_memory(nbytes))

    # -- a layer ------------------------------------------------------------------------------------------------
    def linears(self, block: Block) -> float:
        """The products with weights, forward."""
        h, t, x, a = block.hidden, self.layout.tensor, self.tokens, block.attention
        widths = ((a.heads + a.kv_heads) * a.size + a.kv_heads * a.value_size) / t
        assert isinstance(block.network, Dense)
        inner = block.network.size / t
        up = self.product(x, h, inner * (2 if block.network.gated else 1))
        return (
            self.product(x, h, widths)
            + self.product(x, a.heads * a.value_size / t, h)
            + up
            + self.product(x, inner, h)
        )

    def core(self, block: Block) -> tuple[float, float]:
        """Attention between its projections: products, and what streams through memory, forward."""
        a, s = block.attention, self.job.sequence
        count = self.layout.microbatch * a.heads / self.layout.tensor
        fused = self.job.software.fused
        half = 0.5 if fused and a.causal else 1.0
        flops = 2.0 * count * s * s * (a.size + a.value_size) * half
        if fused:
            moved = HALF * self.tokens * a.heads / self.layout.tensor * 2 * (a.size + a.value_size)
            return flops / (self.rate * efficiency.of_size(flops)) + self.stream(moved), 0.0
        products = self.product(s, a.size, s, count) + self.product(s, s, a.value_size, count)
        scores = count * s * s
        return products, self.stream(2 * HALF * scores) + self.stream((2 * HALF + 1) * scores)  # softmax; dropout

    def rest(self, block: Block) -> float:
        """Norms, biases, dropouts, residuals and the activation, forward."""
        elements = self.tokens * block.hidden / self.spread
        assert isinstance(block.network, Dense)
        inner = self.tokens * block.network.size / self.layout.tensor
        reads = 3 if block.network.gated else 2
        between = self.stream(2 * HALF * elements) + self.stream((3 * HALF + 1) * elements)
        return 2 * between + self.stream(reads * HALF * inner)

    def layer(self, block: Block) -> tuple[Pass, Pass, Pass]:
        """Forward, backward, and what is made again between them."""
        linears, (products, streams), rest = self.linears(block), self.core(block), self.rest(block)
        size = HALF * self.tokens * block.hidden
        talk = 2 * self.inside.ring(size, self.layout.tensor, 2)
        forward = Pass(linears + products + streams + rest, talk)
        again = 2.5 if self.job.software.fused else 2.0  # fused attention makes its scores again by itself
        if self.job.software.sequence_parallel:  # what was gathered is not kept, but gathered again
            more = 2 * self.inside.ring(size, self.layout.tensor)
        else:
            more = 0.0
        backward = Pass(2 * linears + again * products + 1.25 * streams + 1.5 * rest, talk + more)
        if self.layout.recompute == "full":
            return forward, backward, forward
        if self.layout.recompute == "selective" and not self.job.software.fused:
            return forward, backward, Pass(products + streams)
        return forward, backward, Pass()

    def head(self) -> Pass:
        """Logits, loss and back, on the last stage."""
        model, t = self.job.model, self.layout.tensor
        if not model.vocabulary:
            return Pass(3 * self.product(self.layout.microbatch, model.hidden, max(model.classes, 1)))
        wide = model.vocabulary / t
        return Pass(3 * self.product(self.tokens, model.hidden, wide) + 6 * self.stream(FULL * self.tokens * wide))

    # -- the step -----------------------------------------------------------------------------------------------
    def made(self) -> Roofline:
        """All microbatches through the slowest rank of the pipeline, which sets the pace, and the end of the step."""
        job, layout = self.job, self.layout
        m, p, v = layout.microbatches(job.batch), layout.pipeline, layout.interleave
        forward, backward, again = self._of_layer()
        counts, head, sums = layers_of(layout.pipeline, job.model.layers), self.head(), self._accumulation(m)
        layer = (forward + backward + again).total
        slow = max(range(p), key=lambda i: counts[i] * layer + (head.total if i == p - 1 else 0.0))
        own = head.work if slow == p - 1 else 0.0
        passing = job.model.layers / p * layer + sums
        seconds = {
            "compute": m * (counts[slow] * (forward.work + backward.work) + own + sums),
            "recompute": m * counts[slow] * again.work,
            "tensor parallel": m * counts[slow] * (forward.talk + backward.talk + again.talk),
            "bubble": (p - 1) / v * passing,
            "pipeline sends": 2 * v * m * self.between.send(self._entering()) if p > 1 else 0.0,
            "gradients": self._gradients(counts[slow] * backward.total),
            "optimizer": self.stream(ADAM_BYTES * self.parameters / (layout.data if layout.zero else 1)),
        }
        total = sum(seconds.values())
        flops = job.model.flops_per_token(job.sequence) * job.batch * job.sequence
        peak = job.instance.accelerator.peak(job.form) * layout.ranks
        return Roofline(total, seconds, self._bytes(), flops / peak / total, self.assumed)

    def _of_layer(self) -> tuple[Pass, Pass, Pass]:
        """Of the mean layer: forward, backward, made again."""
        found = [Pass(), Pass(), Pass()]
        for count, block in self.job.model.stacks:
            share = count / self.job.model.layers
            found = [sum_ + one.times(share) for sum_, one in zip(found, self.layer(block))]
        return found[0], found[1], found[2]

    def _accumulation(self, microbatches: int) -> float:
        """Seconds a microbatch to add gradients to sums in float32, which are read and written."""
        return self.stream(2 * FULL * self.parameters) if microbatches > 1 else 0.0

    def _entering(self) -> float:
        """Bytes between two stages, of which each tensor parallel rank sends a part."""
        return HALF * self.tokens * self.job.model.hidden / self.layout.tensor

    @property
    def parameters(self) -> float:
        """Of the rank with most, about: an end of a pipeline holds the embedding or the head as well."""
        model, p = self.job.model, self.layout.pipeline
        blocks = sum(n * block.parameters for n, block in model.stacks) / p
        ends = model.embedding_parameters + model.head_parameters
        if p > 1:
            ends = max(model.embedding_parameters, model.head_parameters)
        return (blocks + ends) / self.layout.tensor

    def _gradients(self, behind: float) -> float:
        """Exchange of gradients among data parallel ranks that nothing hides; behind: seconds of a backward pass."""
        layout, nbytes = self.layout, HALF * self.parameters
        if layout.data == 1:
            return 0.0
        near = layout.tensor * layout.data <= self.job.instance.domain
        path = self.inside if near else self.between
        inner = 1 if near else max(self.job.instance.count // layout.tensor, 1)
        seconds = path.ring(nbytes / inner, -(-layout.data // inner), 2)  # all links of an instance carry a part
        seconds += self.inside.ring(nbytes, min(inner, layout.data), 2)
        return max(seconds - behind, 0.0) if self.job.software.overlap else seconds

    def _bytes(self) -> dict[str, float]:
        """Of the first stage's rank (Korthikanti et al. 2022, equations 2 to 6; Rajbhandari et al. 2020)."""
        layout, n = self.layout, self.parameters
        return {
            "weights": HALF * n, "gradients": FULL * n, "optimizer": 12 * n / (layout.data if layout.zero else 1),
            "activations": self._activations(),
        }  # fmt: skip

    def _activations(self) -> float:
        layout, job = self.layout, self.job
        p, v, m = layout.pipeline, layout.interleave, layout.microbatches(job.batch)
        held = min(m, p) if v == 1 else p * (1 + (p - 1) / (p * v))
        total = 0.0
        for count, block in job.model.stacks:
            total += count / p * activations(block, layout, job.sequence, job.software) * held
        return total


def activations(block: Block, layout: Layout, sequence: int, software: Software) -> float:
    """Bytes that a layer keeps of one microbatch on one rank (Korthikanti et al. 2022, table 2)."""
    t, size = layout.tensor, layout.microbatch * sequence * block.hidden
    if layout.recompute == "full":
        return 2.0 * size / (t if software.sequence_parallel else 1)
    scores = 5.0 * block.attention.heads * sequence / block.hidden
    if layout.recompute == "selective" or software.fused:
        scores = 0.0
    if software.sequence_parallel:
        return size * (34 + scores) / t
    return size * (10 + (24 + scores) / t)
