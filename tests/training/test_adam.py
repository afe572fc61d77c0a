"""Adam against torch's own."""

import numpy as np
import torch

from megagp.training.adam import Adam


def test_takes_the_steps_of_torch():
    rng = np.random.default_rng(0)
    start = [torch.from_numpy(rng.normal(size=size)) for size in (5, (3, 2))]
    ours, theirs = ([T.clone() for T in start] for _ in range(2))
    adam, peer = Adam(ours, 0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(20):
        gradients = [torch.from_numpy(rng.normal(size=T.shape)) for T in start]
        if step == 10:
            adam.rate /= 2
            peer.param_groups[0]["lr"] /= 2
        adam.step(gradients)
        for T, g in zip(theirs, gradients, strict=True):
            T.grad = g
        peer.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
