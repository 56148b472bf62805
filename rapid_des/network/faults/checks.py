"""What no fault may say although every key alone is well-formed."""

from __future__ import annotations

from rapid_des.errors import ConfigError
from rapid_des.network.faults.specs import GPU_EFFECTS, LINK_EFFECTS, TARGETS, Fault


def check_fault(fault: Fault, *, file: str, key: str) -> None:
    """Refuse what the types alone let pass: `ConfigError` names the contradiction."""
    problem = (
        _target_problem(fault) or _effect_problem(fault) or _time_problem(fault) or _policy_problem(fault)
    )
    if problem:
        raise ConfigError(problem, file=file, key=key)


def _stated(fault: Fault, names: tuple[str, ...]) -> list[str]:
    values = {name: getattr(fault, name) for name in names}
    return [name for name, value in values.items() if value is not None and value is not False]


def _target_problem(fault: Fault) -> str:
    targets = _stated(fault, TARGETS)
    if len(targets) != 1:
        return f"needs exactly one of {', '.join(TARGETS)}; it has {', '.join(targets) or 'none'}"
    if fault.random is not None and (fault.count is None or fault.seed is None):
        return "random: needs count and seed"
    if fault.count is not None and fault.random is None:
        return "count: only with random"
    if fault.where is not None and fault.random is None and fault.all is None:
        return "where: only with all or random"
    if fault.seed is not None and fault.random is None and fault.jitter is None:
        return "seed: only with random or jitter"
    return ""


def _effect_problem(fault: Fault) -> str:
    effects = _stated(fault, LINK_EFFECTS + GPU_EFFECTS)
    if not effects:
        return f"has no effect; allowed: {', '.join(LINK_EFFECTS + GPU_EFFECTS)}"
    others = [name for name in effects if name != "down"]
    if fault.down and others:
        return f"down: leaves nothing for {others[0]} to change"
    on_gpu = [name for name in GPU_EFFECTS if name in effects]
    hit = {fault.target, fault.all, fault.random}
    if on_gpu and hit.isdisjoint({"gpu", "node", "gpus", "nodes"}):
        return f"{on_gpu[0]}: only GPUs and nodes have it"
    return _loss_problem(fault) or _jitter_problem(fault)


def _loss_problem(fault: Fault) -> str:
    lossy = _stated(fault, ("packet_loss", "bit_error_rate"))
    if len(lossy) > 1:
        return "packet_loss and bit_error_rate: one of them"
    if not lossy:
        alone = fault.packet is not None or fault.retransmission is not None
        return "packet and retransmission: only with packet_loss or bit_error_rate" if alone else ""
    if fault.packet is None or fault.retransmission is None:
        return f"{lossy[0]}: needs packet (a size) and retransmission (selective_repeat or go_back_n)"
    if fault.packet == 0:
        return "packet: must be above 0 B"
    lost = f"bit_error_rate: {fault.bit_error_rate} loses every packet of {fault.packet}"
    return lost if fault.loss == 1 else ""


def _jitter_problem(fault: Fault) -> str:
    if (fault.jitter is None) != (fault.jitter_every is None) or fault.jitter_every == 0:
        return "jitter: needs jitter_every above 0 and the other way round"
    return "jitter: needs seed" if fault.jitter is not None and fault.seed is None else ""


def _time_problem(fault: Fault) -> str:
    for start, end in (("from_", "until"), ("from_step", "until_step"), ("from_progress", "until_progress")):
        first, last = getattr(fault, start), getattr(fault, end)
        if last is not None and last <= (first or 0):
            return f"{end}: {last} is not after {start.rstrip('_')} {first if first is not None else 0}"
    if (fault.every is None) != (fault.for_ is None):
        return "every and for: a flap needs both"
    if fault.every is not None and fault.for_ is not None and not 0 < fault.for_ < fault.every:
        return f"for: {fault.for_} is not between 0 and every {fault.every}"
    kinds = [
        any(getattr(fault, name) is not None for name in names)
        for names in (("from_", "until"), ("from_step", "until_step"), ("from_progress", "until_progress"))
    ]
    return "times, steps and progress: one kind in one fault" if sum(kinds) > 1 else ""


def _policy_problem(fault: Fault) -> str:
    if fault.policy == "wait" and fault.detection is not None:
        return "detection: only with the policies reroute and replan"
    if fault.policy == "replan" and fault.down and not fault.timed:
        return ""
    if fault.policy != "wait" and (fault.detection is None or not fault.down):
        return f"policy {fault.policy}: needs detection (a time) and down"
    return ""
