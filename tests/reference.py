"""The recurrent cells as straightforward loops that autograd differentiates: what the fast ones must agree with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from selfish_rnn.models.cells.highway import HighwayCell
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell


def highway_loop(cell: HighwayCell, inputs: Tensor, state: Tensor, mask: Tensor | None) -> Tensor:
    """The straightforward loop: autograd, one product per matrix and micro-step."""
    states = []
    for entering in inputs:
        for level, (weight, bias) in enumerate(zip(cell.recurrent_weights(), cell.recurrent_biases(), strict=True)):
            both = functional.linear(state if mask is None else state * mask, weight, bias)
            if level == 0:
                both = both + functional.linear(entering, cell.weight_input, cell.bias_input)
            nonlinear, transform = both.chunk(2, dim=-1)
            gate = torch.sigmoid(transform)
            state = torch.tanh(nonlinear) * gate + state * (1 - gate)
        states.append(state)
    return torch.stack(states)


def ordered_neurons_loop(cell: OrderedNeuronsCell, inputs: Tensor, hidden: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The straightforward loop: autograd, both products at every step."""
    chunks, chunk = cell.hidden // cell.chunk, cell.chunk
    c = c.view(-1, chunks, chunk)
    outputs = []
    for entering in inputs:
        sums = functional.linear(entering, cell.weight_input, cell.bias_input)
        sums = sums + functional.linear(hidden, cell.weight_recurrent, cell.bias_recurrent)
        master_input, master_forget = sums[:, : 2 * chunks].chunk(2, dim=1)
        output, candidate, write, keep = sums[:, 2 * chunks :].view(-1, 4 * chunks, chunk).chunk(4, dim=1)
        master_input = 1 - torch.cumsum(torch.softmax(master_input, dim=-1), dim=-1).unsqueeze(-1)
        master_forget = torch.cumsum(torch.softmax(master_forget, dim=-1), dim=-1).unsqueeze(-1)
        overlap = master_forget * master_input
        keep = torch.sigmoid(keep) * overlap + (master_forget - overlap)
        write = torch.sigmoid(write) * overlap + (master_input - overlap)
        c = keep * c + write * torch.tanh(candidate)
        hidden = (torch.sigmoid(output) * torch.tanh(c)).flatten(1)
        outputs.append(hidden)
    return torch.stack(outputs), c.flatten(1)
