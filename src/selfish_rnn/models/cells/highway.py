"""The recurrent highway cell: weights, gates, and a recurrence with a hand-written backward pass."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from selfish_rnn.engine import PackedWeight, QuantizedWeight, register_packed
from selfish_rnn.engine.functional import linear
from selfish_rnn.engine.modules.basic import reset_uniform
from selfish_rnn.engine.operators.highway import highway_window
from selfish_rnn.runtime.cells import linear as add_linear
from selfish_rnn.runtime.cells import translates
from selfish_rnn.runtime.tracing import Trace
from selfish_rnn.sparsifier.selection import register_cell
from selfish_rnn.topology.gates import GateLayout

HIGHWAY_GATES = ("nonlinear", "transform")


class HighwayCell(nn.Module):
    """One recurrent highway layer (Zilly et al. 2017) of recurrence depth D with coupled gates.

    At every time step the state s passes D micro-steps; the input x enters the first. With m the dropout mask of the
    state,

        [a; b] = R_d (s ∘ m) + r_d  (+ W x + w  at d = 1)
        s ← s + σ(b) ∘ (tanh(a) - s)

    The upper half of the rows of W and of every R computes the non-linear transform, the lower half the transform gate.
    The carry gate is one minus the transform gate.
    """

    def __init__(self, inputs: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.hidden = hidden
        self.depth = depth
        self.weight_input = nn.Parameter(torch.empty(2 * hidden, inputs))
        self.bias_input = nn.Parameter(torch.empty(2 * hidden))
        for level in range(1, depth + 1):
            self.register_parameter(f"weight_recurrent_{level}", nn.Parameter(torch.empty(2 * hidden, hidden)))
            self.register_parameter(f"bias_recurrent_{level}", nn.Parameter(torch.empty(2 * hidden)))
        self.reset_parameters()

    def recurrent_weights(self) -> list[nn.Parameter]:
        """Recurrent matrices R_1 … R_D."""
        return [getattr(self, f"weight_recurrent_{level}") for level in range(1, self.depth + 1)]

    def recurrent_biases(self) -> list[Tensor]:
        """Recurrent biases r_1 … r_D."""
        return [self.get_parameter(f"bias_recurrent_{level}") for level in range(1, self.depth + 1)]

    def reset_parameters(self, transform_bias: float | None = None) -> None:
        """Draw all weights from U(±1/√fan-in); ``transform_bias`` sets the bias of the transform gate."""
        reset_uniform(self, self.hidden, self.inputs)
        if transform_bias is not None:
            # The first micro-step adds two biases, whose sum must be transform_bias.
            nn.init.zeros_(self.bias_input[self.hidden :])
            for bias in self.recurrent_biases():
                nn.init.constant_(bias[self.hidden :], transform_bias)

    def forward(self, inputs: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the states (time x batch x hidden) after each step over ``inputs`` (time x batch x inputs)."""
        first, *later = self.recurrent_biases()
        projected = functional.linear(inputs, self.weight_input, self.bias_input + first)
        weights = self.recurrent_weights()
        states: Tensor = _HighwayRecurrence.apply(projected, state, mask, *later, *weights)  # type: ignore[no-untyped-call]
        return states


class PackedHighwayCell(HighwayCell):
    """:class:`HighwayCell` with a :class:`~selfish_rnn.engine.PackedWeight` for W and every R."""

    def forward(self, inputs: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
        first, *later = self.recurrent_biases()
        weight, *recurrent = cast(list[PackedWeight], [self.weight_input, *self.recurrent_weights()])
        return highway_window(inputs, state, mask, weight, recurrent, [self.bias_input + first, *later])


class QuantizedHighwayCell(PackedHighwayCell):
    """The same with :class:`~selfish_rnn.engine.QuantizedWeight`, step by step: no kernel has a whole window."""

    def forward(self, inputs: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
        weight, *recurrent = cast(list[QuantizedWeight], [self.weight_input, *self.recurrent_weights()])
        entering, biases, states = linear(inputs, weight, self.bias_input), self.recurrent_biases(), list[Tensor]()
        for projected in entering.unbind():
            for level, matrix in enumerate(recurrent):
                sums = linear(state if mask is None else state * mask, matrix, biases[level])
                nonlinear, transform = (sums if level else sums + projected).chunk(2, dim=-1)
                state = torch.lerp(state, nonlinear.tanh(), transform.sigmoid())
            states.append(state)
        return torch.stack(states)


class _HighwayRecurrence(torch.autograd.Function):
    """Loop over time and depth of :class:`HighwayCell`.

    Autograd would add a gradient to every R at every micro-step. This backward loop computes only the gradient of the
    state. It is linear in that gradient, so its coefficients are prepared for all steps at once, and one product over
    all time steps gives the gradient of each R.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, initial: Tensor, mask: Tensor | None, *biases_and_weights: Tensor
    ) -> Tensor:
        depth = (len(biases_and_weights) + 1) // 2
        biases, weights = biases_and_weights[: depth - 1], biases_and_weights[depth - 1 :]
        steps, batch, hidden = len(projected), *initial.shape
        outputs = projected.new_empty(steps, batch, hidden)
        between = projected.new_empty(depth - 1, steps, batch, hidden)
        gates = projected.new_empty(depth, steps, batch, 2 * hidden)

        # Views of all micro-steps are prepared at once, because indexing takes as long as a small product.
        gate, (nonlinear, transform) = _micro_steps(gates), map(_micro_steps, gates.chunk(2, dim=-1))
        results = [*_micro_steps(between), outputs.unbind()]
        transposed = [weight.t() for weight in weights]
        state, masked = initial, torch.empty_like(initial)
        for step, entering in enumerate(projected.unbind()):
            for level in range(depth):
                argument = state if mask is None else torch.mul(state, mask, out=masked)
                bias = biases[level - 1] if level else entering
                torch.addmm(bias, argument, transposed[level], out=gate[level][step])
                target, share = nonlinear[level][step].tanh_(), transform[level][step].sigmoid_()
                state = torch.lerp(state, target, share, out=results[level][step])
        ctx.save_for_backward(initial, mask, gates, between, outputs, *weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        initial, mask, gates, between, outputs, *weights = ctx.saved_tensors
        depth, steps, batch, width = gates.shape
        entering = torch.cat([torch.cat([initial.unsqueeze(0), outputs[:-1]]).unsqueeze(0), between])

        # With h = tanh(a), t = σ(b) and g = dL/ds' of the new state s': dL/da = t (1 - h²) g,
        # dL/db = (h - s) t (1 - t) g, and dL/ds = (1 - t) g plus the gradient through R. The factors of g are
        # computed here for all steps.
        nonlinear, transform = gates.chunk(2, dim=-1)
        carry = 1 - transform
        grad_gates = torch.empty_like(gates)
        grad_nonlinear, grad_transform = grad_gates.chunk(2, dim=-1)
        torch.mul(nonlinear, nonlinear, out=grad_nonlinear).neg_().add_(1).mul_(transform)
        torch.sub(nonlinear, entering, out=grad_transform).mul_(transform).mul_(carry)

        grad_state, through_weight = torch.zeros_like(initial), torch.empty_like(initial)
        grad_of_both_halves = grad_state.unsqueeze(1)
        halves = grad_gates.view(depth, steps, batch, 2, width // 2)
        grad_gate, grad_halves = _micro_steps(grad_gates), _micro_steps(halves)
        carried = _micro_steps(carry)
        for step, grad_output in reversed(list(enumerate(grad_outputs.unbind()))):
            grad_state.add_(grad_output)
            for level in reversed(range(depth)):
                grad_halves[level][step].mul_(grad_of_both_halves)
                grad_state.mul_(carried[level][step])
                if mask is None:
                    grad_state.addmm_(grad_gate[level][step], weights[level])
                else:
                    torch.mm(grad_gate[level][step], weights[level], out=through_weight)
                    grad_state.addcmul_(through_weight, mask)

        if mask is not None:
            entering.mul_(mask)
        grads = grad_gates.flatten(1, 2)
        grad_weights = [grad.t() @ state for grad, state in zip(grads, entering.flatten(1, 2), strict=True)]
        return grad_gates[0], grad_state, None, *grads[1:].sum(1), *grad_weights


def _micro_steps(tensor: Tensor) -> list[tuple[Tensor, ...]]:
    """Return views by depth and time step of a tensor of depth x time x …."""
    return [level.unbind() for level in tensor.unbind()]


def _layouts(cell: HighwayCell) -> dict[str, GateLayout]:
    names = ["weight_input", *(f"weight_recurrent_{level}" for level in range(1, cell.depth + 1))]
    return {name: GateLayout.even(HIGHWAY_GATES, 2 * cell.hidden) for name in names}


def _layers(cell: HighwayCell) -> list[tuple[str, ...]]:
    """Return every micro-step as a layer: the input and the first recurrent matrix add up to the same two gates."""
    return [("weight_input", "weight_recurrent_1"), *((f"weight_recurrent_{d}",) for d in range(2, cell.depth + 1))]


register_cell(HighwayCell, _layouts, _layers)
register_packed(HighwayCell, PackedHighwayCell, quantized=QuantizedHighwayCell)


@translates(HighwayCell)
def _translate(trace: Trace, cell: Any, inputs: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
    """Add one step of the cell, dense, packed or int8, to the program of a stream."""
    with trace.pause():
        states: Tensor = cell.original_forward(inputs, state, mask).clone()
    s, keeps = trace.entering(state, cell.hidden, "state")
    first = add_linear(trace, cell.weight_input, trace.vector(inputs), cell.bias_input)
    after = s
    for level, (weight, bias) in enumerate(zip(cell.recurrent_weights(), cell.recurrent_biases(), strict=True)):
        sums = add_linear(trace, weight, after, bias)
        after = trace.program.highway_cell(sums if level else first, None if level else sums, after)
    if keeps:
        trace.program.set_state(s, after)
    trace.bind(states, after)
    return states
