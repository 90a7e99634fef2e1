"""AdamW in one kernel a parameter, for parameters of any float dtype."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from automoe import library


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW's update and arguments (Loshchilov & Hutter 2019, arXiv 1711.05101), in fp32.

    bf16 parameters learn at any learning rate: by default parameter and moments are bf16 and rounded up or
    down at random, right on average (8 bytes a parameter with its gradient); `master_weights=True` keeps
    fp32 moments and an fp32 copy instead (16 bytes). fp32 parameters have fp32 moments. fp16 needs master
    weights. `seed`: of the rounding; the same seed gives the same bits.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        master_weights: bool = False,
        seed: int = 0,
    ) -> None:
        for name, value, good in (
            ("lr", lr, lr >= 0),
            ("betas", betas, all(0 <= beta < 1 for beta in betas)),
            ("eps", eps, eps > 0),
            ("weight_decay", weight_decay, weight_decay >= 0),
        ):
            if not good:
                raise ValueError(f"[adamw] {name} = {value!r} is out of range")
        self._update = library.ops().adamw_
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "master_weights": master_weights, "seed": seed})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        index = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                index += 1
                if parameter.grad is not None:
                    self._step(parameter, group, index)
        return loss

    def _step(self, parameter: torch.Tensor, group: dict[str, Any], index: int) -> None:
        state = self.state[parameter] or self._new_state(parameter, group)
        state["step"] += 1
        master = parameter if parameter.dtype == torch.float32 else state.get("master")
        rate, (beta1, beta2) = group["lr"], group["betas"]
        self._update(
            parameter,
            master,
            state["exp_avg"],
            state["exp_avg_sq"],
            parameter.grad.contiguous(),
            float(rate),
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            state["step"],
            (group["seed"] * 1_000_003 + state["step"]) * 1_000_003 + index,
        )

    def _new_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, Any]:
        if not parameter.is_contiguous():
            raise ValueError(f"[adamw] parameters must be contiguous, got strides {parameter.stride()}")
        if parameter.dtype == torch.float16 and not group["master_weights"]:
            raise ValueError("[adamw] float16 parameters need master_weights=True")
        state = self.state[parameter]
        state["step"] = 0
        wide = group["master_weights"] or parameter.dtype == torch.float32
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(parameter, dtype=torch.float32 if wide else None)
        if wide and parameter.dtype != torch.float32:
            state["master"] = parameter.detach().float()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but fp32 state of half-precision parameters stays fp32."""
        super().load_state_dict(state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for i, parameter in zip(ids, parameters, strict=True):
            for name, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[parameter][name] = value.to(parameter.device, copy=True)
