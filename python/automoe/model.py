"""The drop-in: Transformers' own classes and objects, whose forward pass runs on the engine."""

import functools
import inspect
import json
import weakref
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.loading_report import LoadStateDictInfo

from automoe import coverage, library, loading, patches, running, saving
from automoe.disguise import disguised, undisguised
from automoe.status import Status

_statuses: "weakref.WeakKeyDictionary[nn.Module, Status]" = weakref.WeakKeyDictionary()


class _OnEngine:
    """Mixin for a Transformers model class: covered calls of its forward run on the engine."""

    _run_on_engine: Any  # (self, call) -> what forward returns

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hugging_face = getattr(super(), "forward", None)
        if hugging_face is None or "forward" in vars(cls):
            return

        @functools.wraps(hugging_face)
        def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return hugging_face(self, *args, **kwargs)
            call = coverage.bind(hugging_face, self, args, kwargs)
            if reasons := coverage.gaps(self, call):
                with self.automoe.falling_back(reasons):
                    return hugging_face(self, *args, **kwargs)
            self.automoe.ran_on_engine()
            return self._run_on_engine(call)

        cls.forward = forward

    @property
    def automoe(self) -> Status:
        """Which path the calls of this model took, and why. One for a model and its backbone."""
        return _statuses.setdefault(self.base_model, Status())


class EngineBackbone(_OnEngine):
    """Mixin for the model below the head. It serves who brings a head or a loss of his own, as TRL does, and
    calls that the engine covers but for their loss."""

    _run_on_engine = running.run_backbone


class EngineModel(_OnEngine):
    """Mixin for a Transformers causal language model. It adds `automoe`, and changes where a forward pass
    runs, how weights get in and how a folder is written; everything else is the Transformers class."""

    _run_on_engine = running.run_model

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        _attach(self)

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        """Our experts are the default; any other choice stays."""
        chosen = super().get_correct_experts_implementation(requested_experts)
        return patches.EXPERTS if requested_experts is None else chosen

    @staticmethod
    def _load_pretrained_model(
        model: PreTrainedModel, state_dict: dict | None, checkpoint_files: list[str] | None, load_config: Any
    ) -> tuple[LoadStateDictInfo, Any]:
        if state_dict is not None or not loading.loads_natively(model, checkpoint_files, load_config):
            return PreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, load_config)
        to_tie = loading.load(model, checkpoint_files, load_config)
        found = {"missing_keys": to_tie, "error_msgs": [], "conversion_errors": {}}
        info = LoadStateDictInfo(
            **{each.name: found.get(each.name, set()) for each in fields(LoadStateDictInfo)}
        )
        return info, None

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **kwargs: Any) -> None:
        """Transformers' save_pretrained, arguments and files included; the folder is never half-written."""
        hugging_face = super().save_pretrained
        target = Path(save_directory)
        if not is_main_process or target.is_file() or kwargs.get("distributed_checkpoint"):
            hugging_face(save_directory, is_main_process=is_main_process, **kwargs)
        elif saving.saves_natively(self, kwargs):
            names, tensors = zip(*coverage.named_parameters(self).items(), strict=True)
            limit = saving.bytes_of(kwargs.pop("max_shard_size", "50GB"))
            saving.save(
                target,
                lambda folder: hugging_face(folder, state_dict={}, **kwargs),
                lambda folder: library.save_checkpoint(
                    str(folder), self._automoe_config, list(names), list(tensors), limit, self._automoe_source
                ),
            )
        else:
            if kwargs.get("push_to_hub"):
                kwargs.setdefault("repo_id", target.resolve().name)
            saving.save(target, lambda folder: hugging_face(folder, **kwargs))


def _attach(model: PreTrainedModel) -> None:
    """The config as text is all that the engine needs to be built again, in any process."""
    patches.patch(model)
    native = undisguised(type(model))
    model._automoe_config = None
    is_native = native.__name__ in library.native_architectures() and native.__module__.startswith(
        "transformers.models."
    )
    model._automoe_source = ""  # the folder that the weights came from
    if not is_native:
        return
    config = _engine_config(model.config, native.__name__)
    if refusal := library.ops().unsupported_in(config):
        model._automoe_refusal = refusal
        return
    model._automoe_config = model.base_model._automoe_config = config
    model.base_model.__class__ = disguised(type(model.base_model), EngineBackbone)


def _engine_config(config: PreTrainedConfig, architecture: str) -> str:
    content = json.loads(config.to_json_string(use_diff=False))
    return json.dumps({**content, "architectures": [architecture]})


def _adopt(model: PreTrainedModel) -> PreTrainedModel:
    if not isinstance(model, EngineModel):
        model.__class__ = disguised(type(model), EngineModel)
        _attach(model)
    return model


class _EngineClasses:
    """A model mapping that answers with our subclass of each class."""

    def __init__(self, mapping: Any):
        self._mapping = mapping

    def __getitem__(self, config_class: type) -> Any:
        found = self._mapping[config_class]
        if isinstance(found, (list, tuple)):
            return tuple(disguised(cls, EngineModel) for cls in found)
        return disguised(found, EngineModel)

    def __contains__(self, config_class: Any) -> bool:
        return config_class in self._mapping

    def __iter__(self) -> Any:
        return iter(self._mapping)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapping, name)


class AutoModelForCausalLM(transformers.AutoModelForCausalLM):
    """transformers.AutoModelForCausalLM, whose models train on the engine.

    `from_pretrained` and `from_config` take Transformers' arguments. `model.automoe` tells which path ran.
    """

    _model_mapping = _EngineClasses(transformers.AutoModelForCausalLM._model_mapping)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        loaded = super().from_pretrained(*args, **kwargs)
        return (_adopt(loaded[0]), *loaded[1:]) if isinstance(loaded, tuple) else _adopt(loaded)

    @classmethod
    def from_config(cls, config: PreTrainedConfig, **kwargs: Any) -> PreTrainedModel:
        return _adopt(super().from_config(config, **kwargs))


for _name in ("from_pretrained", "from_config"):
    _theirs = getattr(transformers.AutoModelForCausalLM, _name)
    getattr(AutoModelForCausalLM, _name).__func__.__doc__ = inspect.getdoc(_theirs)
