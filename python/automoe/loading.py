"""Filling a model's parameters straight from the files of a Hugging Face folder."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    build_glob_alternation,
    rename_source_key,
)

from automoe import library

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def loads_natively(model: nn.Module, files: list[str] | None, load_config: Any) -> bool:
    """Whether the engine may load these files by itself."""
    simple = (
        model._automoe_config is not None
        and files
        and (not load_config.is_quantized or _dequantises(load_config.hf_quantizer))
        and not load_config.ignore_mismatched_sizes
        and load_config.device_mesh is None
        and _one_device(load_config.device_map) is not None
        and all(parameter.is_meta for parameter in model.parameters())
    )
    if not simple or len({os.path.dirname(file) for file in files}) != 1:
        return False
    folder = Path(files[0]).parent
    whole = [os.path.basename(file) for file in files] == [WEIGHTS]
    return whole or (not (folder / WEIGHTS).exists() and (folder / INDEX).exists())


def _dequantises(quantizer: Any) -> bool:
    """Whether the files are quantised in a way that the engine reads, and the model is not."""
    config = quantizer.quantization_config
    return quantizer.pre_quantized and config.quant_method == "mxfp4" and config.dequantize


def _one_device(device_map: dict[str, Any] | None) -> torch.device | None:
    if device_map is None:
        return torch.device("cpu")
    devices = {torch.device("cuda", d) if isinstance(d, int) else d for d in device_map.values()}
    if len(devices) != 1 or "disk" in devices:
        return None
    device = torch.device(devices.pop())
    return device if device.type in ("cpu", "cuda") else None


def load(model: nn.Module, files: list[str], load_config: Any) -> set[str]:
    """Gives every parameter its storage and fills it. Returns the names still to be tied."""
    device = _one_device(load_config.device_map)
    folder = os.path.dirname(files[0])
    names = library.engine(model._automoe_config).parameter_names
    tensors = []
    for name in names:
        meta = _tensor_of(model, name)
        dtype = _planned_dtype(name, load_config.dtype_plan) or meta.dtype
        tensors.append(_place(model, name, torch.empty(meta.shape, dtype=dtype, device=device)))
    library.load_checkpoint(folder, model._automoe_config, names, tensors)
    model._automoe_source = os.path.abspath(folder)

    file_of = {name: file for file in files for name in _names_in(file)}
    model._weight_conversions = _used(load_config.weight_mapping or [], file_of)
    tied = set(model.state_dict()) - set(names)
    for name in tied & set(file_of):
        # The file holds the tied head too. Transformers ties only if the two are equal, so it must see both.
        with safe_open(file_of[name], framework="pt") as file:
            _place(model, name, file.get_tensor(name).to(device, _tensor_of(model, name).dtype))
        tied.discard(name)
    return tied


def _names_in(file: str) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def _used(conversions: list[WeightTransform], names: Iterable[str]) -> list[WeightTransform]:
    """Those that the file's names call for; Transformers reverts just these when it saves."""
    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    for name in {re.sub(r"\.\d+\.", ".0.", name) for name in names}:  # one of each kind tells
        rename_source_key(name, renamings, converters)
    return [conversion for conversion in conversions if conversion.was_used()]


def _planned_dtype(name: str, plan: dict[str, torch.dtype] | None) -> torch.dtype | None:
    """What Transformers keeps in another dtype than the model's, such as a router in fp32."""
    if not plan:
        return None
    alternation, pattern_of, _ = build_glob_alternation(list(plan))
    match = alternation.search(name)
    return plan[pattern_of[match.lastgroup]] if match else None


def _tensor_of(model: nn.Module, name: str) -> torch.Tensor:
    """The parameter or buffer of this name."""
    module_name, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(module_name), leaf)


def _place(model: nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
    module_name, _, leaf = name.rpartition(".")
    module = model.get_submodule(module_name)
    if leaf in module._parameters:
        tensor = nn.Parameter(tensor, requires_grad=module._parameters[leaf].requires_grad)
    tensor._is_hf_initialized = True  # Transformers draws random numbers for whatever lacks this mark
    setattr(module, leaf, tensor)
    return tensor.data
