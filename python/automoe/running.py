"""From the arguments of a call to the engine, and from what it returns to Transformers' outputs."""

import functools
import json
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MoeCausalLMOutputWithPast,
    MoeModelOutputWithPast,
)

from automoe import coverage, library
from automoe.output import with_lazy_logits


def run_model(model: PreTrainedModel, call: coverage.Call) -> Any:
    """What the forward of a causal language model returns."""
    result = _run(model, call)
    head, fp32 = model.get_output_embeddings().weight, library.engine(model._automoe_config).fp32_logits
    fields: dict[str, Any] = {"loss": result.get("loss")}
    output_class = CausalLMOutputWithPast
    if coverage.has_router(model):
        output_class = MoeCausalLMOutputWithPast
        fields |= {"aux_loss": result.get("aux_loss"), "router_logits": _router_logits(result)}
    logits = _Logits(result["hidden"], head, call.logits_to_keep, fp32)
    output = with_lazy_logits(output_class, logits, **fields)
    if call.labels is None:
        output.logits  # noqa: B018 - nobody runs a model without labels for anything but these
    return _returned(model, call, output)


def run_backbone(model: PreTrainedModel, call: coverage.Call) -> Any:
    """What the forward of a model without its head returns."""
    result = _run(model, call)
    if not coverage.has_router(model):
        return _returned(model, call, BaseModelOutputWithPast(result["hidden"]))
    output = MoeModelOutputWithPast(result["hidden"], router_logits=_router_logits(result))
    return _returned(model, call, output)


def _run(model: PreTrainedModel, call: coverage.Call) -> dict[str, torch.Tensor]:
    parameters = coverage.named_parameters(model)
    engine = library.engine(_current_config(model))
    embedding = model.get_input_embeddings().weight
    router_logits = call.output_router_logits
    if router_logits is None:
        router_logits = getattr(model.config, "output_router_logits", False)
    recompute = model.automoe.recompute or ("layer" if coverage.checkpoints_layers(model) else "norms")
    with torch.autocast(embedding.device.type, enabled=False):
        return engine.forward(
            # A backbone lacks the head, which is not looked at without labels.
            [parameters.get(name, embedding) for name in engine.parameter_names],
            _tensors(call, embedding.device),
            {"logits": False, "router_logits": bool(router_logits), "routing_counts": False},
            recompute,
        )


def _tensors(call: coverage.Call, device: torch.device) -> dict[str, torch.Tensor]:
    integers = {"input_ids": call.input_ids, "position_ids": call.position_ids, "labels": call.labels}
    tensors = {name: x.to(device, torch.long) for name, x in integers.items() if x is not None}
    if call.attention_mask is not None:
        tensors["attention_mask"] = call.attention_mask.to(device)
    if call.labels is not None and call.num_items_in_batch is not None:
        tensors["num_items_in_batch"] = torch.as_tensor(call.num_items_in_batch, device=device)
    return tensors


def _current_config(model: PreTrainedModel) -> str:
    """Transformers reads the balance loss's coefficient off the model, where users change it."""
    coefficient = getattr(model, "router_aux_loss_coef", None)
    if coefficient is None:
        return model._automoe_config
    return _with_coefficient(model._automoe_config, coefficient)


@functools.lru_cache(maxsize=64)
def _with_coefficient(config_json: str, coefficient: float) -> str:
    return json.dumps({**json.loads(config_json), "router_aux_loss_coef": coefficient})


def _router_logits(result: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
    layers = sum(key.startswith("router_logits.") for key in result)
    return tuple(result[f"router_logits.{layer}"] for layer in range(layers)) or None


def _returned(model: PreTrainedModel, call: coverage.Call, output: Any) -> Any:
    return_dict = model.config.return_dict if call.return_dict is None else call.return_dict
    return output if return_dict else output.to_tuple()


def kept_positions(hidden: torch.Tensor, keep: int | torch.Tensor) -> torch.Tensor:
    """The positions of hidden [B, S, H] that logits_to_keep asks for: the last n, all for 0, an index for
    every row, or per row a 2-D index or a mask."""
    if isinstance(keep, int):
        return hidden[:, slice(-keep, None)]
    if keep.dim() == 2 and keep.dtype != torch.bool:
        return hidden.take_along_dim(keep.unsqueeze(-1), dim=1)
    return hidden[keep] if keep.dim() == 2 else hidden[:, keep]


class _Logits:
    """hidden W^T, as it would have been in the forward pass."""

    def __init__(self, hidden: torch.Tensor, head: torch.Tensor, keep: int | torch.Tensor, fp32: bool):
        self.hidden, self.head, self.keep, self.fp32 = hidden, head, keep, fp32
        self.head_version, self.grad = _version(head), torch.is_grad_enabled()

    def __call__(self) -> torch.Tensor:
        if _version(self.head) != self.head_version:
            raise RuntimeError(
                "[output] the logits of this output were not computed, and the weights have changed since "
                "its forward pass; read `.logits` before `optimizer.step()`"
            )
        with torch.set_grad_enabled(self.grad), torch.autocast(self.head.device.type, enabled=False):
            logits = nn.functional.linear(kept_positions(self.hidden, self.keep), self.head)
            return logits.float() if self.fp32 else logits


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference tensors do not count their changes
