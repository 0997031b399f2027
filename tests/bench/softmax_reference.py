import numpy as np


def inputs(rng):
    return [rng.standard_normal((512, 512), dtype=np.float32)]


def reference(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
