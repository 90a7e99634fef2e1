"""Looks at the machine: what was found, what is used, why not the rest."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MINIMUM = {"transformers": "5.12", "tokenizers": "0.21", "safetensors": "0.4", "datasets": "3.0"}
OPTIONAL = {
    "peft": "LoRA on the drop-in model",
    "trl": "SFTTrainer and preference training on the drop-in model",
}


@dataclass(frozen=True)
class Finding:
    state: Literal["ok", "off", "bad"]  # off: works without it
    what: str
    text: str


def examine() -> list[Finding]:
    return [*_machine(), *_torch(), *_engine(), *_packages()]


def _machine() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}")
    free = shutil.disk_usage(".").free / 2**30
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("ok", "machine", f"{cores} cores, {memory:.0f} GiB memory, {free:.0f} GiB free here")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken install raises more than ImportError
        yield Finding("bad", "torch", f"cannot be imported: {error}; pip install torch")
        return
    yield Finding("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(i)
            size = device.total_memory / 2**30
            yield Finding(
                "ok",
                f"cuda:{i}",
                f"{device.name}, {size:.0f} GiB, sm_{device.major}{device.minor}; used",
            )
    elif torch.version.cuda is None:
        yield Finding("off", "cuda", "this torch is built for the CPU only; training runs on the CPU")
    else:
        yield Finding(
            "off",
            "cuda",
            f"torch is built for CUDA {torch.version.cuda} but finds no GPU; the CPU is used",
        )


def _engine() -> Iterator[Finding]:
    try:
        from automoe import engine

        engine.load()
    except Exception as error:  # whatever is wrong with the library, it is named here
        reason = str(error).strip() or type(error).__name__
        yield Finding(
            "bad",
            "engine",
            f"{reason}; models fall back to Transformers, automoe finetune cannot run",
        )
        return
    described = getattr(engine, "describe", None)
    yield Finding("ok", "engine", described() if described else "loaded; used")


def _packages() -> Iterator[Finding]:
    for name, minimum in MINIMUM.items():
        found = _version(name)
        if found is None:
            yield Finding("bad", name, f"missing; pip install '{name}>={minimum}'")
        elif _numbers(found) < _numbers(minimum):
            yield Finding("bad", name, f"{found} is too old; pip install '{name}>={minimum}'")
        else:
            yield Finding("ok", name, found)
    for name, gives in OPTIONAL.items():
        found = _version(name)
        yield Finding("ok" if found else "off", name, found or f"not installed; would give {gives}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
