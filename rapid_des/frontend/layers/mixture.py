"""A mixture of experts as a model file states it."""

from __future__ import annotations

from rapid_des.errors import ConfigError
from rapid_des.frontend.layer_spec import ExpertsSpec
from rapid_des.frontend.layers.dispatch import Dispatch
from rapid_des.frontend.layers.experts import Experts
from rapid_des.frontend.layers.transformer import DenseFeedForward
from rapid_des.frontend.model_spec import ModelSpec


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
        inner=spec.hidden,
        activation=spec.activation,
        dispatch=Dispatch(spec.latent or model.hidden, spec.experts, spec.topk, spec.capacity),
        bias=spec.bias,
        router_bias=spec.router_bias,
        shared=shared if spec.shared_hidden else None,
        shared_gate=spec.shared_gate,
        latent=spec.latent,
    )
