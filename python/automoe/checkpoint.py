"""Loading a folder straight into the parameters, and saving so that a crash leaves no half-written folder."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    apply_converters,
    apply_renamings,
)

from automoe import library

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.safetensors")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def bytes_of(size: int | str) -> int:
    """1000, "10MB" or "1.5GB", as Transformers reads max_shard_size."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?B)\s*", size.upper())
    if not match:
        raise ValueError(f"[save] max_shard_size must be a number of bytes or like '5GB', got '{size}'")
    return int(float(match[1]) * _UNITS[match[2]])


# ---- loading


def loads_natively(model: nn.Module, files: list[str] | None, load_config: Any) -> bool:
    """Whether the engine may load these files by itself."""
    simple = (
        model._automoe_config is not None
        and files
        and not load_config.is_quantized
        and not load_config.ignore_mismatched_sizes
        and not load_config.dtype_plan
        and load_config.device_mesh is None
        and _one_device(load_config.device_map) is not None
        and all(parameter.is_meta for parameter in model.parameters())
    )
    if not simple or len({os.path.dirname(file) for file in files}) != 1:
        return False
    folder = Path(files[0]).parent
    whole = [os.path.basename(file) for file in files] == [WEIGHTS]
    return whole or (not (folder / WEIGHTS).exists() and (folder / INDEX).exists())


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
        meta = model.get_parameter(name)
        tensors.append(_place(model, name, torch.empty(meta.shape, dtype=meta.dtype, device=device)))
    library.load_checkpoint(folder, model._automoe_config, names, tensors)

    file_of = {name: file for file in files for name in _names_in(file)}
    model._weight_conversions = _used(load_config.weight_mapping or [], file_of)
    tied = set(model.state_dict()) - set(names)
    for name in tied & set(file_of):
        # The file holds the tied head too. Transformers ties only if the two are equal, so it must see both.
        with safe_open(file_of[name], framework="pt") as file:
            _place(model, name, file.get_tensor(name).to(device, model.get_parameter(name).dtype))
        tied.discard(name)
    return tied


def _names_in(file: str) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def _used(conversions: list[WeightTransform], names: Iterable[str]) -> list[WeightTransform]:
    """Those that the file's names call for; Transformers reverts just these when it saves."""
    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    for name in {re.sub(r"\d+", "0", name) for name in names}:  # one of each kind tells
        apply_converters(apply_renamings(name, renamings), converters)
    return [conversion for conversion in conversions if conversion.was_used()]


def _place(model: nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
    module_name, _, leaf = name.rpartition(".")
    module = model.get_submodule(module_name)
    parameter = nn.Parameter(tensor, requires_grad=module._parameters[leaf].requires_grad)
    parameter._is_hf_initialized = True  # Transformers draws random numbers for whatever lacks this mark
    setattr(module, leaf, parameter)
    return parameter.data


# ---- saving


def saves_natively(model: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether the engine writes the very files that Transformers would."""
    parameters = dict(model.named_parameters())
    return (
        model._automoe_config is not None
        and set(arguments) <= {"max_shard_size", "save_peft_format", "save_original_format", "token"}
        and arguments.get("save_original_format", True)
        and not getattr(model, "_hf_peft_config_loaded", False)
        and getattr(model, "hf_quantizer", None) is None
        and _disk_names_are_published(model)
        and set(parameters) == set(library.engine(model._automoe_config).parameter_names)
        and all(type(p) is nn.Parameter and p.device.type in ("cpu", "cuda") for p in parameters.values())
    )


def _disk_names_are_published(model: nn.Module) -> bool:
    """Transformers saves under the names it loaded, so a fused checkpoint stays fused. It orders tensors by
    name, except in a model without conversions that never came from a file."""
    family = [_patterns(c) for c in get_model_conversion_mapping(model, add_legacy=False)]
    loaded = getattr(model, "_weight_conversions", None)
    if loaded is None:
        return bool(family)
    return [_patterns(c) for c in loaded] == family


def _patterns(conversion: WeightTransform) -> tuple:
    return type(conversion), *conversion.source_patterns, *conversion.target_patterns


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, gone in the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.automoe-", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save(
    target: Path, write: Callable[[Path], None], write_weights: Callable[[Path], None] | None = None
) -> None:
    """Lets `write` fill a staging folder and puts what it wrote into `target`. Other files of `target` stay.

    A new folder appears whole. In an existing one every file is replaced in one step and the weights come
    last: whoever opens it, even after a crash, finds all of the old weights or all of the new ones.
    `write_weights` adds weights to a folder, and itself keeps that promise.
    """
    with staged(target) as folder:
        write(folder)
        if not target.exists():
            if write_weights:
                write_weights(folder)
            os.chmod(folder, 0o777 & ~_umask())
            _flush(folder)
            os.rename(folder, target)
            _flush_folder(target.parent)
            folder.mkdir()  # for staged() to remove
            return
        _flush(folder)
        _publish(folder, target)
        if write_weights:
            write_weights(target)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _publish(folder: Path, target: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for directory in sorted(path for path in folder.iterdir() if path.is_dir()):
        shutil.copytree(directory, target / directory.name, dirs_exist_ok=True)
    weights = [path for path in files if path.suffix == ".safetensors" or path.name.endswith(".index.json")]
    for path in files:
        if path not in weights:
            os.replace(path, target / path.name)
    shards = [path for path in weights if _SHARD.fullmatch(path.name)]
    if shards:
        _publish_shards(shards, next(path for path in weights if path not in shards), target)
    else:
        for path in weights:
            os.replace(path, target / path.name)  # readers prefer this file to an index
            index = target / f"{path.name}.index.json"
            index.unlink(missing_ok=True)
            _remove_stale(target, path.stem, set())
    _flush_folder(target)


def _publish_shards(shards: list[Path], index: Path, target: Path) -> None:
    """Old shards may have the very names of the new ones, and files cannot be replaced together. So the index
    first names temporaries, and the final names only once these hold the same bytes."""
    whole = index.name.removesuffix(".index.json")
    temporaries = {shard.name: f".automoe-{os.getpid()}-{shard.name}" for shard in shards}
    content = json.loads(index.read_text())
    final_map = dict(content["weight_map"])
    for shard in shards:
        os.replace(shard, target / temporaries[shard.name])
    content["weight_map"] = {name: temporaries[file] for name, file in final_map.items()}
    first = index.with_name("temporary.json")
    first.write_text(json.dumps(content))
    os.replace(first, target / index.name)
    (target / whole).unlink(missing_ok=True)
    for name, temporary in temporaries.items():
        link = target / f"{temporary}.link"
        os.link(target / temporary, link)
        os.replace(link, target / name)
    os.replace(index, target / index.name)
    for temporary in temporaries.values():
        (target / temporary).unlink()
    _remove_stale(target, whole.removesuffix(".safetensors"), set(temporaries))


def _remove_stale(target: Path, stem: str, current: set[str]) -> None:
    for path in target.iterdir():
        match = _SHARD.fullmatch(path.name)
        if match and match["stem"] == stem and path.name not in current:
            path.unlink()
