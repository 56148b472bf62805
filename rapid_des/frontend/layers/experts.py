"""A mixture of experts: a router, routed experts that ep spreads and etp splits, shared experts beside them.

Where every rank has tokens of its own (tp 1, or sequence parallelism) copies of tokens travel to the ranks of
their experts and back, as in Megatron Core's all-to-all dispatcher; ranks that share experts (etp) gather
what came in and reduce what goes out. Where the ranks of a tp group hold the same tokens, as in serving, each
computes what its experts add, and one sum over tp follows. Copies spread evenly over the experts. Their
biases are added in the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rapid_des.device.operators import Gemm, GroupedGemm
from rapid_des.device.vector import fused
from rapid_des.errors import ConfigError
from rapid_des.frontend.layers.feed_forward import GATED, DenseFeedForward
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.operations import (
    Linear,
    OperationList,
    cast,
    column_backward,
    column_forward,
    reduce_output,
)
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.spec import ExpertsSpec, ModelSpec, ParallelismSpec
from rapid_des.units import ceil_divide


@dataclass(frozen=True)
class Experts:
    """Routed experts, `topk` of `experts` for each token, and the shared ones as one dense feed-forward."""

    hidden: int
    experts: int
    topk: int
    inner: int
    activation: str
    capacity: float | None
    bias: bool
    router_bias: bool
    shared: DenseFeedForward | None
    shared_gate: bool

    name = "ffn"
    output_bias = False

    @property
    def _projections(self) -> int:
        """Matrices side by side in an expert's first one: up, and the gate if there is one."""
        return 2 if self.activation in GATED else 1

    @property
    def _expert(self) -> int:
        """Weights of one routed expert."""
        return self.hidden * self.inner * (self._projections + 1)

    @property
    def _biases(self) -> int:
        """Biases of one routed expert."""
        return (self.inner * self._projections + self.hidden) * self.bias

    @property
    def _router(self) -> int:
        return self.experts * (self.hidden + self.router_bias)

    @property
    def parameters(self) -> Parameters:
        """The router, all routed experts, the shared ones and their gate."""
        return Parameters(
            matrices=self.shared.parameters.matrices if self.shared else 0,
            whole_vectors=self._router + self.hidden * self.shared_gate,
            experts=self.experts
            * (self._expert + self.bias * (self.inner * self._projections + self.hidden)),
        )

    def flops(self, sequence: int) -> int:
        """Return two for each weight that a token meets."""
        shared = self.shared.flops(sequence) if self.shared else 0
        return 2 * (self.experts * self.hidden + self.topk * self._expert) + shared

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes can not spread or split the experts."""
        etp = split.tp if split.etp is None else split.etp
        if self.experts % split.ep:
            return f"experts {self.experts} does not divide by ep {split.ep}"
        if self.inner % etp:
            return f"expert hidden {self.inner} does not divide by etp {etp}"
        if split.tp > 1 and not split.sequence_parallel and split.ep * etp != split.tp:
            return (
                f"tp {split.tp} without sequence_parallel holds the same tokens on all its ranks, over which "
                f"experts must be spread: ep {split.ep} · etp {etp} must be {split.tp}"
            )
        return self.shared.refusal(split) if self.shared else None

    def forward(self, operations: OperationList, shard: Shard) -> None:
        """Append router, shared experts, the way to the routed ones, these, and the way back."""
        stream = shard.activation_bytes(self._tokens(shard) * self.hidden)
        column_forward(operations, _alone(shard), self._routing(shard), saved=stream)
        rows = self._tokens(shard)
        operations.kernel(
            "ffn.gate", shard.vector("moe_gate", rows, self.experts), saved=4 * rows * self.experts
        )
        operations.kernel("ffn.topk", shard.vector("moe_topk", rows, self.experts))
        if self.shared:
            self.shared.products(operations, shard, saved=0)
            if self._travels(shard):
                reduce_output(operations, shard, self.shared.name, shard.tokens * self.hidden)
            self._scale_shared(operations, shard)
        self._dispatch(operations, shard)
        self._products(operations, shard)
        self._return(operations, shard)
        if not self._travels(shard):
            reduce_output(operations, shard, self.name, shard.tokens * self.hidden)

    def backward(self, operations: OperationList, shard: Shard) -> int:
        """Append the same from the end; gradients of copies travel as their results did."""
        self._return(operations, shard, backward=True)
        self._product_gradients(operations, shard)
        self._dispatch(operations, shard, backward=True)
        if not self._travels(shard) and shard.tp > 1:
            size = shard.message("tp.reduce_gradient", shard.tokens * self.hidden)
            operations.message("ffn.reduce_gradient", "tp.reduce_gradient", size)
        routed = operations.last
        parts = [routed]
        if self.shared:
            self._scale_shared(operations, shard, backward=True)
            parts.append(self.shared.backward(operations, shard))
        rows = self._tokens(shard)
        gate = shard.vector("softmax", rows, self.experts, backward=True)
        operations.kernel("ffn.gate", gate, after=routed)
        parts.append(column_backward(operations, _alone(shard), self._routing(shard)))
        add = shard.vector("residual_add", rows, self.hidden)
        output = shard.activation_bytes(rows * self.hidden)
        return operations.kernel("ffn.input_gradient.add", add, after=tuple(parts), output=output)

    @staticmethod
    def _travels(shard: Shard) -> bool:
        """Tell whether ranks have tokens of their own, whose copies go to the ranks of their experts."""
        return shard.tp == 1 or shard.sequence_parallel

    def _tokens(self, shard: Shard) -> int:
        """Return the tokens that this rank routes."""
        return shard.norm_tokens if self._travels(shard) else shard.tokens

    def _copies(self, shard: Shard) -> int:
        """Return the copies of tokens that this rank's routed experts are meant for, over all its peers'."""
        tokens = self._tokens(shard)
        copies = tokens * self.topk
        if self.capacity is not None:
            copies = self.experts * math.ceil(self.capacity * copies / self.experts)
        return copies

    def _rows(self, shard: Shard) -> tuple[int, ...]:
        """Return the rows of each local expert; of few copies some experts get none."""
        copies = self._copies(shard)
        copies = copies * shard.etp if self._travels(shard) else ceil_divide(copies, shard.ep)
        local = self.experts // shard.ep
        even, over = divmod(copies, local)
        return (even + 1,) * over + (even,) * (local - over)

    def _routing(self, shard: Shard) -> Linear:
        return Linear(
            "ffn.router", self.experts, self.hidden, self.router_bias, self._tokens(shard), narrow=False
        )

    def _dispatch(self, operations: OperationList, shard: Shard, *, backward: bool = False) -> None:
        """Append what brings copies of tokens to their experts, or the gradients of these back."""
        steps = [self._permute, self._exchange, self._sort, self._gather]
        for step in steps[::-1] if backward else steps:
            step(operations, shard, "dispatch", backward=backward)

    def _return(self, operations: OperationList, shard: Shard, *, backward: bool = False) -> None:
        """Append what brings experts' results to their tokens, or the gradients of these to the experts."""
        steps = [self._gather, self._sort, self._exchange, self._permute]
        for step in steps[::-1] if backward else steps:
            step(operations, shard, "combine", backward=backward)

    def _permute(self, operations: OperationList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append the copies in the order of their experts, or their weighted sum in the order of tokens."""
        kind = "moe_permute" if role == "dispatch" else "moe_unpermute"
        copies = self._copies(shard) if self._travels(shard) else sum(self._rows(shard))
        size = shard.activation_bytes(copies * self.hidden)
        saved = size if role == "combine" and not backward else 0
        output = size if (role == "dispatch") != backward else shard.activation_bytes(
            self._tokens(shard) * self.hidden
        )  # fmt: skip
        kernel = shard.vector(kind, copies, self.hidden, backward=backward)
        operations.kernel(f"ffn.{kind.removeprefix('moe_')}", kernel, saved=saved, output=output)

    def _exchange(self, operations: OperationList, shard: Shard, role: str, *, backward: bool) -> None:
        if shard.ep > 1 and self._travels(shard):
            elements = self._copies(shard) * self.hidden
            name = f"ffn.{role}" + "_gradient" * backward
            size = shard.message(f"ep.{role}", elements)
            operations.message(name, f"ep.{role}", size, output=shard.activation_bytes(elements))

    def _sort(self, operations: OperationList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append what orders copies from many ranks by local expert, or back."""
        if shard.ep > 1 and self._travels(shard) and self.experts > shard.ep:
            copies = self._copies(shard)
            kernel = shard.vector("moe_permute", copies, self.hidden, backward=backward)
            output = shard.activation_bytes(copies * self.hidden)
            operations.kernel(f"ffn.{role}.sort", kernel, output=output)

    def _gather(self, operations: OperationList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append what ranks that share experts tell each other: all copies, and the sum of their results."""
        if shard.etp > 1 and self._travels(shard):
            gathers = (role == "dispatch") != backward
            what = "etp.gather" if gathers else "etp.scatter"
            elements = self._copies(shard) * shard.etp * self.hidden
            name = f"ffn.{role}.{'gather' if gathers else 'scatter'}"
            operations.message(
                name, what, shard.message(what, elements), output=shard.activation_bytes(elements)
            )

    def _widths(self, shard: Shard) -> tuple[int, int]:
        """Return the columns of the first product and the inner ones of the second."""
        inner = self.inner // shard.etp
        return inner * self._projections, inner

    def _products(self, operations: OperationList, shard: Shard) -> None:
        rows, (wide, inner) = self._rows(shard), self._widths(shard)
        total, local = sum(rows), len(rows)
        cast(operations, shard, Linear("ffn.in", wide, self.hidden, False, total), total)
        operations.kernel(
            "ffn.in",
            GroupedGemm(rows, wide, self.hidden, shard.gemm_dtype),
            saved=shard.activation_bytes(total * self.hidden),
            output=shard.activation_bytes(total * wide),
            weights=local * wide * self.hidden,
        )
        kinds = fused((self.activation,), shard.fusion)
        middle = shard.activation_bytes(total * inner)
        for place, kind in enumerate(kinds):
            kept = shard.activation_bytes(total * wide) if place == 0 else middle
            operations.kernel(f"ffn.{kind}", shard.vector(kind, total, inner), saved=kept, output=middle)
        cast(operations, shard, Linear("ffn.out", self.hidden, inner, False, total), total)
        operations.kernel(
            "ffn.out",
            GroupedGemm(rows, self.hidden, inner, shard.gemm_dtype),
            saved=middle,
            output=shard.activation_bytes(total * self.hidden),
            weights=local * self.hidden * inner,
        )

    def _product_gradients(self, operations: OperationList, shard: Shard) -> None:
        rows, (wide, inner) = self._rows(shard), self._widths(shard)
        total = sum(rows)
        self._gradients_of(operations, shard, "ffn.out", rows, (self.hidden, inner))
        for kind in reversed(fused((self.activation,), shard.fusion)):
            size = shard.activation_bytes(total * wide)
            operations.kernel(f"ffn.{kind}", shard.vector(kind, total, inner, backward=True), output=size)
        self._gradients_of(operations, shard, "ffn.in", rows, (wide, self.hidden))

    def _gradients_of(
        self,
        operations: OperationList,
        shard: Shard,
        name: str,
        rows: tuple[int, ...],
        shape: tuple[int, int],
    ) -> None:
        """Append the gradients of a product of `shape` (columns, inner), and of its biases."""
        columns, inner = shape
        cast(operations, shard, Linear(name, columns, inner, False, sum(rows)), sum(rows), gradient=True)
        incoming, local = operations.last, len(rows)
        weights = Gemm(
            columns, inner, max(1, ceil_divide(sum(rows), local)), batch=local, dtype=shard.gemm_dtype,
            out_dtype=shard.precision.gradients, accumulate=True,
        )  # fmt: skip
        if self.bias:
            reduction = shard.vector("bias_gradient", sum(rows), columns)
            operations.kernel(f"{name}.bias_gradient", reduction, after=incoming)
        operations.kernel(
            f"{name}.weight_gradient",
            weights,
            after=incoming,
            parameters=local * columns * (inner + self.bias),
            expert=True,
        )
        output = shard.activation_bytes(sum(rows) * inner)
        operations.kernel(
            f"{name}.input_gradient", GroupedGemm(rows, inner, columns, shard.gemm_dtype), after=incoming,
            output=output,
        )  # fmt: skip

    def _scale_shared(self, operations: OperationList, shard: Shard, *, backward: bool = False) -> None:
        """Append the shared experts' gate, if they have one."""
        if self.shared_gate:
            kernel = shard.vector("multiply", self._tokens(shard), self.hidden, backward=backward)
            operations.kernel("ffn.shared.gate", kernel, parameters=self.hidden * backward)


def _alone(shard: Shard) -> Shard:
    """Return the shard as the router sees it, whole on every rank."""
    return replace(shard, tp=1, sequence_parallel=False)


def mixture_of_experts(spec: ExpertsSpec, model: ModelSpec, file: str) -> Experts:
    """Return the mixture of experts of a model file."""
    if spec.topk > spec.experts:
        problem = f"{spec.topk}; allowed: up to the {spec.experts} experts"
        raise ConfigError(problem, file=file, key="feed_forward.topk")
    if spec.shared_gate and not spec.shared_hidden:
        raise ConfigError(
            "there are no shared experts (shared_hidden 0)", file=file, key="feed_forward.shared_gate"
        )
    shared = DenseFeedForward(
        model.hidden, spec.shared_hidden, spec.activation, bias=False, name="ffn.shared"
    )
    return Experts(
        hidden=model.hidden,
        experts=spec.experts,
        topk=spec.topk,
        inner=spec.hidden,
        activation=spec.activation,
        capacity=spec.capacity,
        bias=spec.bias,
        router_bias=spec.router_bias,
        shared=shared if spec.shared_hidden else None,
        shared_gate=spec.shared_gate,
    )
