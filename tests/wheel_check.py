"""Checks an installed wheel, with nothing but the package itself: ``python tests/wheel_check.py``.

The packed engine is in it, and computes what torch does.
"""

from __future__ import annotations

import torch
from torch import nn

from selfish_rnn import Sparsifier, pack
from selfish_rnn.engine import available, library


def main() -> None:
    assert available(), "the packed engine is not in the wheel"
    torch.manual_seed(0)
    for rnn in (nn.LSTM(20, 30), nn.GRU(20, 30), nn.RNN(20, 30)):
        Sparsifier(rnn, sparsity=0.8, rewirings=1)
        x = torch.randn(7, 5, 20)
        expected, _ = rnn(x)
        found, _ = pack(rnn)(x)
        assert torch.allclose(found, expected, atol=1e-5), type(rnn).__name__
    threads = "several threads" if library.threaded() else "one thread"
    print(f"the packed engine works: kernels for {library.target()}, {threads}")


if __name__ == "__main__":
    main()
