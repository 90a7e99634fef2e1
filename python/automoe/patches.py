"""The engine's ops inside Transformers' own forward: experts through its registry, norms and gated MLPs by
class. They serve every architecture, and native ones wherever a call is not covered."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.integrations.moe import (
    ALL_EXPERTS_FUNCTIONS,
    _default_apply_gate,
    grouped_mm_experts_forward,
)

from automoe import library
from automoe.disguise import disguised, undisguised

EXPERTS = "automoe"  # the name of our experts implementation

# Families whose norm is w * round(x / rms(x)), and whose MLP is down(silu(gate(x)) * up(x)).
RMS_NORM_FAMILIES = [
    "Llama",
    "Mistral",
    "Mixtral",
    "Ministral",
    "Qwen2",
    "Qwen2Moe",
    "Qwen3",
    "Qwen3Moe",
    "DeepseekV2",
    "DeepseekV3",
    "Glm4Moe",
    "Granite",
    "GraniteMoe",
    "Olmoe",
    "Phi3",
    "SmolLM3",
    "Dots1",
    "Ernie4_5",
    "Ernie4_5_Moe",
    "MiniMaxM2",
    "HunYuanMoEV1",
    "SeedOss",
]
GATED_MLP_FAMILIES = [
    "Llama",
    "Mistral",
    "Ministral",
    "Qwen2",
    "Qwen2Moe",
    "Qwen3",
    "Qwen3Moe",
    "DeepseekV2",
    "DeepseekV3",
    "Glm4Moe",
    "Granite",
    "Olmo",
    "Olmo2",
    "SmolLM3",
    "Dots1",
    "Ernie4_5",
    "Ernie4_5_Moe",
    "HunYuanMoEV1",
]
_NORMS = frozenset(f"{family}RMSNorm" for family in RMS_NORM_FAMILIES)
_MLPS = frozenset(f"{family}MLP" for family in GATED_MLP_FAMILIES)
_SILU, _RELU_SQUARED = type(ACT2FN["silu"]), type(ACT2FN["relu2"])
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def usable(*tensors: torch.Tensor) -> bool:
    """Whether the ops take these tensors as they are: eager mode, plain, one float dtype and device."""
    first = tensors[0]
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and first.dtype in _DTYPES
        and first.device.type in ("cpu", "cuda")
        and all(type(x) in (torch.Tensor, nn.Parameter) for x in tensors)
        and all(x.dtype == first.dtype and x.device == first.device for x in tensors)
    )


class RmsNorm:
    _round_normalised = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not usable(hidden_states, self.weight):
            return super().forward(hidden_states)
        return library.ops().rms_norm(
            hidden_states, self.weight, self.variance_epsilon, self._round_normalised
        )


class RmsNormRoundedOnce(RmsNorm):
    """round(w * x / rms(x)), as in GPT-OSS."""

    _round_normalised = False


def _silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return library.ops().silu_mul(gate, up) if usable(gate, up) else nn.functional.silu(gate) * up


class GatedMlp:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not usable(x):
            return super().forward(x)
        return self.down_proj(_silu_mul(self.gate_proj(x), self.up_proj(x)))


def _activation(experts: nn.Module) -> dict[str, str | float] | None:
    """What stands between the two products, as arguments of our op; None for what it does not know."""
    if undisguised(type(experts)).__name__ == "GptOssExperts":
        return {"activation": "clamped_swiglu", "alpha": experts.alpha, "limit": experts.limit}
    if not experts.has_gate:
        return {"activation": "relu_squared"} if isinstance(experts.act_fn, _RELU_SQUARED) else None
    plain = experts.is_concatenated and type(experts)._apply_gate is _default_apply_gate
    return {"activation": "silu_mul"} if plain and isinstance(experts.act_fn, _SILU) else None


def experts_forward(
    self: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Transformers' experts interface: [T, H], [T, K], [T, K] -> [T, H]."""
    activation = None if getattr(self, "has_post_expert_norm", False) else _activation(self)
    up = "gate_up_proj" if self.has_gate else "up_proj"
    matrices = [getattr(self, up), self.down_proj]
    biases = [getattr(self, f"{up}_bias"), self.down_proj_bias] if self.has_bias else []
    if activation is None or not usable(hidden_states, *matrices, *biases):
        return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    if self.is_transposed:
        matrices = [matrix.transpose(1, 2) for matrix in matrices]
    return library.ops().experts(hidden_states, top_k_index, top_k_weights, *matrices, *biases, **activation)


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, experts_forward)


def _mixin_for(module: nn.Module) -> type | None:
    cls = type(module)
    if not cls.__module__.startswith("transformers.models."):
        return None
    if cls.__name__ in _NORMS:
        return RmsNorm
    if cls.__name__ == "GptOssRMSNorm":
        return RmsNormRoundedOnce
    if cls.__name__ in _MLPS and isinstance(module.act_fn, _SILU):
        return GatedMlp
    return None


def patch(model: nn.Module) -> None:
    """Gives the norms and MLPs of `model` our forward. Class names, parameters and state stay."""
    for module in model.modules():
        if mixin := _mixin_for(module):
            module.__class__ = disguised(type(module), mixin)
