"""What the engine runs natively. `gaps` is the one place that knows: an empty list means the engine."""

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.utils import output_capturing

from automoe import library
from automoe.disguise import undisguised

# Arguments that change nothing when they hold nothing, and what they ask for when they hold something.
_MUST_BE_EMPTY = {
    "cache": "a key-value cache is given",
    "past_key_values": "a key-value cache is given",
    "inputs_embeds": "inputs_embeds is given",
    "output_attentions": "output_attentions is asked for",
    "output_hidden_states": "output_hidden_states is asked for",
}
# What position_ids say already, repeated for flash attention; what a head passes on to its backbone.
_ONLY_FOR_FLASH = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_ONLY_FOR_HEAD = ("shift_labels",)
_ATTENTION = ("eager", "sdpa", "flex_attention", *(f"flash_attention_{version}" for version in (2, 3, 4)))
_EXPERTS = ("automoe", "eager", "grouped_mm", "batched_mm")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ACTIVATIONS = (type(ACT2FN["silu"]), type(ACT2FN["relu2"]))
_PLAIN_MODULES = (nn.Linear, nn.Embedding, nn.ModuleList, nn.Conv1d, nn.Identity, *_ACTIVATIONS)


@dataclass
class Call:
    """The arguments of one forward call, by name."""

    input_ids: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    num_items_in_batch: torch.Tensor | int | None = None
    output_router_logits: bool | None = None
    logits_to_keep: int | torch.Tensor = 0
    use_cache: bool | None = None
    return_dict: bool | None = None
    others: dict[str, Any] = field(default_factory=dict)


@functools.cache
def signature_of(forward: Any) -> inspect.Signature:
    return inspect.signature(forward)


def bind(forward: Any, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Call:
    """What `forward(model, *args, **kwargs)` means; TypeError where it means nothing."""
    given = dict(signature_of(forward).bind(model, *args, **kwargs).arguments)
    given.pop("self")
    given.update(given.pop("kwargs", {}))
    known = {name: given.pop(name) for name in list(given) if name in Call.__dataclass_fields__}
    return Call(**known, others=given)


def gaps(model: nn.Module, call: Call) -> list[str]:
    """Why the engine cannot run this call, in words; empty if it can."""
    if model._automoe_config is None:
        refusal = getattr(model, "_automoe_refusal", None)
        return [refusal or f"{type(model).__name__} has no native implementation"]
    # The modules are looked at last: generation, which needs a cache, calls this once per token.
    return (
        list(_argument_gaps(model, call))
        or list(islice(_module_gaps(model), 1))  # adapters change hundreds of modules in one way
        or list(_parameter_gaps(model, call))
    )


def _argument_gaps(model: nn.Module, call: Call) -> Iterator[str]:
    config, ids, mask = model.config, call.input_ids, call.attention_mask
    packed = call.position_ids is not None and mask is None
    for name, value in call.others.items():
        if (name in _ONLY_FOR_FLASH and packed) or (name in _ONLY_FOR_HEAD and is_backbone(model)):
            continue
        if name in _MUST_BE_EMPTY:
            if value is not None and value is not False:
                yield _MUST_BE_EMPTY[name]
        elif value is not None:
            yield f"the argument {name} is not covered"
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False) and call.others.get(name) is None:
            yield f"{_MUST_BE_EMPTY[name]} by the config"
    if wants_cache(model, call):
        yield "a key-value cache is asked for (use_cache)"
    if not isinstance(ids, torch.Tensor):
        yield "input_ids is missing or no tensor"
        return
    if ids.dim() != 2 or ids.numel() == 0:
        yield f"input_ids is not [batch, length] but {list(ids.shape)}"
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.shape == ids.shape):
        yield "attention_mask does not have the shape of input_ids"
    if call.position_ids is not None and not _fits_positions(call.position_ids, ids):
        yield "position_ids does not have the shape of input_ids"
    if call.labels is not None:
        yield from _label_gaps(model, call)
    if call.output_router_logits and not has_router(model):
        yield "output_router_logits is asked for, but there is no router"
    if model.training and getattr(config, "attention_dropout", 0):
        yield "attention_dropout is on"
    if model.training and getattr(config, "router_jitter_noise", 0):
        yield "router_jitter_noise is on"
    if config._attn_implementation not in _ATTENTION:
        yield f"attn_implementation is {config._attn_implementation}"
    if config._experts_implementation not in _EXPERTS:
        yield f"experts_implementation is {config._experts_implementation}"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        yield "a torch.func transform is active"
    if mask is not None and (counts := _what_counts_holes(config)) and _has_holes(mask):
        yield f"attention_mask has holes and {counts}"


def has_router(model: nn.Module) -> bool:
    return library.engine(model._automoe_config).has_experts


def is_backbone(model: nn.Module) -> bool:
    return model.base_model is model


def named_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """By their names in the whole model, which are the engine's, and the buffers that the engine takes."""
    prefix = f"{model.base_model_prefix}." if is_backbone(model) else ""
    parameters = {f"{prefix}{name}": parameter for name, parameter in model.named_parameters()}
    if buffers := library.engine(model._automoe_config).buffer_names:
        named = ((f"{prefix}{name}", buffer) for name, buffer in model.named_buffers())
        parameters |= {name: buffer for name, buffer in named if name in buffers}
    return parameters


def _fits_positions(positions: torch.Tensor, ids: torch.Tensor) -> bool:
    rows, length = ids.shape
    return positions.dim() == 2 and positions.shape[1] == length and positions.shape[0] in (1, rows)


def _label_gaps(model: nn.Module, call: Call) -> Iterator[str]:
    if not isinstance(call.labels, torch.Tensor) or call.labels.shape != call.input_ids.shape:
        yield "labels does not have the shape of input_ids"
    if model.loss_function is not ForCausalLMLoss:
        yield "the loss function was replaced"
    if isinstance(call.logits_to_keep, torch.Tensor) or call.logits_to_keep != 0:
        yield "labels and logits_to_keep are given together"


def _what_counts_holes(config: Any) -> str | None:
    """The engine closes up holes in a mask. To a window they count, and a state decays over them."""
    if has_window(config):
        return "attention has a sliding window"
    if "linear_attention" in (getattr(config, "layer_types", None) or ()):
        return "there are state-space layers"
    return None


def _has_holes(mask: torch.Tensor) -> bool:
    """Whether a row's real tokens are not one run."""
    real = mask.bool()
    starts = real & ~nn.functional.pad(real, (1, 0))[:, :-1]
    return bool((starts.sum(1) > 1).any())


def has_window(config: Any) -> bool:
    return bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)


def wants_cache(model: nn.Module, call: Call) -> bool:
    """Whether the caller may look for a cache in the output. With use_cache left to the config it is made in
    inference alone: a training step, or the loss of a batch, has no use for one."""
    if call.use_cache is not None:
        return bool(call.use_cache) and not checkpoints_layers(model)
    in_training = model.training and torch.is_grad_enabled()
    return bool(getattr(model.config, "use_cache", False)) and call.labels is None and not in_training


def checkpoints_layers(model: nn.Module) -> bool:
    backbone = model.base_model  # some families have the switch in their layers alone
    switches = (backbone, *islice(getattr(backbone, "layers", ()), 1))
    enabled = any(getattr(module, "gradient_checkpointing", False) for module in switches)
    return enabled and model.training and torch.is_grad_enabled()


def _parameter_gaps(model: nn.Module, call: Call) -> Iterator[str]:
    parameters = named_parameters(model)
    engine = library.engine(model._automoe_config)
    expected = set(engine.parameter_names)
    if is_backbone(model):
        expected.discard("lm_head.weight")
    if differing := sorted(parameters.keys() ^ expected):
        yield f"the parameters are not those of the config: {differing[0]} differs"
        return
    first = next(iter(parameters.values()))
    for name, parameter in parameters.items():
        if type(parameter) not in (nn.Parameter, torch.Tensor):
            yield f"the parameter {name} is a {type(parameter).__name__}"
            return
        fits = parameter.dtype in (first.dtype, torch.float32 if name in engine.fp32_names else None)
        if not fits or parameter.device != first.device:
            yield f"parameters differ in dtype or device: {name} is {parameter.dtype} on {parameter.device}"
            return
    if first.dtype not in _DTYPES or first.device.type not in ("cpu", "cuda"):
        yield f"parameters are {first.dtype} on {first.device}"
    if call.input_ids.device != first.device:
        yield f"input_ids is on {call.input_ids.device}, the parameters are on {first.device}"
    device = first.device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != first.dtype:
        yield f"autocast to {torch.get_autocast_dtype(device)} is on"


def _module_gaps(model: nn.Module) -> Iterator[str]:
    if nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks:
        yield "global forward hooks are registered"
    family = undisguised(type(model)).__module__
    for name, module in model.named_modules():
        if module is model:
            continue
        cls = type(module)
        if cls not in _PLAIN_MODULES and undisguised(cls).__module__ != family:
            yield f"the module {name} is a {cls.__module__}.{cls.__name__}"
        elif "forward" in vars(module):
            yield f"the forward of {name} was replaced"
        elif module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            yield f"the module {name} has hooks"
        elif module._forward_hooks and not all(map(_is_harmless, module._forward_hooks.values())):
            yield f"the module {name} has forward hooks"


def _is_harmless(hook: Any) -> bool:
    """Transformers' own hooks: they collect outputs that were not asked for, or make the embedding's output
    require gradients, which the engine does not need."""
    return getattr(hook, "__module__", "") == output_capturing.__name__ or getattr(
        hook, "__qualname__", ""
    ).endswith("enable_input_require_grads.<locals>.make_inputs_require_grads")
