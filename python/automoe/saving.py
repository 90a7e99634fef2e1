"""Saving a model so that a crash leaves no half-written folder."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightTransform

from automoe import coverage, library

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


def saves_natively(model: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether the engine writes the very files that Transformers would."""
    if model._automoe_config is None:
        return False
    parameters = coverage.named_parameters(model)
    return (
        set(arguments) <= {"max_shard_size", "save_peft_format", "save_original_format", "token"}
        and arguments.get("save_original_format", True)
        and not getattr(model, "_hf_peft_config_loaded", False)
        and getattr(model, "hf_quantizer", None) is None
        and _disk_names_are_published(model)
        and set(parameters) == set(library.engine(model._automoe_config).parameter_names)
        and all(type(p) in (nn.Parameter, torch.Tensor) for p in parameters.values())
        and all(p.device.type in ("cpu", "cuda") for p in parameters.values())
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
def _staging(target: Path) -> Iterator[Path]:
    """An empty folder on the file system of `target`: within it, or beside it if there is none yet. In the
    end it is gone; what dead processes left there goes first."""
    place = target if target.exists() else target.parent
    place.mkdir(parents=True, exist_ok=True)
    for leftover in place.glob(".saving-*"):
        if not _runs(leftover.name.split("-")[1]):
            shutil.rmtree(leftover, ignore_errors=True)
    folder = place / f".saving-{os.getpid()}-{time.time_ns()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _runs(process: str) -> bool:
    return process.isdigit() and Path(f"/proc/{process}").exists()


def save(
    target: Path, write: Callable[[Path], None], write_weights: Callable[[Path], None] | None = None
) -> None:
    """Lets `write` fill a staging folder and puts what it wrote into `target`. Other files of `target` stay.

    A new folder appears whole. In an existing one every file is replaced in one step, weights first, since
    they are what a full disk fails: whoever opens it, even after a crash, finds all of the old weights or all
    of the new ones. `write_weights` adds weights to a folder, and itself keeps that promise.
    """
    target = target.resolve()
    with _staging(target) as folder:
        write(folder)
        if target.exists():
            if write_weights:
                write_weights(target)
            _flush_files(folder)
            _publish(folder, target)
            return
        if write_weights:
            write_weights(folder)
        _flush_files(folder)
        os.rename(folder, target)
        _flush(target.parent)


def _flush_files(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _publish(folder: Path, target: Path) -> None:
    files = {path.name: path for path in folder.iterdir() if path.is_file()}
    stems = {
        Path(name).stem for name in files if name.endswith(".safetensors") and not _SHARD.fullmatch(name)
    }
    sharded = {match["stem"] for match in map(_SHARD.fullmatch, files) if match}
    for stem in stems:
        # Readers prefer this file to an index: from here on the weights are new.
        os.replace(files.pop(f"{stem}.safetensors"), target / f"{stem}.safetensors")
        (target / _index_of(stem)).unlink(missing_ok=True)
        _remove_stale(target, stem, current=set())
    for stem in sharded:
        _publish_shards(folder, stem, target)
    for name, path in files.items():
        if path.exists():  # no shard
            os.replace(path, target / name)
    for directory in (path for path in folder.iterdir() if path.is_dir()):
        shutil.copytree(directory, target / directory.name, dirs_exist_ok=True)
    _flush(target)


def _index_of(stem: str) -> str:
    """model -> model.safetensors.index.json; model.fp16 -> model.safetensors.index.fp16.json"""
    name, dot, variant = stem.partition(".")
    return f"{name}.safetensors.index{dot}{variant}.json"


def _publish_shards(folder: Path, stem: str, target: Path) -> None:
    """Old shards may have the very names of the new ones, and files cannot be replaced together. So the index
    first names temporaries, and the final names only once these hold the same bytes."""
    index = folder / _index_of(stem)
    content = json.loads(index.read_text())
    temporary = {shard: f".automoe-{os.getpid()}-{shard}" for shard in set(content["weight_map"].values())}
    for shard, name in temporary.items():
        os.replace(folder / shard, target / name)
    first = folder / "index_of_temporaries.json"
    names = {tensor: temporary[shard] for tensor, shard in content["weight_map"].items()}
    first.write_text(json.dumps({**content, "weight_map": names}))
    _flush(first)
    os.replace(first, target / index.name)
    (target / f"{stem}.safetensors").unlink(missing_ok=True)
    for shard, name in temporary.items():
        link = target / f"{name}.link"
        os.link(target / name, link)
        os.replace(link, target / shard)
    _flush(target)
    os.replace(index, target / index.name)
    _flush(target)
    for name in temporary.values():
        (target / name).unlink()
    _remove_stale(target, stem, current=set(temporary))


def _remove_stale(target: Path, stem: str, current: set[str]) -> None:
    """Shards of an earlier save, and what a dead one left. Nothing names them any more."""
    for path in target.iterdir():
        match = _SHARD.fullmatch(path.name)
        stale = match and match["stem"] == stem and path.name not in current
        abandoned = path.name.startswith(".automoe-") and not _runs(path.name.split("-")[1])
        if stale or abandoned:
            path.unlink()
