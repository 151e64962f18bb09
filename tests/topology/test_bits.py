from __future__ import annotations

import pytest
import torch
from hypothesis import given
from selfish_rnn.topology.bits import pack_bits, unpack_bits
from topology_cases import topologies

from selfish_rnn.topology import Topology


@given(topologies())
def test_round_trip(topology: Topology) -> None:
    mask = topology.to_mask()
    bits = pack_bits(mask)
    assert bits.dtype == torch.uint8
    assert bits.shape == ((mask.numel() + 7) // 8,)
    assert torch.equal(unpack_bits(bits, topology.shape), mask)


def test_bits_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 bytes does not fit a matrix of shape \(5, 5\)"):
        unpack_bits(pack_bits(torch.ones(4, 4)), (5, 5))
