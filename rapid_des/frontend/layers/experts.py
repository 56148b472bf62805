"""A mixture of experts: a router, routed experts that ep spreads and etp splits, shared experts beside them.

Tokens reach their experts as `dispatch` says. Where the ranks of a tp group hold the same tokens, as in
serving, one sum over tp follows. Experts' biases are added in the products. Shared experts compute before
the routed ones, in halves while tokens travel, or beside router and routed experts on a second stream of
kernels, as serving engines have it. Latent experts see tokens through a projection to fewer
channels, in which these travel too, and a second one brings results back; each rank has both whole (Megatron
Core's moe-latent-size).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rapid_des.device.operators import Gemm, GroupedGemm, Starts
from rapid_des.device.vector import fused
from rapid_des.frontend.layers.dispatch import Dispatch, Overlapped
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.layers.transformer import GATED, DenseFeedForward
from rapid_des.frontend.matrices import (
    LAUNCHES,
    Linear,
    append_weight_gradient,
    cast,
    column_backward,
    column_forward,
    reduce_output,
)
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.units import ceil_divide
from rapid_des.values import replace


class Experts(Struct, frozen=True):
    """Routed experts, `topk` of `experts` for each token, and the shared ones as one dense feed-forward."""

    hidden: int
    inner: int
    activation: str
    dispatch: Dispatch
    bias: bool
    router_bias: bool
    shared: DenseFeedForward | None
    shared_gate: bool
    latent: int | None = None
    """Channels in which tokens travel and are multiplied; None: all channels."""
    kernel_each: bool = False
    """Whether products are GEMMs of their own, one for each local expert."""
    start: int = 0
    """Additional picoseconds of each kernel of an expert, casts included."""

    name = "ffn"
    output_bias = False

    @property
    def experts(self) -> int:
        """Number of routed experts."""
        return self.dispatch.experts

    @property
    def _projections(self) -> int:
        """Number of matrices side by side in an expert's first product: up, and the gate if there is one."""
        return 2 if self.activation in GATED else 1

    @property
    def _width(self) -> int:
        """Number of channels that routed experts read."""
        return self.latent or self.hidden

    @property
    def _expert(self) -> int:
        """Number of weights of one routed expert."""
        return self._width * self.inner * (self._projections + 1)

    @property
    def _biases(self) -> int:
        """Number of biases of one routed expert."""
        return (self.inner * self._projections + self._width) * self.bias

    @property
    def _latent(self) -> int:
        """Number of weights of the projections to latent channels and back."""
        return 2 * self.hidden * (self.latent or 0)

    @property
    def _router(self) -> int:
        return self.experts * (self.hidden + self.router_bias)

    @property
    def parameters(self) -> Parameters:
        """The router, all routed experts, the shared ones and their gate."""
        return Parameters(
            matrices=self.shared.parameters.matrices if self.shared else 0,
            whole_vectors=self._router + self._latent + self.hidden * self.shared_gate,
            experts=self.experts * (self._expert + self._biases),
        )

    def flops(self, sequence: int) -> int:
        """Return two for each weight that a token meets."""
        shared = self.shared.flops(sequence) if self.shared else 0
        return 2 * (self.experts * self.hidden + self._latent + self.dispatch.topk * self._expert) + shared

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes cannot spread or split the experts."""
        etp = split.expert_degree
        refused = self.dispatch.refusal(split.ep, etp)
        if refused:
            return refused
        if self.inner % etp:
            return f"expert hidden {self.inner} is not divisible by etp {etp}"
        if split.tp > 1 and not split.sequence_parallel and split.ep * etp != split.tp:
            return (
                f"tp {split.tp} without sequence_parallel holds the same tokens on all its ranks, over which "
                f"experts must be spread: ep {split.ep} · etp {etp} must be {split.tp}"
            )
        return self.shared.refusal(split) if self.shared else None

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append router, shared experts, the dispatch to the routed ones, these, and the return."""
        dispatch = self.dispatch
        aside, spread = self._runs_aside(shard), dispatch.spread(shard)
        joins = self._shared_aside(operations, shard) if aside and not spread else ()
        chosen = self._choose(operations, shard)
        if self.shared and not aside and not self._beside(shard):
            self.shared.up(operations, shard, saved=0)
            self._shared_down(operations, shard, self.shared)
        if self.latent:
            column_forward(operations, _alone(shard), self._to_latent(shard), saved=0)
            chosen = operations.last
        first, second = self._shared_forward(operations, shard, chosen)
        dispatch.forth(operations, shard, first)
        joins = self._shared_aside(operations, shard) if aside and spread else joins
        self._products(operations, shard)
        if spread:
            operations.go_on_after(*operations.waits, *joins)
        dispatch.back(operations, shard, second)
        operations.go_on_after(*operations.waits, *joins)
        if not dispatch.travels(shard):
            reduce_output(operations, shard, self.name, shard.tokens * self._width)
        if self.latent:
            saved = shard.activation_bytes(dispatch.tokens(shard) * self.latent)
            column_forward(operations, _alone(shard), self._from_latent(shard), saved=saved)

    def _choose(self, operations: OperatorList, shard: Shard) -> int:
        """Append router, gate and the choice of experts; return the position of this."""
        rows = self.dispatch.tokens(shard)
        stream = shard.activation_bytes(rows * self.hidden)
        column_forward(operations, _alone(shard), self._routing(shard), saved=stream)
        gate = shard.vector("moe_gate", rows, self.experts)
        operations.kernel("ffn.gate", gate, saved=4 * rows * self.experts)
        return operations.kernel("ffn.topk", shard.vector("moe_topk", rows, self.experts))

    def _runs_aside(self, shard: Shard) -> bool:
        """Return whether shared experts run on the second stream of kernels."""
        dispatch = self.dispatch
        once = dispatch.spread(shard) and dispatch.routing.sends_once
        return self.shared is not None and shard.shared_aside and not once and not self._beside(shard)

    def _shared_aside(self, operations: OperatorList, shard: Shard) -> tuple[int, ...]:
        """Append shared experts on the second stream, beside what follows; return what waits for them."""
        assert self.shared is not None
        begins = operations.waits
        operations.aside = True
        self.shared.up(operations, shard, saved=0)
        self._shared_down(operations, shard, self.shared)
        operations.aside = False
        ends = operations.waits
        operations.go_on_after(*begins)
        return ends

    def _beside(self, shard: Shard) -> bool:
        """Return whether shared experts compute while tokens travel."""
        return self.dispatch.routing.overlap_shared and shard.ep * shard.etp > 1

    def _shared_forward(
        self, operations: OperatorList, shard: Shard, chosen: int
    ) -> tuple[Overlapped | None, Overlapped | None]:
        """Return what computes while copies travel, and what while results do: halves of shared experts."""
        shared, activated = self.shared, [chosen]
        if shared is None or not self._beside(shard):
            return None, None

        def up() -> None:
            shared.up(operations, shard, saved=0)
            activated.append(operations.last)

        def down() -> None:
            operations.go_on_after(activated[-1])
            self._shared_down(operations, shard, shared)

        return Overlapped(chosen, up), Overlapped(chosen, down)

    def _shared_down(self, operations: OperatorList, shard: Shard, shared: DenseFeedForward) -> None:
        """Append the second half of the shared experts, its sum over tp, and their gate."""
        shared.down(operations, shard)
        if self.dispatch.travels(shard):
            reduce_output(operations, shard, shared.name, shard.tokens * self.hidden)
        self._scale_shared(operations, shard)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end; gradients of copies travel as their results did."""
        dispatch, shared = self.dispatch, self.shared
        ready, sums = operations.last, list[int]()
        self._from_latent_backward(operations, shard)
        beside = shared is not None and self._beside(shard)

        def down() -> None:
            assert shared is not None
            self._scale_shared(operations, shard, backward=True)
            shared.down_backward(operations, shard)
            sums.append(operations.last)

        def up() -> None:
            assert shared is not None
            operations.go_on_after(sums[-1])
            sums[-1] = shared.up_backward(operations, shard)

        dispatch.back(operations, shard, Overlapped(ready, down) if beside else None, backward=True)
        self._product_gradients(operations, shard)
        dispatch.forth(operations, shard, Overlapped(ready, up) if beside else None, backward=True)
        if not dispatch.travels(shard) and shard.tp > 1:
            size = shard.message("tp.reduce_gradient", shard.tokens * self._width)
            operations.message("ffn.reduce_gradient", "tp.reduce_gradient", size)
        routed = self._to_latent_backward(operations, shard)
        if shared is not None and not beside:
            down()
            sums[-1] = shared.up_backward(operations, shard)
        rows = dispatch.tokens(shard)
        gate = shard.vector("softmax", rows, self.experts, backward=True)
        operations.kernel("ffn.gate", gate, after=routed)
        parts = [routed, *sums, column_backward(operations, _alone(shard), self._routing(shard))]
        return self._sum_of(operations, shard, parts)

    def _sum_of(self, operations: OperatorList, shard: Shard, parts: Sequence[int]) -> int:
        """Append the sum of several gradients of one input; return the position of the result."""
        rows, ready = self.dispatch.tokens(shard), parts[0]
        add = shard.vector("residual_add", rows, self.hidden)
        output = shard.activation_bytes(rows * self.hidden)
        for number, part in enumerate(parts[1:]):
            name = "ffn.input_gradient.add" + f".{number}" * (number > 0)
            ready = operations.kernel(name, add, after=(ready, part), output=output)
        return ready

    def _routing(self, shard: Shard) -> Linear:
        return Linear(
            "ffn.router",
            self.experts,
            self.hidden,
            self.router_bias,
            self.dispatch.tokens(shard),
            narrow=False,
        )

    def _to_latent(self, shard: Shard) -> Linear:
        return Linear("ffn.to_latent", self._width, self.hidden, False, self.dispatch.tokens(shard))

    def _from_latent(self, shard: Shard) -> Linear:
        return Linear("ffn.from_latent", self.hidden, self._width, False, self.dispatch.tokens(shard))

    def _from_latent_backward(self, operations: OperatorList, shard: Shard) -> None:
        if self.latent:
            operations.go_on_after(column_backward(operations, _alone(shard), self._from_latent(shard)))

    def _to_latent_backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the backward of the latent projection, if there is one; return the tokens' gradient."""
        if not self.latent:
            return operations.last
        return column_backward(operations, _alone(shard), self._to_latent(shard))

    def _widths(self, shard: Shard) -> tuple[int, int]:
        """Return the columns of the first product and the inner ones of the second."""
        inner = self.inner // shard.etp
        return inner * self._projections, inner

    def _products(self, operations: OperatorList, shard: Shard) -> None:
        rows, (wide, inner) = self.dispatch.rows(shard), self._widths(shard)
        total, local = sum(rows), len(rows)
        self._start(operations, shard, "ffn.in", products=1)
        cast(operations, shard, Linear("ffn.in", wide, self._width, False, total), total)
        operations.kernel(
            "ffn.in",
            self._product(shard, rows, wide, self._width),
            saved=shard.activation_bytes(total * self._width),
            output=shard.activation_bytes(total * wide),
            weights=local * wide * self._width,
        )
        kinds = fused((self.activation,), shard.fusion)
        middle = shard.activation_bytes(total * inner)
        for place, kind in enumerate(kinds):
            saved = shard.activation_bytes(total * wide) if place == 0 else middle
            operations.kernel(f"ffn.{kind}", shard.vector(kind, total, inner), saved=saved, output=middle)
        self._start(operations, shard, "ffn.out", products=1)
        cast(operations, shard, Linear("ffn.out", self._width, inner, False, total), total)
        operations.kernel(
            "ffn.out",
            self._product(shard, rows, self._width, inner),
            saved=middle,
            output=shard.activation_bytes(total * self._width),
            weights=local * self._width * inner,
        )

    def _product_gradients(self, operations: OperatorList, shard: Shard) -> None:
        rows, (wide, inner) = self.dispatch.rows(shard), self._widths(shard)
        total = sum(rows)
        self._gradients_of(operations, shard, "ffn.out", rows, (self._width, inner))
        for kind in reversed(fused((self.activation,), shard.fusion)):
            size = shard.activation_bytes(total * wide)
            operations.kernel(f"ffn.{kind}", shard.vector(kind, total, inner, backward=True), output=size)
        self._gradients_of(operations, shard, "ffn.in", rows, (wide, self._width))

    def _gradients_of(
        self,
        operations: OperatorList,
        shard: Shard,
        name: str,
        rows: tuple[int, ...],
        shape: tuple[int, int],
    ) -> None:
        """Append the gradients of a product of `shape` (columns, inner), and of its biases."""
        columns, inner = shape
        self._start(operations, shard, name, products=2)
        cast(operations, shard, Linear(name, columns, inner, False, sum(rows)), sum(rows), gradient=True)
        incoming, local = operations.last, len(rows)
        each = max(1, ceil_divide(sum(rows), local))
        weights = Gemm(columns, inner, each, batch=local, dtype=shard.gemm_dtype)
        if self.bias:
            reduction = shard.vector("bias_gradient", sum(rows), columns)
            operations.kernel(f"{name}.bias_gradient", reduction, after=incoming, deferrable=True)
        append_weight_gradient(
            operations,
            shard,
            f"{name}.weight_gradient",
            weights,
            after=incoming,
            parameters=local * columns * (inner + self.bias),
            expert=True,
        )
        output = shard.activation_bytes(sum(rows) * inner)
        operations.kernel(
            f"{name}.input_gradient",
            self._product(shard, rows, inner, columns),
            after=incoming,
            output=output,
        )

    def _start(self, operations: OperatorList, shard: Shard, name: str, *, products: int) -> None:
        """Append the starts of the kernels of one matrix' products, and of the cast of what they multiply."""
        if self.start and not shard.serving:
            casts = 0 if shard.recipe is None else LAUNCHES[shard.recipe]
            local = self.dispatch.physical // shard.ep
            operations.kernel(f"{name}.starts", Starts(local * (products + casts), self.start))

    def _product(self, shard: Shard, rows: tuple[int, ...], columns: int, inner: int) -> GroupedGemm | Gemm:
        """Return the product of each expert's rows with its matrix; of GEMMs as many mean ones."""
        weights = shard.stored_dtype
        if not self.kernel_each or not any(rows):
            return GroupedGemm(rows, columns, inner, shard.gemm_dtype, weights)
        mean = ceil_divide(sum(rows), len(rows))
        return Gemm(
            mean, columns, inner, batch=len(rows), dtype=shard.gemm_dtype, weight_dtype=weights,
            out_dtype=shard.precision.activations,
        )  # fmt: skip

    def _scale_shared(self, operations: OperatorList, shard: Shard, *, backward: bool = False) -> None:
        """Append the shared experts' gate, if they have one."""
        if self.shared_gate:
            kernel = shard.vector("multiply", self.dispatch.tokens(shard), self.hidden, backward=backward)
            operations.kernel("ffn.shared.gate", kernel, parameters=self.hidden * backward)


def _alone(shard: Shard) -> Shard:
    """Return the shard as the router sees it, whole on every rank."""
    return replace(shard, tp=1, sequence_parallel=False)
