"""libautomoe.so: loaded once, seen through torch.ops.automoe and torch.classes.automoe."""

import functools
import json
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).parent / "lib" / "libautomoe.so"


@functools.cache
def ops() -> Any:
    """torch.ops.automoe, with the library behind it."""
    if not PATH.exists():
        raise ImportError(
            f"[library] {PATH} is missing: run `make build` in a checkout, or reinstall the automoe wheel"
        )
    try:
        torch.ops.load_library(str(PATH))
    except OSError as error:
        raise ImportError(
            f"[library] {PATH} does not load with torch {torch.__version__}: {error}. It needs the torch "
            "release it was built with, or a newer compatible one; rebuild it with `make build`"
        ) from error
    return torch.ops.automoe


@functools.cache
def native_architectures() -> frozenset[str]:
    return frozenset(ops().native_architectures())


@functools.lru_cache(maxsize=64)
def engine(config_json: str) -> "Engine":
    """The engine for a config. It holds no weights, so one serves every model of that config."""
    return Engine(config_json)


class Engine:
    """A family's forward pass over parameters that the caller owns."""

    def __init__(self, config_json: str):
        ops()
        self._model = torch.classes.automoe.Model(config_json)
        self.has_experts: bool = self._model.has_experts()
        self.fp32_logits: bool = self._model.fp32_logits()
        specs = json.loads(self._model.parameters())
        self.parameter_names: list[str] = [spec["name"] for spec in specs]
        self.buffer_names = frozenset(spec["name"] for spec in specs if spec["is_buffer"])
        self.fp32_names = frozenset(spec["name"] for spec in specs if spec["keep_fp32"])

    def forward(
        self,
        parameters: list[torch.Tensor],
        tensors: dict[str, torch.Tensor],
        flags: dict[str, bool],
        recompute: str,
    ) -> dict[str, torch.Tensor]:
        """src/bindings/model.cpp lists the keys of `tensors`, `flags` and the result."""
        return self._model.forward(parameters, tensors, flags, recompute)


def load_checkpoint(
    folder: str, config_json: str, names: list[str], tensors: list[torch.Tensor]
) -> dict[str, Any]:
    """Fills `tensors` from the folder's safetensors; returns the report: tensors, bytes, seconds, ignored."""
    return json.loads(ops().load_checkpoint(folder, config_json, names, tensors))


def save_checkpoint(
    folder: str,
    config_json: str,
    names: list[str],
    tensors: list[torch.Tensor],
    max_shard_bytes: int,
    source: str = "",
) -> None:
    """Writes the weights into `folder`: after a crash it holds the old ones or the new ones. What the model
    carries but does not run comes from `source`, the folder it was loaded from."""
    ops().save_checkpoint(folder, config_json, names, tensors, max_shard_bytes, source)
