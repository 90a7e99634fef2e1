"""fp32 on CPU: logits, loss, balance loss and every gradient equal Transformers'."""

import pytest
import torch
from oracle import (
    EXPERTS,
    FAMILIES,
    GPT_OSS,
    LATENT,
    MIXTURES,
    OTHERS,
    assert_close,
    assert_on_engine,
    assert_same,
    make_pair,
    packed,
    padded,
    run,
    run_plain,
    some_labels,
    tokens,
    with_heads_of,
)

ATTENTION = ["eager", "sdpa"]
WINDOWS = {
    "GptOssForCausalLM": {"sliding_window": 5},
    "MistralForCausalLM": {"sliding_window": 5},
    "MixtralForCausalLM": {"sliding_window": 5},
    "Qwen2ForCausalLM": {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen2MoeForCausalLM": {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3MoeForCausalLM": {"sliding_window": 5, "use_sliding_window": True},
}


def batches() -> dict:
    ids = tokens(2, 13)
    return {
        "full": {"input_ids": ids, "labels": some_labels(ids)},
        "left": padded("left"),
        "right": padded("right"),
        "packed": packed(),
        "all_ones_mask": {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)},
    }


def compare(family, batch, attention="eager", **changes):
    if family in MIXTURES:
        batch = {**batch, "output_router_logits": True}
    plain, ours = make_pair(family, attention=attention, **changes)
    expected, found = run_plain(plain, use_cache=False, **batch), run(ours, use_cache=False, **batch)
    assert_on_engine(ours)
    assert_same(found, expected, batch.get("attention_mask"))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("batch", ["full", "left", "right", "packed", "all_ones_mask"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_batch(family, batch, attention):
    compare(family, batches()[batch], attention)


@pytest.mark.parametrize("batch", ["full", "left", "right", "packed"])
@pytest.mark.parametrize("family", WINDOWS)
def test_sliding_window(family, batch):
    compare(family, batches()[batch], **WINDOWS[family])


@pytest.mark.parametrize("family", WINDOWS)
def test_the_window_matters(family):
    """Otherwise the test above would pass without one."""
    plain, _ = make_pair(family, **{**WINDOWS[family], "sliding_window": 5})
    wide, _ = make_pair(family, **{**WINDOWS[family], "sliding_window": 50})
    ids = tokens(1, 13)
    assert not torch.allclose(plain(ids).logits, wide(ids).logits, atol=1e-3)


@pytest.mark.parametrize("family", OTHERS)
def test_tied_embeddings(family):
    compare(family, batches()["left"], tie_word_embeddings=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embedding_of_a_pad_token_takes_the_gradient_that_transformers_gives_it(family):
    ids = tokens(2, 13)
    ids[1, 3:6] = 7
    compare(family, {"input_ids": ids, "labels": ids}, pad_token_id=7)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_wider_than_hidden_size_allows(family):
    compare(family, batches()["full"], **with_heads_of(family, 24))


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(LATENT)))
def test_one_key_head_and_as_many_as_query_heads(family, kv_heads):
    compare(family, batches()["right"], num_key_value_heads=kv_heads)


@pytest.mark.parametrize(
    ("family", "biases"),
    [
        ("GptOssForCausalLM", False),
        ("LlamaForCausalLM", True),
        ("Qwen3ForCausalLM", True),
        ("Qwen3MoeForCausalLM", True),
    ],
)
def test_attention_biases_where_the_config_asks_for_them(family, biases):
    compare(family, batches()["packed"], attention_bias=biases)


def test_llama_mlp_biases():
    compare("LlamaForCausalLM", batches()["packed"], mlp_bias=True)


ORIGINAL = {"rope_theta": 10000.0, "original_max_position_embeddings": 16, "factor": 4.0}
ROPES = {
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.5},
    "yarn": {"rope_type": "yarn", **ORIGINAL},
    "yarn_untruncated": {"rope_type": "yarn", **ORIGINAL, "truncate": False, "beta_fast": 20, "beta_slow": 2},
    "yarn_mscale": {"rope_type": "yarn", **ORIGINAL, "mscale": 0.7, "mscale_all_dim": 1.1},
    "yarn_attention_factor": {"rope_type": "yarn", **ORIGINAL, "attention_factor": 1.3},
    "llama3": {"rope_type": "llama3", **ORIGINAL, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        **ORIGINAL,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0],
    },
}


@pytest.mark.parametrize("length", [11, 23])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", OTHERS)
def test_every_rope_type_below_and_beyond_the_original_length(family, rope, length):
    positions = 20 if rope == "dynamic" else 64
    ids = tokens(2, length)
    compare(
        family,
        {"input_ids": ids, "labels": ids},
        rope_parameters=ROPES[rope],
        max_position_embeddings=positions,
        **with_heads_of(family, 16),
    )


@pytest.mark.parametrize("top_k", [1, 3, "all"])
@pytest.mark.parametrize("family", MIXTURES)
def test_top_k_of_one_some_and_all_experts(family, top_k):
    chosen = 5 if top_k == "all" else top_k
    compare(family, batches()["left"], num_experts_per_tok=chosen, **EXPERTS[family](5))


@pytest.mark.parametrize("changes", [{"swiglu_limit": 0.3}, {"swiglu_limit": 100.0}, {"swiglu_alpha": 0.7}])
def test_gpt_oss_clamps_and_bends_as_the_config_says(changes):
    compare("GptOssForCausalLM", batches()["full"], **changes)


@pytest.mark.parametrize("kinds", [["full", "sliding", "sliding"], ["full"] * 3, ["sliding"] * 3])
def test_gpt_oss_with_layers_of_any_order(kinds):
    layers = {"layer_types": [f"{kind}_attention" for kind in kinds], "num_hidden_layers": 3}
    compare("GptOssForCausalLM", batches()["left"], **layers)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("family", sorted(set(MIXTURES) - {"MixtralForCausalLM", GPT_OSS}))
def test_weights_are_renormalised_as_the_config_says(family, normalised):
    compare(family, batches()["full"], norm_topk_prob=normalised)


@pytest.mark.parametrize("layers", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
@pytest.mark.parametrize("family", ["Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"])
def test_dense_layers_between_sparse_ones(family, layers):
    compare(family, batches()["right"], **layers)


FORMS = {
    "Glm4MoeForCausalLM": [
        {"use_qk_norm": False, "attention_bias": False},
        {"partial_rotary_factor": 1.0},
        {"n_group": 4, "topk_group": 2},
        {"first_k_dense_replace": 0, "n_shared_experts": 2},
    ],
    "OlmoeForCausalLM": [{"clip_qkv": None}, {"clip_qkv": 0.3}, {"attention_bias": True}],
    "Qwen2MoeForCausalLM": [{"qkv_bias": False}, {"shared_expert_intermediate_size": 7}],
}


@pytest.mark.parametrize(("family", "form"), [(family, form) for family in FORMS for form in FORMS[family]])
def test_other_forms_of_the_config(family, form):
    compare(family, batches()["left"], **form)


@pytest.mark.parametrize("family", MIXTURES)
def test_an_expert_nobody_chose_gets_a_zero_gradient(family):
    plain, ours = make_pair(family, **EXPERTS[family](11))
    ids = tokens(1, 3)  # 3 tokens, 2 or 3 experts each
    batch = {"input_ids": ids, "labels": ids, "use_cache": False}
    expected, found = run(plain, **batch), run(ours, **batch)
    assert_same(found, expected)
    grad = next(grad for name, grad in found.grads.items() if name.endswith("experts.down_proj"))
    unchosen = grad.flatten(1).abs().sum(1) == 0
    assert unchosen.any() and not unchosen.all()


@pytest.mark.parametrize("recompute", ["none", "norms", "layer"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputation_changes_no_result(family, recompute):
    plain, ours = make_pair(family)
    ours.automoe.recompute = recompute
    batch = padded("left")
    assert_same(run(ours, **batch), run(plain, **batch), batch["attention_mask"])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_keeps_layer_inputs_alone_and_changes_no_result(family):
    plain, ours = make_pair(family)
    ours.gradient_checkpointing_enable()
    batch = packed()
    kept = {}
    for policy in ("on", "off"):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: sizes.append(x.nbytes) or x, lambda x: x
        ):
            loss = ours(**batch).loss
        assert_on_engine(ours)
        kept[policy] = sum(sizes)
        assert_close(loss, run_plain(plain, use_cache=False, **batch).output.loss, policy)
        ours.gradient_checkpointing_disable()
    assert kept["on"] < kept["off"]


@pytest.mark.parametrize("count", [7, torch.tensor(7), torch.tensor(7.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_num_items_in_batch_divides_the_summed_loss(family, count):
    plain, ours = make_pair(family)
    ids = tokens(2, 13)
    batch = {"input_ids": ids, "labels": some_labels(ids), "num_items_in_batch": count}
    assert_same(run(ours, **batch), run(plain, **batch))
    assert_on_engine(ours)


KEEPS = [0, 1, 4, 99, torch.tensor([0, 5, 2]), torch.tensor([[1], [3]]), torch.arange(14).view(2, 7) % 3 == 0]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_to_keep(family, keep):
    plain, ours = make_pair(family)
    ids = tokens(2, 7)
    expected = plain(ids, logits_to_keep=keep, use_cache=False).logits
    assert_close(ours(ids, logits_to_keep=keep, use_cache=False).logits, expected, "logits")
    assert_on_engine(ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_flow_through_the_logits(family):
    plain, ours = make_pair(family)
    ids = tokens(2, 9)
    for model in (plain, ours):
        model(ids, use_cache=False).logits.square().mean().backward()
    assert_on_engine(ours)
    for (name, found), expected in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert_close(found.grad, expected.grad, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_parameters_get_no_gradient_and_the_others_the_same(family):
    plain, ours = make_pair(family)
    for model in (plain, ours):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("mlp" in name or "q_proj" in name)
    batch = padded("right")
    assert_same(run(ours, **batch), run(plain, **batch), batch["attention_mask"])


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_and_a_mask_together_follow_the_mask(family):
    """With a mask a restart of the positions is no new document, as in Transformers."""
    batch = packed()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    compare(family, batch)


@pytest.mark.parametrize("family", sorted(set(OTHERS) - {GPT_OSS}))  # that always has a window
def test_holes_in_the_mask(family):
    batch = padded("left")
    batch["attention_mask"][0, 4:6] = 0
    batch["labels"][0, 4:7] = -100
    changes = {"sliding_window": None} if family == "MistralForCausalLM" else {}
    compare(family, batch, **changes)
