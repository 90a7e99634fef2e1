"""What a config.json says about a model, counted on the meta device: no weights are read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelInfo:
    architecture: str
    parameters: int
    active_parameters: int  # those a token goes through
    experts: int  # 0: dense
    experts_per_token: int
    dtype: str
    config: dict[str, Any]
    aux_loss_in_config: bool
    aux_loss_coefficient: float

    @property
    def native(self) -> bool:
        """Whether the engine has a file for this architecture; False without the engine."""
        from automoe import library

        try:
            return self.architecture in library.native_architectures()
        except ImportError:
            return False


def model_info(folder: Path) -> ModelInfo:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    experts = next((getattr(text, key) for key in EXPERT_KEYS if getattr(text, key, None)), 0)
    per_token = getattr(text, "num_experts_per_tok", None) or 0
    total = idle = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if experts and ".experts." in name:
            idle += parameter.numel() * (experts - per_token) // experts
    names = config.architectures or [type(model).__name__]
    dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return ModelInfo(
        names[0],
        total,
        total - idle,
        int(experts),
        int(per_token),
        dtype,
        config.to_dict(),
        bool(getattr(text, "output_router_logits", False)),
        float(getattr(text, "router_aux_loss_coef", 0.0) or 0.0),
    )
