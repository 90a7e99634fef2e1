"""Transformers' output classes with logits that are computed when somebody reads them."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from transformers.utils import ModelOutput

from automoe.disguise import disguised


class LazyLogits:
    """Mixin for a ModelOutput. `logits` counts as present from the start; its first reader pays for it.

    Made by `with_lazy_logits`; constructed in any other way (by a copy, say) it is an ordinary output.
    """

    @property
    def logits(self) -> torch.Tensor | None:
        _compute(self)
        return self.__dict__.get("logits")

    @logits.setter
    def logits(self, value: torch.Tensor | None) -> None:
        self.__dict__.pop("_compute_logits", None)
        self.__dict__["logits"] = value

    def __getitem__(self, key: Any) -> Any:
        names = _names(self)
        if isinstance(key, int) and -len(names) <= key < len(names):
            key = names[key]
        if isinstance(key, str) and key != "logits" and key in names:
            return self.__dict__[key]
        _compute(self)
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        return key in _names(self) or super().__contains__(key)

    def __len__(self) -> int:
        return len(_names(self))

    def get(self, key: Any, default: Any = None) -> Any:
        if key in _names(self):
            return self[key]
        return super().get(key, default)


def _computing(name: str) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _compute(self)
        return getattr(super(LazyLogits, self), name)(*args, **kwargs)

    method.__name__ = name
    return method


# Whatever else shows the content computes the logits first.
_SPECIAL = ("__iter__", "__reversed__", "__eq__", "__ne__", "__repr__", "__reduce__")
for _name in (*_SPECIAL, "keys", "values", "items", "copy"):
    setattr(LazyLogits, _name, _computing(_name))
LazyLogits.__hash__ = None


def with_lazy_logits(
    output_class: type[ModelOutput], compute: Callable[[], torch.Tensor], **others: Any
) -> ModelOutput:
    """An `output_class` of `others`, whose logits are `compute()`."""
    output = disguised(output_class, LazyLogits)(**others)
    output.__dict__["_compute_logits"] = compute
    return output


def _names(output: ModelOutput) -> list[str]:
    """The fields that hold something, in their order."""
    present = {name for name, value in output.__dict__.items() if value is not None}
    if "_compute_logits" in present:
        present.add("logits")
    return [field.name for field in fields(output) if field.name in present]


def _compute(output: ModelOutput) -> None:
    compute = output.__dict__.pop("_compute_logits", None)
    if compute is None:
        return
    held = {name: output.__dict__[name] for name in _names(output)}
    held["logits"] = compute()
    # An OrderedDict remembers the order of arrival: fill it anew, in the order of the fields.
    super(ModelOutput, output).clear()
    for field in fields(output):
        if field.name in held:
            output[field.name] = held[field.name]
