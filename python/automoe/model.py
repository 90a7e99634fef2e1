"""The drop-in: Transformers' own classes and objects, whose forward pass runs on the engine."""

import functools
import inspect
import json
import weakref
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast
from transformers.utils.loading_report import LoadStateDictInfo

from automoe import coverage, library, loading, patches, saving
from automoe.disguise import disguised, undisguised
from automoe.output import with_lazy_logits
from automoe.status import Status

_statuses: "weakref.WeakKeyDictionary[nn.Module, Status]" = weakref.WeakKeyDictionary()


class EngineModel:
    """Mixin for a Transformers causal language model. It adds `automoe`, and changes where a forward pass
    runs, how weights get in and how a folder is written; everything else is the Transformers class."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            return
        hugging_face = super().forward

        @functools.wraps(hugging_face)
        def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return hugging_face(self, *args, **kwargs)
            call = coverage.bind(hugging_face, self, args, kwargs)
            if reasons := coverage.gaps(self, call):
                self.automoe.fell_back(reasons)
                return hugging_face(self, *args, **kwargs)
            self.automoe.ran_on_engine()
            return _run(self, call)

        cls.forward = forward

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        _attach(self)

    @property
    def automoe(self) -> Status:
        """Which path the calls of this model took, and why."""
        return _statuses.setdefault(self, Status())

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
        info = LoadStateDictInfo(
            missing_keys=to_tie,
            unexpected_keys=set(),
            mismatched_keys=set(),
            error_msgs=[],
            conversion_errors={},
            skipped_pp_keys=set(),
        )
        return info, None

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **kwargs: Any) -> None:
        """Transformers' save_pretrained, arguments and files included; the folder is never half-written."""
        hugging_face = super().save_pretrained
        target = Path(save_directory)
        if not is_main_process or target.is_file() or kwargs.get("distributed_checkpoint"):
            hugging_face(save_directory, is_main_process=is_main_process, **kwargs)
        elif saving.saves_natively(self, kwargs):
            names, tensors = zip(*self.named_parameters(), strict=True)
            limit = saving.bytes_of(kwargs.pop("max_shard_size", "50GB"))
            saving.save(
                target,
                lambda folder: hugging_face(folder, state_dict={}, **kwargs),
                lambda folder: library.save_checkpoint(
                    str(folder), self._automoe_config, list(names), list(tensors), limit
                ),
            )
        else:
            if kwargs.get("push_to_hub"):
                kwargs.setdefault("repo_id", target.name)
            saving.save(target, lambda folder: hugging_face(folder, **kwargs))


def _attach(model: PreTrainedModel) -> None:
    """The config as text is all that the engine needs to be built again, in any process."""
    native = undisguised(type(model))
    is_native = native.__name__ in library.native_architectures() and native.__module__.startswith(
        "transformers.models."
    )
    model._automoe_config = _engine_config(model.config, native.__name__) if is_native else None
    patches.patch(model)


def _engine_config(config: PreTrainedConfig, architecture: str) -> str:
    content = json.loads(config.to_json_string(use_diff=False))
    return json.dumps({**content, "architectures": [architecture]})


def _adopt(model: PreTrainedModel) -> PreTrainedModel:
    if not isinstance(model, EngineModel):
        model.__class__ = disguised(type(model), EngineModel)
        _attach(model)
    return model


def _run(model: PreTrainedModel, call: coverage.Call) -> Any:
    parameters = dict(model.named_parameters())
    engine = library.engine(_current_config(model))
    head = model.get_output_embeddings().weight
    with_router = coverage.has_router(model)
    router_logits = call.output_router_logits
    if router_logits is None and with_router:
        router_logits = model.config.output_router_logits
    recompute = model.automoe.recompute or ("layer" if coverage.checkpoints_layers(model) else "norms")
    with torch.autocast(head.device.type, enabled=False):
        result = engine.forward(
            [parameters[name] for name in engine.parameter_names],
            _engine_tensors(call, head.device),
            {"logits": False, "router_logits": bool(router_logits), "routing_counts": False},
            recompute,
        )
    fields: dict[str, Any] = {"loss": result.get("loss")}
    if with_router:
        layers = [key for key in result if key.startswith("router_logits.")]
        fields["aux_loss"] = result.get("aux_loss")
        fields["router_logits"] = tuple(result[f"router_logits.{i}"] for i in range(len(layers))) or None
    output_class = MoeCausalLMOutputWithPast if with_router else CausalLMOutputWithPast
    output = with_lazy_logits(output_class, _Logits(result["hidden"], head, call.logits_to_keep), **fields)
    if call.labels is None:
        output.logits  # noqa: B018 - nobody runs a model without labels for anything but these
    return_dict = model.config.return_dict if call.return_dict is None else call.return_dict
    return output if return_dict else output.to_tuple()


def _engine_tensors(call: coverage.Call, device: torch.device) -> dict[str, torch.Tensor]:
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

    def __init__(self, hidden: torch.Tensor, head: torch.Tensor, keep: int | torch.Tensor):
        self.hidden, self.head, self.keep = hidden, head, keep
        self.head_version, self.grad = head._version, torch.is_grad_enabled()

    def __call__(self) -> torch.Tensor:
        if self.head._version != self.head_version:
            raise RuntimeError(
                "[output] the logits of this output were not computed, and the weights have changed since "
                "its forward pass; read `.logits` before `optimizer.step()`"
            )
        with torch.set_grad_enabled(self.grad), torch.autocast(self.head.device.type, enabled=False):
            return nn.functional.linear(kept_positions(self.hidden, self.keep), self.head)


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
