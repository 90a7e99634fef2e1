"""Small models of every native family, beside plain Transformers with the same weights."""

import copy
import functools
import json
import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import transformers
from automoe import AutoModelForCausalLM, library
from automoe.disguise import disguised
from transformers.models.gpt_oss import modeling_gpt_oss

FAMILIES = sorted(library.native_architectures())
GPT_OSS = "GptOssForCausalLM"
# How a config asks for n experts.
EXPERTS = {
    "DeepseekV3ForCausalLM": lambda n: {"n_routed_experts": n, "n_group": 1, "topk_group": 1},
    "Glm4MoeForCausalLM": lambda n: {"n_routed_experts": n},
    GPT_OSS: lambda n: {"num_local_experts": n},
    "MixtralForCausalLM": lambda n: {"num_local_experts": n},
    "NemotronHForCausalLM": lambda n: {"n_routed_experts": n, "n_group": 1, "topk_group": 1},
    "OlmoeForCausalLM": lambda n: {"num_experts": n},
    "Qwen2MoeForCausalLM": lambda n: {"num_experts": n},
    "Qwen3MoeForCausalLM": lambda n: {"num_experts": n},
}
MIXTURES = sorted(EXPERTS)
RECURRENT = ["NemotronHForCausalLM"]  # state-space layers; no RoPE, and the head is never tied
OTHERS = sorted(set(FAMILIES) - set(RECURRENT))
SIGMOID = ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "NemotronHForCausalLM"]  # and no balance loss
BALANCED = sorted(set(MIXTURES) - set(SIGMOID))
LATENT = ["DeepseekV3ForCausalLM"]  # latent attention: no head_dim, no grouped queries
TOLERANCE = 1e-5  # of the norm of the reference, in fp32
VOCAB = 64
DEVICE = os.environ.get("AUTOMOE_TEST_DEVICE", "cpu")


def make_config(family: str, **changes: Any) -> transformers.PreTrainedConfig:
    content = {**json.loads(library.ops().tiny_config(family)), **copy.deepcopy(changes)}
    return transformers.AutoConfig.for_model(content.pop("model_type"), **content)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that make every part matter; the usual start has near-zero attention scores."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.state_dict(keep_vars=True).items():
            noise = torch.randn(parameter.shape, generator=generator, device="cpu")
            if "norm" in name or name.endswith("mixer.D"):
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_((0.1 if name.endswith("bias") else parameter.shape[-1] ** -0.5) * noise)


class GptOssToldOfPositions:
    """GPT-OSS's code builds its masks without position_ids, so packed documents see each other. As an oracle
    the same code is told of them."""

    def forward(self, *args: Any, position_ids: torch.Tensor | None = None, **kwargs: Any) -> Any:
        masks = ("create_causal_mask", "create_sliding_window_causal_mask")
        makers = {
            name: functools.partial(getattr(modeling_gpt_oss, name), position_ids=position_ids)
            for name in masks
        }
        with mock.patch.multiple(modeling_gpt_oss, **makers):
            return super().forward(*args, position_ids=position_ids, **kwargs)


def make_pair(
    family: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str = "eager",
    **changes: Any,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedModel]:
    """(Transformers, automoe), both in training mode. GPT-OSS knows no sdpa."""
    config = make_config(family, **changes)
    attention = "eager" if family == GPT_OSS else attention
    plain = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    randomise(plain, seed)
    if family == GPT_OSS:
        plain.model.__class__ = disguised(type(plain.model), GptOssToldOfPositions)
    ours = AutoModelForCausalLM.from_config(make_config(family, **changes))
    ours.load_state_dict(plain.state_dict())
    return plain.to(DEVICE, dtype).train(), ours.to(DEVICE, dtype).train()


@dataclass
class Result:
    output: Any
    grads: dict[str, torch.Tensor]


def run(model: torch.nn.Module, **inputs: Any) -> Result:
    """Forward and, with labels, backward."""
    model.zero_grad(set_to_none=True)
    output = model(**inputs)
    if output.loss is not None:
        output.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return Result(output, grads)


def run_plain(model: torch.nn.Module, **inputs: Any) -> Result:
    """Transformers' result. There a state runs on into the next packed document, so the documents of a
    recurrent model are given to it as rows of a batch."""
    positions = inputs.get("position_ids")
    if type(model).__name__ not in RECURRENT or positions is None or "attention_mask" in inputs:
        return run(model, **inputs)
    positions = inputs.pop("position_ids").expand_as(inputs["input_ids"])
    rows = (positions == 0).flatten().cumsum(0).view_as(positions) - 1
    mask = torch.zeros(int(rows.max()) + 1, int(positions.max()) + 1, dtype=torch.long, device=rows.device)
    mask[rows, positions] = 1
    for name in ("input_ids", "labels"):
        inputs[name] = torch.full_like(mask, -100 if name == "labels" else 0).index_put(
            (rows, positions), inputs[name]
        )
    result = run(model, attention_mask=mask, **inputs)
    result.output.logits = result.output.logits[rows, positions]
    if routers := getattr(result.output, "router_logits", None):
        places = (rows * mask.shape[1] + positions).flatten()
        result.output.router_logits = tuple(logits[places] for logits in routers)
    return result


def with_heads_of(family: str, width: int) -> dict[str, int]:
    """The config's keys for heads whose rotated part is this wide."""
    if family in LATENT:
        return {"qk_rope_head_dim": width}
    if family == "OlmoeForCausalLM":  # its norms know no other head_dim than this
        return {"hidden_size": 2 * width, "num_attention_heads": 2, "num_key_value_heads": 1}
    return {"head_dim": 2 * width if family == "Glm4MoeForCausalLM" else width}


def norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm())


def assert_close(
    found: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = TOLERANCE, zero: float = 0.0
) -> None:
    """|found - expected| <= tolerance |expected|. What is zero but for rounding is compared with `zero`."""
    assert found.shape == expected.shape and found.dtype == expected.dtype, what
    assert torch.isfinite(found).all(), f"{what} is not finite"
    off = norm(found.double() - expected.double())
    assert off <= max(tolerance * norm(expected), zero), f"{what}: {off:.2e} from {norm(expected):.2e}"


def assert_same(
    ours: Result, plain: Result, real: torch.Tensor | None = None, tolerance: float = TOLERANCE
) -> None:
    """Loss, balance loss, logits and router logits where `real`, and every gradient."""
    for name in ("loss", "aux_loss"):
        found, expected = getattr(ours.output, name, None), getattr(plain.output, name, None)
        assert (found is None) == (expected is None), name
        if expected is not None:
            assert_close(found, expected, name, tolerance)
    real = torch.ones(plain.output.logits.shape[:2]).bool() if real is None else real.bool()
    assert_close(ours.output.logits[real], plain.output.logits[real], "logits", tolerance)
    routers = getattr(plain.output, "router_logits", None)
    assert (routers is None) == (getattr(ours.output, "router_logits", None) is None)
    for layer, expected in enumerate(routers or ()):
        found = ours.output.router_logits[layer]
        assert_close(found[real.flatten()], expected[real.flatten()], f"router_logits {layer}", tolerance)
    assert ours.grads.keys() == plain.grads.keys()
    # Some gradients are zero in exact arithmetic, such as a router's where the one chosen weight is always 1.
    zero = 1e-7 * sum(norm(grad) ** 2 for grad in plain.grads.values()) ** 0.5
    for name, expected in plain.grads.items():
        assert_close(ours.grads[name], expected, f"the gradient of {name}", tolerance, zero)


def assert_generates_alike(plain: torch.nn.Module, ours: torch.nn.Module, count: int = 64) -> None:
    """The same greedy tokens."""
    ids = tokens(2, 5)
    sequences = [
        model.eval().generate(ids, do_sample=False, max_new_tokens=count, pad_token_id=0, eos_token_id=None)
        for model in (plain, ours)
    ]
    assert torch.equal(*sequences) and sequences[0].shape[1] == 5 + count


def assert_documents_are_apart(model: torch.nn.Module) -> None:
    """Changing a packed document changes nothing of the next one."""
    batch = packed(((6, 7),))
    before = model(**batch).logits
    batch["input_ids"][:, :6] = (batch["input_ids"][:, :6] + 1) % 64
    after = model(**batch).logits
    assert not torch.allclose(before[:, :6], after[:, :6], atol=1e-2)
    torch.testing.assert_close(after[:, 6:], before[:, 6:], rtol=0, atol=1e-5)


def tokens(rows: int, length: int, seed: int = 1, vocabulary: int = VOCAB) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (rows, length), generator=generator, device="cpu").to(DEVICE)


def some_labels(ids: torch.Tensor, seed: int = 2) -> torch.Tensor:
    """The ids, with about a third of them not to be learnt."""
    drop = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed), device="cpu") < 0.3
    return ids.masked_fill(drop.to(ids.device), -100)


def padded(side: str, lengths: tuple[int, ...] = (13, 6, 1), seed: int = 1) -> dict[str, torch.Tensor]:
    """Rows of these lengths, padded on one side. Nothing is to be learnt at padding, nor a row's first token:
    before it stands padding, which has nothing to say."""
    longest = max(lengths)
    ids = tokens(len(lengths), longest, seed)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, longest - length :] = 1 if side == "left" else mask[row, longest - length :]
        if side == "right":
            mask[row, :length] = 1
    labels = some_labels(ids).masked_fill(mask == 0, -100)
    first = mask.argmax(1)
    labels[torch.arange(len(lengths)), first] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed(rows: tuple[tuple[int, ...], ...] = ((5, 1, 7), (13,)), seed: int = 1) -> dict[str, torch.Tensor]:
    """Documents of these lengths behind one another; positions begin again at each."""
    ids = tokens(len(rows), sum(rows[0]), seed)
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in rows]).to(DEVICE)
    labels = some_labels(ids).masked_fill(positions == 0, -100)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def assert_on_engine(model: torch.nn.Module) -> None:
    assert model.automoe.path == "engine", model.automoe
