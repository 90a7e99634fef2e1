"""Dense model to Mixture of Experts: each expert starts as a copy of the dense MLP.

As the weights of the chosen experts sum to one, equal experts give the dense result under any router:
the logits are those of the dense model until training tells the experts apart. Tensors are streamed
from file to file; at most one shard is in memory.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

MLP = re.compile(r"(model\.layers\.\d+)\.mlp\.(gate_proj|up_proj|down_proj)\.weight")
MIXTRAL_NAMES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates",
    "generation_config.json",
)


@dataclass(frozen=True)
class UpcycleConfig:
    model: Path  # a local folder with a dense Llama, Mistral or Qwen3
    out: Path
    num_experts: int = 8
    top_k: int = 2
    noise: float = (
        0.0  # standard deviation added to each expert, as a share of the tensor's own; breaks exactness
    )
    router_std: float = 0.02  # of the random router; any router is exact
    router_aux_loss_coef: float = 0.001
    dtype: str | None = None  # torch name; unset keeps that of the files
    max_shard_bytes: int = 5_000_000_000
    seed: int = 0


@dataclass(frozen=True)
class Family:
    """How one dense architecture is spelled as a Mixture of Experts."""

    architecture: str
    expert: Callable[[str, int, str], str]  # (layer prefix, expert, projection) -> name on disk
    router: str  # after the layer prefix
    config: Callable[[dict[str, Any], UpcycleConfig], dict[str, Any]]


def _mixtral_config(dense: dict[str, Any], options: UpcycleConfig) -> dict[str, Any]:
    for key in ("attention_bias", "mlp_bias"):
        if dense.get(key):
            raise ValueError(f"[upcycle] Mixtral has no biases, but {key} is true in the dense model")
    if dense.get("pretraining_tp", 1) != 1:
        raise ValueError("[upcycle] pretraining_tp other than 1 has no counterpart in Mixtral")
    sizes = {"num_local_experts": options.num_experts, "router_jitter_noise": 0.0}
    # Defaults that differ between the classes must be written out
    theta = {} if "rope_parameters" in dense else {"rope_theta": dense.get("rope_theta", 10000.0)}
    return {"model_type": "mixtral", "rms_norm_eps": 1e-6, "sliding_window": None, **sizes, **theta}


def _qwen3_config(dense: dict[str, Any], options: UpcycleConfig) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "num_experts": options.num_experts,
        "moe_intermediate_size": dense["intermediate_size"],
        "norm_topk_prob": True,  # without it the weights of the chosen do not sum to one
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


MIXTRAL = Family(
    "MixtralForCausalLM",
    lambda layer, expert, part: f"{layer}.block_sparse_moe.experts.{expert}.{MIXTRAL_NAMES[part]}.weight",
    ".block_sparse_moe.gate.weight",
    _mixtral_config,
)
QWEN3_MOE = Family(
    "Qwen3MoeForCausalLM",
    lambda layer, expert, part: f"{layer}.mlp.experts.{expert}.{part}.weight",
    ".mlp.gate.weight",
    _qwen3_config,
)
FAMILIES = {"llama": MIXTRAL, "mistral": MIXTRAL, "qwen3": QWEN3_MOE}


def upcycle(options: UpcycleConfig, on_tensor: Callable[[int, int], None] | None = None) -> Path:
    """Writes options.out, a Hugging Face folder that appears only once it is whole."""
    dense = json.loads((options.model / "config.json").read_text())
    family = _check(options, dense)
    config = moe_config(dense, family, options)
    staging = options.out.with_name(f".{options.out.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _write_weights(options, staging, _tensors(options, family, config, on_tensor))
        (staging / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for pattern in COPIED:
            for file in options.model.glob(pattern):
                (shutil.copytree if file.is_dir() else shutil.copy2)(file, staging / file.name)
        shutil.rmtree(options.out, ignore_errors=True)
        staging.rename(options.out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return options.out


def _check(options: UpcycleConfig, dense: dict[str, Any]) -> Family:
    kind = dense.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"[upcycle] cannot upcycle model type '{kind}'; possible are {', '.join(FAMILIES)}")
    if not 1 <= options.top_k <= options.num_experts:
        raise ValueError(
            f"[upcycle] top_k must lie between 1 and the {options.num_experts} experts, got {options.top_k}"
        )
    if "quantization_config" in dense:
        raise ValueError("[upcycle] the dense model is quantized; save it unquantized first")
    if options.out.exists() and not (options.out / "config.json").is_file() and any(options.out.iterdir()):
        raise ValueError(f"[upcycle] {options.out} exists and is no model folder; choose another --out")
    return FAMILIES[kind]


def moe_config(dense: dict[str, Any], family: Family, options: UpcycleConfig) -> dict[str, Any]:
    """The dense configuration with what the Mixture of Experts needs on top."""
    drop = {"attention_bias", "mlp_bias", "pretraining_tp"} if family is MIXTRAL else set()
    new = family.config(dense, options)
    kept = {key: value for key, value in dense.items() if key not in drop}
    forced = {key: new[key] for key in ("model_type", "norm_topk_prob") if key in new}
    if options.dtype:
        kept.pop("torch_dtype", None)
        forced["dtype"] = options.dtype
    return {
        **new,
        **kept,
        **forced,
        "architectures": [family.architecture],
        "num_experts_per_tok": options.top_k,
        "output_router_logits": False,
        "router_aux_loss_coef": options.router_aux_loss_coef,
    }


def _tensors(
    options: UpcycleConfig,
    family: Family,
    config: dict[str, Any],
    on_tensor: Callable[[int, int], None] | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(options.seed)
    places = _places(options.model)
    for count, (name, file) in enumerate(sorted(places.items()), start=1):
        with safe_open(file, "pt") as source:
            tensor = source.get_tensor(name)
        if options.dtype and tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, options.dtype))
        if not (found := MLP.fullmatch(name)):
            yield name, tensor
        else:
            layer, part = found.groups()
            for expert in range(options.num_experts):
                yield family.expert(layer, expert, part), _noisy(tensor, options.noise, generator)
            if part == "gate_proj":
                router = torch.randn(options.num_experts, config["hidden_size"], generator=generator)
                yield layer + family.router, (router * options.router_std).to(tensor.dtype)
        if on_tensor:
            on_tensor(count, len(places))


def _noisy(tensor: torch.Tensor, noise: float, generator: torch.Generator) -> torch.Tensor:
    if noise == 0:
        return tensor
    scale = noise * tensor.float().std()
    return (tensor.float() + scale * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)


def _places(folder: Path) -> dict[str, Path]:
    """Every tensor of a checkpoint with its file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ValueError(
            f"[upcycle] {folder} has neither model.safetensors nor an index; other formats are not read"
        )
    with safe_open(single, "pt") as source:
        return dict.fromkeys(source.keys(), single)


def _write_weights(options: UpcycleConfig, folder: Path, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Shards of at most max_shard_bytes under Transformers' names, with an index where there are several."""
    shard: dict[str, torch.Tensor] = {}
    shards: list[list[str]] = []
    size = total = 0

    def flush() -> None:
        # Copies of one tensor share memory, which the format forbids inside a file
        save_file(
            {k: v.clone() for k, v in shard.items()},
            folder / f"{len(shards)}.part",
            {"format": "pt"},
        )
        shards.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        nbytes = math.prod(tensor.shape) * tensor.element_size()
        if shard and size + nbytes > options.max_shard_bytes:
            flush()
            size = 0
        shard[name] = tensor.contiguous()
        size, total = size + nbytes, total + nbytes
    flush()
    if len(shards) == 1:
        (folder / "0.part").rename(folder / "model.safetensors")
        return
    weight_map = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"{i}.part").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
