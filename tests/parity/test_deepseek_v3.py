"""What DeepSeek-V3 has: latent attention, groups of experts, a bias that is no parameter."""

import copy

import pytest
import torch
import transformers
from automoe import AutoModelForCausalLM
from oracle import (
    assert_close,
    assert_documents_are_apart,
    assert_generates_alike,
    assert_on_engine,
    assert_same,
    make_config,
    make_pair,
    packed,
    padded,
    run,
    tokens,
)
from safetensors.torch import load_file, save_file

FAMILY = "DeepseekV3ForCausalLM"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
CONFIGS = {
    "no_query_latent": {"q_lora_rank": None},
    "one_group": {"n_group": 1, "topk_group": 1},
    "all_groups": {"n_group": 2, "topk_group": 2},
    "one_of_two_groups": {"n_group": 2, "topk_group": 1},
    "no_renormalisation": {"norm_topk_prob": False},
    "one_shared_expert": {"n_shared_experts": 1},
    "no_dense_layer": {"first_k_dense_replace": 0},
    "dense_layers_only": {"first_k_dense_replace": 2},
    "biases": {"attention_bias": True},
    "biases_without_query_latent": {"attention_bias": True, "q_lora_rank": None},
    "halves": {"rope_interleave": False},
    "yarn": {"rope_parameters": YARN, "max_position_embeddings": 2560},
    "wide_values": {"v_head_dim": 24},
    "moonlight": {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446},
}
BATCHES = {"left": padded("left"), "right": padded("right"), "packed": packed()}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_form_of_the_config(config, batch):
    plain, ours = make_pair(FAMILY, **CONFIGS[config])
    batch = BATCHES[batch]
    expected, found = (run(model, use_cache=False, **batch) for model in (plain, ours))
    assert_on_engine(ours)
    assert_same(found, expected, batch.get("attention_mask"))


@pytest.mark.parametrize(
    "change",
    [
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
        {"topk_group": 4},
        {"topk_group": 1, "n_group": 2},
    ],
)
def test_n1_renormalisation_scale_and_groups_follow_the_config(change):
    """Against Transformers above; here: no key is ignored."""
    _, usual = make_pair(FAMILY)
    _, other = make_pair(FAMILY, **change)
    ids = tokens(2, 9)
    assert not torch.allclose(usual(ids).logits, other(ids).logits, atol=1e-3)


def test_n8_yarn_sharpens_attention_and_bends_at_the_original_length():
    changes = {"rope_parameters": YARN, "max_position_embeddings": 2560, "qk_rope_head_dim": 16}
    plain, ours = make_pair(FAMILY, **changes)
    assert plain.model.layers[0].self_attn.scaling * 22**0.5 == pytest.approx(1.87385, abs=1e-4)
    ids = tokens(1, 120)
    expected, found = (model(ids, use_cache=False).logits[0] for model in (plain, ours))
    assert_on_engine(ours)
    for position in (0, 50, 63, 64, 100, 119):
        assert_close(found[position], expected[position], f"logits at {position}")
    _, blunt = make_pair(FAMILY, **{**changes, "rope_parameters": {**YARN, "mscale_all_dim": 0, "mscale": 0}})
    assert not torch.allclose(blunt(ids, use_cache=False).logits[0, 100], found[100], atol=1e-3)


def test_c1_a_packed_document_does_not_see_its_neighbour():
    _, ours = make_pair(FAMILY)
    assert_documents_are_apart(ours)


@pytest.mark.parametrize("config", ["yarn", "no_query_latent", "one_group"])
def test_generate_gives_64_greedy_tokens_of_transformers(config):
    plain, ours = make_pair(FAMILY, **CONFIGS[config])
    assert_generates_alike(plain, ours)


def test_router_logits_come_without_a_balance_loss_as_in_transformers():
    plain, ours = make_pair(FAMILY)
    batch = padded("right")
    on, off = run(ours, output_router_logits=True, **batch), run(ours, **batch)
    expected = run(plain, use_cache=False, output_router_logits=True, **batch)
    assert_same(on, expected, batch["attention_mask"])
    assert on.output.aux_loss is None and torch.equal(on.output.loss, off.output.loss)


def test_the_selection_bias_is_state_that_neither_gradient_nor_optimizer_touches():
    plain, ours = make_pair(FAMILY)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert name in ours.state_dict() and name not in dict(ours.named_parameters())
    before = ours.state_dict()[name].clone()
    assert before.abs().min() > 0
    batch = padded("left")
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.1)
    run(ours, **batch)
    optimizer.step()
    assert_on_engine(ours)
    assert torch.equal(ours.state_dict()[name], before)
    ours.load_state_dict(plain.state_dict())
    ours.get_buffer(name).add_(torch.linspace(-3, 3, 8))  # and it has a say in the very next call
    moved = run(ours, **batch).output.logits
    assert not torch.allclose(moved, run(plain, use_cache=False, **batch).output.logits, atol=1e-3)


def test_in_a_bf16_model_router_and_bias_stay_fp32_in_memory_and_on_disk(tmp_path):
    plain, _ = make_pair(FAMILY)
    plain.save_pretrained(tmp_path / "fp32")
    wide = {"model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate.e_score_correction_bias"}
    saved = {}
    for kind, auto in (("plain", transformers.AutoModelForCausalLM), ("ours", AutoModelForCausalLM)):
        model = auto.from_pretrained(tmp_path / "fp32", dtype=torch.bfloat16)
        assert {name for name, x in model.state_dict().items() if x.dtype != torch.bfloat16} == wide
        model.train()
        result = run(model, use_cache=False, **padded("right"))
        assert result.grads["model.layers.1.mlp.gate.weight"].dtype == torch.float32
        model.save_pretrained(tmp_path / kind, max_shard_size="20KB")
        saved[kind] = {path.name: path.read_bytes() for path in (tmp_path / kind).iterdir()}
    assert_on_engine(model)
    assert saved["ours"] == saved["plain"]


def with_prediction_layer(folder):
    """Adds the tensors of a layer 2, which a model of two layers does not run, as the Hub has them."""
    path = folder / "model.safetensors"
    content = load_file(path)
    generator = torch.Generator().manual_seed(3)
    for name, tensor in list(content.items()):
        if name.startswith("model.layers.1."):
            content[name.replace(".1.", ".2.", 1)] = torch.randn(tensor.shape, generator=generator)
    for name, shape in {
        "enorm.weight": [32],
        "hnorm.weight": [32],
        "eh_proj.weight": [32, 64],
        "shared_head.norm.weight": [32],
        "shared_head.head.weight": [64, 32],
        "embed_tokens.weight": [64, 32],
    }.items():
        content[f"model.layers.2.{name}"] = torch.randn(shape, generator=generator)
    save_file(content, path, {"format": "pt"})
    return {name: tensor for name, tensor in content.items() if ".layers.2." in name}


@pytest.mark.parametrize("shard_size", ["20KB", "5GB"])
@pytest.mark.parametrize("again", [False, True])
def test_l1_the_prediction_layer_is_kept_and_saved_bit_equal(again, shard_size, tmp_path):
    plain, _ = make_pair(FAMILY)
    source = tmp_path / "first"
    plain.save_pretrained(source)
    usual = load_file(source / "model.safetensors").keys()
    layer = with_prediction_layer(source)
    ours = copy.deepcopy(AutoModelForCausalLM.from_pretrained(source))
    ours.train()(tokens(2, 9), labels=tokens(2, 9)).loss.backward()
    torch.optim.SGD(ours.parameters(), lr=0.1).step()
    target = source if again else tmp_path / "second"
    ours.save_pretrained(target, max_shard_size=shard_size)
    found = {}
    for path in target.glob("*.safetensors"):
        found |= load_file(path)
    assert found.keys() == usual | layer.keys()
    for name, tensor in layer.items():
        assert torch.equal(found[name], tensor), name
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(target)
    assert_close(ours(tokens(1, 5), use_cache=False).logits, reloaded(tokens(1, 5)).logits, "logits")


@pytest.mark.parametrize("keys", [{"num_key_value_heads": 2}, {"n_group": 3}, {"topk_group": 9}])
def test_configs_that_make_no_sense_are_errors_that_name_the_key(keys):
    with pytest.raises(ValueError, match=next(iter(keys))):
        AutoModelForCausalLM.from_config(make_config(FAMILY, **keys))(tokens(1, 3), use_cache=False)
