"""Plain loops that the fast implementations must agree with: the recurrent cells, and cell gate redistribution."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

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


def sorted_removal(masks: Sequence[Tensor], weights: Sequence[Tensor], rate: float) -> list[Tensor]:
    """Return the masks of one layer after the removal of Eq. 4: an ascending sort over all of its matrices.

    The largest weight of every matrix stays.
    """
    entries = [
        (abs(float(weight[row, column])), number, row, column)
        for number, (mask, weight) in enumerate(zip(masks, weights, strict=True))
        for row in range(mask.shape[0])
        for column in range(mask.shape[1])
        if mask[row, column]
    ]
    kept = [mask.clone() for mask in masks]
    ascending = sorted(entries)
    for _, number, row, column in ascending[: round(rate * len(ascending))]:
        kept[number][row, column] = 0
    for number, mask in enumerate(masks):
        own = [entry for entry in entries if entry[1] == number]
        if own and not kept[number].any():
            largest = max(size for size, *_ in own)
            _, _, row, column = next(entry for entry in own if entry[0] == largest)
            kept[number][row, column] = mask[row, column]
    return kept


def equal_shares(count: int, rows: Sequence[int], rooms: Sequence[int]) -> list[Fraction]:
    """Divide new weights over gates, as many per row in each; what a full gate cannot take goes to the others."""
    shares = [Fraction(0)] * len(rows)
    open_gates = set(range(len(rows)))
    remaining = Fraction(count)
    while open_gates:
        per_row = remaining / sum(rows[gate] for gate in open_gates)
        full = {gate for gate in open_gates if per_row * rows[gate] >= rooms[gate]}
        for gate in full:
            shares[gate] = Fraction(rooms[gate])
            remaining -= rooms[gate]
        open_gates -= full
        if not full:
            for gate in open_gates:
                shares[gate] = per_row * rows[gate]
            break
    return shares
