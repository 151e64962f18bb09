"""The ordered-neurons LSTM cell: weights, gates, and a recurrence with a hand-written backward pass."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from selfish_rnn.engine import PackedWeight, QuantizedWeight, register_packed
from selfish_rnn.engine.functional import drop_weights, linear
from selfish_rnn.engine.modules.basic import reset_uniform
from selfish_rnn.engine.operators.ordered_neurons import ordered_window
from selfish_rnn.errors import UserError
from selfish_rnn.models.regularisers import weight_drop
from selfish_rnn.runtime.cells import linear as add_linear
from selfish_rnn.runtime.cells import translates
from selfish_rnn.runtime.tracing import Trace
from selfish_rnn.sparsifier.selection import register_cell
from selfish_rnn.topology.gates import GateLayout

ORDERED_NEURONS_GATES = ("master_input", "master_forget", "output", "candidate", "input", "forget")


class CellOutput(NamedTuple):
    """Output of an :class:`OrderedNeuronsCell` for a window.

    Attributes:
        hidden: output at every step.
        cell: cell state after the last step.
        input_distance: mean of the master input gate (time x batch): how high in the order of neurons a word writes.
        forget_distance: one minus the mean of the master forget gate (time x batch): how high a word erases.
    """

    hidden: Tensor
    cell: Tensor
    input_distance: Tensor
    forget_distance: Tensor


class OrderedNeuronsCell(nn.Module):
    """One layer of the ordered-neurons LSTM (Shen et al. 2019) with neurons in n = hidden / chunk chunks.

    The rows of W and R are, from the top, the gates ĩ and f̃ (n each), o, g, i and f (hidden each):

        z = W x + w + R h + r
        f̃ = cumsum softmax(z_f̃),  ĩ = 1 - cumsum softmax(z_ĩ),  ω = f̃ ∘ ĩ
        F = σ(z_f) ∘ ω + (f̃ - ω),  I = σ(z_i) ∘ ω + (ĩ - ω)
        c' = F ∘ c + I ∘ tanh(z_g)
        h' = σ(z_o) ∘ tanh(c')

    Each entry of the master gates applies to all neurons of a chunk. In training, entries of R are dropped with
    probability ``weight_drop``, drawn once per window; in evaluation R is multiplied by one minus that.
    """

    def __init__(self, inputs: int, hidden: int, chunk: int, weight_drop: float = 0.0) -> None:
        super().__init__()
        if hidden % chunk:
            raise UserError(f"chunk must divide the width of every layer, but {chunk} does not divide {hidden}")
        self.inputs = inputs
        self.hidden = hidden
        self.chunk = chunk
        self.weight_drop = weight_drop
        rows = 4 * hidden + 2 * (hidden // chunk)
        self.weight_input = nn.Parameter(torch.empty(rows, inputs))
        self.bias_input = nn.Parameter(torch.empty(rows))
        self.weight_recurrent = nn.Parameter(torch.empty(rows, hidden))
        self.bias_recurrent = nn.Parameter(torch.empty(rows))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights from U(±1/√fan-in)."""
        reset_uniform(self, self.hidden, self.inputs)

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> CellOutput:
        """Run over ``inputs`` (time x batch x inputs) from h and c (batch x hidden)."""
        bias = self.bias_input + self.bias_recurrent
        recurrent = weight_drop(self.weight_recurrent, self.weight_drop, self.training, rescale="evaluation")
        projected = functional.linear(inputs, self.weight_input, bias)
        recurrence: Any = _OrderedNeuronsRecurrence.apply
        return CellOutput(*recurrence(projected, hidden, cell, recurrent, self.chunk))


class PackedOrderedNeuronsCell(OrderedNeuronsCell):
    """:class:`OrderedNeuronsCell` with a :class:`~selfish_rnn.engine.PackedWeight` for W and R."""

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> CellOutput:
        weight, recurrent = cast(tuple[PackedWeight, PackedWeight], (self.weight_input, self.weight_recurrent))
        bias = self.bias_input + self.bias_recurrent
        values = self._dropped(recurrent)
        return CellOutput(*ordered_window(inputs, hidden, cell, weight, recurrent, values, bias, self.chunk))

    def _dropped(self, weight: PackedWeight) -> Tensor:
        """Apply :func:`~selfish_rnn.models.regularisers.weight_drop` to the existing values, with the same draw."""
        if self.weight_drop == 0:
            return weight.values
        if self.training:
            return drop_weights(weight, self.weight_drop, rescaled=False)
        return weight.values * (1 - self.weight_drop)


class QuantizedOrderedNeuronsCell(PackedOrderedNeuronsCell):
    """The same with :class:`~selfish_rnn.engine.QuantizedWeight`, step by step: no kernel has a whole window."""

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> CellOutput:
        weight, recurrent = cast(tuple[QuantizedWeight, QuantizedWeight], (self.weight_input, self.weight_recurrent))
        outputs, distances, scale = list[Tensor](), list[Tensor](), 1 - self.weight_drop
        for projected in linear(inputs, weight, self.bias_input).unbind():
            logits, others = _blocks(projected + (scale * linear(hidden, recurrent) + self.bias_recurrent), self.chunk)
            output, candidate, write, keep = others.unbind(-2)
            summed = logits.softmax(-1).cumsum(-1)
            master = torch.stack([1 - summed[:, 0], summed[:, 1]])
            distances.append(torch.stack([master[0].mean(-1), 1 - master[1].mean(-1)]))
            master_input, master_forget = master.repeat_interleave(self.chunk, dim=-1)
            overlap = master_input * master_forget
            written = (write.sigmoid() * overlap + (master_input - overlap)) * candidate.tanh()
            cell = (keep.sigmoid() * overlap + (master_forget - overlap)) * cell + written
            hidden = output.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return CellOutput(torch.stack(outputs), cell, *torch.stack(distances, 1))


class _OrderedNeuronsRecurrence(torch.autograd.Function):
    """Loop over time of :class:`OrderedNeuronsCell`.

    Autograd would add a gradient to R at every step. This backward loop computes only the gradient of the state. It is
    linear in that gradient, so its coefficients are prepared for all steps at once, and one product over all time steps
    gives the gradient of R.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, hidden: Tensor, cell: Tensor, recurrent: Tensor, chunk: int
    ) -> tuple[Tensor, ...]:
        steps, batch, size = len(projected), *hidden.shape
        gates = torch.empty_like(projected)
        # Both master gates, ĩ first (time x batch x 2 x chunks), and I and F with the neurons of each chunk.
        chances = projected.new_empty(steps, batch, 2, size // chunk)
        masters = torch.empty_like(chances)
        effective = projected.new_empty(steps, batch, 2, size // chunk, chunk)
        cells, squashed, outputs = (projected.new_empty(steps, batch, size) for _ in range(3))
        transposed, unit = recurrent.t(), projected.new_ones(())
        last_hidden, last_cell = hidden, cell
        for step in range(steps):
            gate = torch.addmm(projected[step], last_hidden, transposed, out=gates[step])
            logits, others = _blocks(gate, chunk)
            output, candidate, input_forget = others[:, 0], others[:, 1], others[:, 2:]
            torch.softmax(logits, dim=-1, out=chances[step])
            master = torch.cumsum(chances[step], dim=-1, out=masters[step])
            master_input, master_forget = master.unbind(1)
            torch.sub(unit, master_input, out=master_input)
            output.sigmoid_()
            candidate.tanh_()
            input_forget.sigmoid_()

            overlap = (master_input * master_forget).unsqueeze(1)
            alone, overlap = (master - overlap).unsqueeze(-1), overlap.unsqueeze(-1)
            torch.addcmul(alone, overlap, torch.unflatten(input_forget, -1, (-1, chunk)), out=effective[step])
            write, keep = effective[step].flatten(2).unbind(1)
            torch.mul(write, candidate, out=cells[step]).addcmul_(keep, last_cell)
            last_cell = cells[step]
            torch.tanh(last_cell, out=squashed[step])
            last_hidden = torch.mul(output, squashed[step], out=outputs[step])

        ctx.chunk = chunk
        ctx.save_for_backward(hidden, cell, recurrent, gates, chances, masters, effective, cells, squashed, outputs)
        master_input, master_forget = masters.unbind(2)
        distances = master_input.mean(-1), 1 - master_forget.mean(-1)
        ctx.mark_non_differentiable(*distances)
        return outputs, last_cell.clone(), *distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_last_cell: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, cell, recurrent, gates, chances, masters, effective, cells, squashed, outputs = ctx.saved_tensors
        entering_hidden = torch.cat([hidden.unsqueeze(0), outputs[:-1]])
        entering_cell = torch.cat([cell.unsqueeze(0), cells[:-1]])

        # The gradients of every step are linear in dL/dh' and dL/dc'; these are their factors.
        grad_gates, through_output, through_master = _factors(
            gates, masters, effective, squashed, entering_cell, ctx.chunk
        )
        grad_hidden, grad_cell = grad_outputs[-1], grad_last_cell.clone()
        for step in reversed(range(len(gates))):
            grad_logits, grad_rest = _blocks(grad_gates[step], ctx.chunk)
            grad_cell.addcmul_(grad_hidden, through_output[step])
            grad_rest[:, 0].mul_(grad_hidden)
            grad_rest[:, 1:].mul_(grad_cell.unsqueeze(1))
            of_neurons = torch.unflatten(through_master[step].mul_(grad_cell.unsqueeze(1)), -1, (-1, ctx.chunk))
            _cumax_backward(of_neurons.sum(-1), chances[step], out=grad_logits)
            grad_cell.mul_(effective[step, :, 1].flatten(1))
            if step:
                grad_hidden = torch.addmm(grad_outputs[step - 1], grad_gates[step], recurrent)
            else:
                grad_hidden = grad_gates[step] @ recurrent

        grad_recurrent = grad_gates.flatten(0, 1).t() @ entering_hidden.flatten(0, 1)
        return grad_gates, grad_hidden, grad_cell, grad_recurrent, None


def _blocks(gates: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return views of the master gates (… x 2 x chunks) and the other gates (… x 4 x neurons) in … x rows."""
    chunks = gates.shape[-1] // (4 * chunk + 2)
    masters, others = gates.tensor_split([2 * chunks], dim=-1)
    return torch.unflatten(masters, -1, (2, chunks)), torch.unflatten(others, -1, (4, chunks * chunk))


def _factors(
    gates: Tensor, masters: Tensor, effective: Tensor, squashed: Tensor, entering: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coefficients of the backward loop, for all steps at once.

    Returns:
        Factors of the gates before their activation, with room for the master gates: the factor of o multiplies dL/dh',
        those of g, i and f multiply dL/dc'. Then the factor dc'/dh', and dc'/dĩ and dc'/df̃ per neuron.
    """
    _, others = _blocks(gates, chunk)
    output, candidate, write, keep = others.unbind(-2)
    master_input, master_forget = masters.repeat_interleave(chunk, dim=-1).unbind(-2)
    overlap = master_input * master_forget

    grad_gates = torch.empty_like(gates)
    grad_output, grad_candidate, grad_write, grad_keep = _blocks(grad_gates, chunk)[1].unbind(-2)
    grad_output.copy_(squashed * output * (1 - output))
    grad_candidate.copy_(effective[:, :, 0].flatten(2) * (1 - candidate.square()))
    grad_write.copy_(candidate * overlap * write * (1 - write))
    grad_keep.copy_(entering * overlap * keep * (1 - keep))

    of_overlap = entering * (keep - 1) + candidate * (write - 1)
    through_input = -(candidate + master_forget * of_overlap)
    through_forget = entering + master_input * of_overlap
    through_master = torch.stack([through_input, through_forget], dim=2)
    return grad_gates, output * (1 - squashed.square()), through_master


def _cumax_backward(grad_cumulated: Tensor, chances: Tensor, out: Tensor) -> None:
    """Return the gradient of z from that of cumsum(softmax(z)); ``chances`` is softmax(z)."""
    grad = grad_cumulated.flip(-1).cumsum(-1).flip(-1)
    grad -= (grad * chances).sum(-1, keepdim=True)
    torch.mul(grad, chances, out=out)


def _layouts(cell: OrderedNeuronsCell) -> dict[str, GateLayout]:
    chunks = cell.hidden // cell.chunk
    layout = GateLayout(ORDERED_NEURONS_GATES, (chunks, chunks, *(cell.hidden,) * 4))
    return {"weight_input": layout, "weight_recurrent": layout}


register_cell(OrderedNeuronsCell, _layouts)
register_packed(OrderedNeuronsCell, PackedOrderedNeuronsCell, quantized=QuantizedOrderedNeuronsCell)


@translates(OrderedNeuronsCell)
def _translate(trace: Trace, cell: Any, inputs: Tensor, hidden: Tensor, memory: Tensor) -> CellOutput:
    """Add one step of the cell, dense, packed or int8, to the program of a stream."""
    with trace.pause():
        output = CellOutput(*(tensor.clone() for tensor in cell.original_forward(inputs, hidden, memory)))
    h, keeps_h = trace.entering(hidden, cell.hidden, "h")
    c, keeps_c = trace.entering(memory, cell.hidden, "c")
    recurrent = add_linear(trace, cell.weight_recurrent, h)
    if cell.weight_drop:
        recurrent = trace.program.multiply(recurrent, 1 - cell.weight_drop)
    sums = add_linear(trace, cell.weight_input, trace.vector(inputs), cell.bias_input + cell.bias_recurrent)
    h_after, c_after = trace.program.ordered_cell(sums, recurrent, c, cell.chunk)
    for value, after, keeps in ((h, h_after, keeps_h), (c, c_after, keeps_c)):
        if keeps:
            trace.program.set_state(value, after)
    trace.bind(output.hidden, h_after)
    trace.bind(output.cell, c_after)
    return output
