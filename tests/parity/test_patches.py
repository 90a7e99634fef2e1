"""The ops inside Transformers' own forward: same values and gradients, wherever they may be used."""

import copy
import functools
import importlib
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from automoe import AutoModelForCausalLM, patches
from automoe.disguise import disguised, undisguised
from oracle import MIXTURES, OTHERS, assert_close, make_pair, randomise, tokens
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS


@functools.cache
def sources() -> dict[str, str]:
    files = Path(transformers.models.__path__[0]).glob("*/modeling_*.py")
    return {f"transformers.models.{file.parent.name}.{file.stem}": file.read_text() for file in files}


def find_class(name: str) -> type:
    module = next(module for module, text in sources().items() if f"\nclass {name}(" in text)
    return getattr(importlib.import_module(module), name)


def assert_same_module(plain, x):
    """Patched or not: one value, one gradient of x, one of each parameter."""
    ours = copy.deepcopy(plain)
    patches.patch(ours)
    assert type(ours) is not type(plain) and undisguised(type(ours)) is type(plain)
    results = []
    for module in (plain, ours):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        y.square().sum().backward()
        results.append([y, leaf.grad, *(p.grad for p in module.parameters())])
    for i, (expected, found) in enumerate(zip(*results, strict=True)):
        assert_close(found, expected, f"result {i}")


@pytest.mark.parametrize("family", [*patches.RMS_NORM_FAMILIES, "GptOss"])
def test_every_norm_on_the_list_is_of_our_kind(family):
    norm = find_class(f"{family}RMSNorm")(33, eps=1e-3)
    torch.manual_seed(0)
    norm.weight.data.normal_()
    assert_same_module(norm, torch.randn(2, 5, 33))


def test_gpt_oss_norms_round_once():
    norm = find_class("GptOssRMSNorm")(64, eps=1e-5).bfloat16()
    torch.manual_seed(0)
    norm.weight.data.normal_()
    ours = copy.deepcopy(norm)
    patches.patch(ours)
    x = torch.randn(200, 64).bfloat16()
    twice = norm.weight * (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + 1e-5)).bfloat16()
    assert (ours(x) == norm(x)).float().mean() > 0.995  # sums of another order
    assert (ours(x) == twice).float().mean() < 0.95


@pytest.mark.parametrize("family", patches.GATED_MLP_FAMILIES)
def test_every_mlp_on_the_list_is_of_our_kind(family):
    cls = find_class(f"{family}MLP")
    config = transformers.LlamaConfig(hidden_size=36, intermediate_size=19, num_attention_heads=2)
    config.use_bias = config.mlp_bias = False
    config.shared_expert_intermediate_size = config.moe_intermediate_size = 19
    torch.manual_seed(0)
    mlp = cls(config)
    assert_same_module(mlp, torch.randn(2, 5, 36))


def test_other_activations_and_other_classes_are_left_alone():
    gelu = find_class("LlamaMLP")(
        transformers.LlamaConfig(hidden_size=64, intermediate_size=8, hidden_act="gelu")
    )
    gemma = find_class("GemmaRMSNorm")(8)
    for module in (gelu, gemma, torch.nn.Linear(3, 3)):
        cls = type(module)
        patches.patch(module)
        assert type(module) is cls


def experts_of(family: str) -> torch.nn.Module:
    if family != "NemotronH":
        plain, _ = make_pair(family)
        return plain.model.layers[-1].mlp.experts
    config = transformers.NemotronHConfig(hidden_size=32, n_routed_experts=5, moe_intermediate_size=24)
    experts = find_class("NemotronHExperts")(config)
    randomise(experts, 0)
    return experts


@pytest.mark.parametrize("family", [*sorted(set(MIXTURES) & set(OTHERS)), "NemotronH"])
def test_the_experts_function_computes_what_the_others_do(family, monkeypatch):
    experts = experts_of(family)
    torch.manual_seed(0)
    x = torch.randn(11, 32)
    indices = torch.stack([torch.randperm(experts.num_experts)[:2] for _ in range(11)])
    weights = torch.rand(11, 2)
    results = []
    theirs = ALL_EXPERTS_FUNCTIONS["grouped_mm"]
    monkeypatch.setattr(patches, "grouped_mm_experts_forward", None)  # ours does not hand over to it
    for function in (theirs, ALL_EXPERTS_FUNCTIONS[patches.EXPERTS]):
        leaves = [x.clone().requires_grad_(), weights.clone().requires_grad_()]
        experts.zero_grad()
        y = function(experts, leaves[0], indices, leaves[1])
        y.square().sum().backward()
        results.append([y, *(leaf.grad for leaf in leaves), *(p.grad.clone() for p in experts.parameters())])
    for i, (expected, found) in enumerate(zip(*results, strict=True)):
        assert_close(found, expected, f"result {i}")


def test_our_experts_are_the_default_and_another_choice_is_kept():
    _, ours = make_pair("Qwen3MoeForCausalLM")
    assert ours.config._experts_implementation == "automoe"
    assert "experts_implementation" not in ours.config.to_json_string()
    config = copy.deepcopy(ours.config)
    other = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    assert other.config._experts_implementation == "eager"


@pytest.mark.filterwarnings("ignore")
def test_the_fallback_runs_our_ops(monkeypatch):
    _, ours = make_pair("Qwen3MoeForCausalLM")
    called = set()
    real = patches.library.ops()

    class Spy:
        def __getattr__(self, name):
            called.add(name)
            return getattr(real, name)

    monkeypatch.setattr(patches.library, "ops", Spy)
    ours(tokens(2, 5), use_cache=True)
    assert called == {"rms_norm", "experts"}


def test_patched_modules_survive_pickle_and_deepcopy():
    _, ours = make_pair("LlamaForCausalLM")
    mlp = ours.model.layers[0].mlp
    x = torch.randn(3, 32)
    for other in (copy.deepcopy(mlp), pickle.loads(pickle.dumps(mlp))):
        assert type(other) is type(mlp) is disguised(undisguised(type(mlp)), patches.GatedMlp)
        assert torch.equal(other(x), mlp(x))
