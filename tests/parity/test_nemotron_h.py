"""What Nemotron-H has: state-space layers, one mixer a layer, experts in a latent space."""

import json

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
    run_plain,
    tokens,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FAMILY = "NemotronHForCausalLM"
LAYERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
BATCHES = {"left": padded("left"), "right": padded("right"), "packed": packed()}


def layers(pattern: str) -> dict[str, list[str]]:
    return {"layers_block_type": [LAYERS[letter] for letter in pattern]}


CONFIGS = {
    "mamba_alone": layers("M"),
    "attention_alone": layers("*"),
    "mlp_alone": layers("-"),
    "experts_alone": layers("E"),
    "dense": layers("M-M*-"),
    "nano": layers("MEM*EM"),
    "no_latent": {"moe_latent_size": None},
    "one_group": {"n_groups": 1},
    "a_group_for_each_head": {"n_groups": 6},
    "short_convolution": {"conv_kernel": 2},
    "no_convolution_bias": {"use_conv_bias": False},
    "mlp_biases": {"mlp_bias": True},
    "chunks_of_one": {"chunk_size": 1},
    "one_chunk": {"chunk_size": 128},
    "raised_steps": {"time_step_min": 0.5},
    "wide_state": {"ssm_state_size": 24},
    "ungrouped_experts": {"n_group": 1, "topk_group": 1},
    "no_renormalisation": {"norm_topk_prob": False},
    "eps": {"layer_norm_epsilon": 0.1},
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_form_of_the_config(config, batch):
    plain, ours = make_pair(FAMILY, **CONFIGS[config])
    batch = BATCHES[batch]
    expected, found = run_plain(plain, use_cache=False, **batch), run(ours, use_cache=False, **batch)
    assert_on_engine(ours)
    assert_same(found, expected, batch.get("attention_mask"))


@pytest.mark.parametrize("batch", ["right", "packed"])
def test_projection_biases(batch):
    plain, ours = make_pair(FAMILY, use_bias=True)
    batch = BATCHES[batch]
    expected, found = run_plain(plain, use_cache=False, **batch), run(ours, use_cache=False, **batch)
    assert_on_engine(ours)
    assert_same(found, expected, batch.get("attention_mask"))


def test_left_padding_has_no_say_even_with_projection_biases():
    """In Transformers the bias of in_proj at padding enters the convolution of a row's first tokens."""
    plain, ours = make_pair(FAMILY, use_bias=True)
    left = padded("left", (9, 4))
    mask, logits = left["attention_mask"].bool(), ours(**left, use_cache=False).logits
    for row in range(2):
        alone = plain(left["input_ids"][row][mask[row]].unsqueeze(0), use_cache=False).logits[0]
        assert_close(logits[row][mask[row]], alone, f"row {row}")


@pytest.mark.parametrize("change", [{"time_step_min": 0.5}, {"n_groups": 1}, {"layer_norm_epsilon": 0.1}])
def test_keys_of_the_config_are_not_ignored(change):
    """Against Transformers above; here: they make a difference."""
    plain, usual = make_pair(FAMILY, n_groups=2)
    config = make_config(FAMILY, **{"n_groups": 2, **change})
    other = AutoModelForCausalLM.from_config(config)
    if plain.num_parameters() == other.num_parameters():
        other.load_state_dict(plain.state_dict())
    ids = tokens(2, 9)
    assert not torch.allclose(usual(ids).logits, other.train()(ids).logits, atol=1e-3)


def test_a_long_row_crosses_many_chunks():
    plain, ours = make_pair(FAMILY, max_position_embeddings=512)
    ids = tokens(2, 301)
    batch = {"input_ids": ids, "labels": ids, "use_cache": False}
    assert_same(run(ours, **batch), run(plain, **batch))
    assert_on_engine(ours)


def test_c1_a_packed_document_does_not_see_its_neighbour():
    """Neither through attention nor through the convolution nor through the state."""
    for pattern in ("M", "*", "MEM*-"):
        _, ours = make_pair(FAMILY, **layers(pattern))
        assert_documents_are_apart(ours)
        assert_on_engine(ours)


def test_in_transformers_a_state_runs_on_into_the_next_document():
    """Why packed batches are compared with rows."""
    plain, _ = make_pair(FAMILY)
    batch = packed()
    apart, together = run_plain(plain, use_cache=False, **batch), run(plain, use_cache=False, **batch)
    assert not torch.allclose(apart.output.logits, together.output.logits, atol=1e-3)


def test_attention_knows_no_positions():
    _, ours = make_pair(FAMILY, **layers("*-"))
    ids = tokens(1, 9)
    swapped = ids.clone()
    swapped[:, [2, 5]] = ids[:, [5, 2]]
    assert_close(ours(swapped).logits[:, 6:], ours(ids).logits[:, 6:], "logits")


@pytest.mark.filterwarnings("ignore")
def test_holes_in_the_mask_fall_back():
    plain, ours = make_pair(FAMILY)
    ids = tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 4] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    assert_close(ours(**batch).logits[mask.bool()], plain(**batch).logits[mask.bool()], "logits")
    assert "holes and there are state-space layers" in repr(ours.automoe)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [{"mlp_hidden_act": "silu"}, {"conv_kernel": 5}])
def test_what_the_engine_does_not_know_runs_in_transformers(change):
    plain, ours = make_pair(FAMILY, **change)
    ids = tokens(2, 9)
    assert_close(ours(ids, labels=ids).loss, plain(ids, labels=ids, use_cache=False).loss, "loss")
    assert ours.automoe.path == "transformers" and next(iter(change)) in repr(ours.automoe)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", ["nano", "dense", "no_latent"])
def test_generate_gives_64_greedy_tokens_of_transformers(config):
    plain, ours = make_pair(FAMILY, **CONFIGS[config])
    assert_generates_alike(plain, ours)


def test_router_logits_come_without_a_balance_loss_as_in_transformers():
    plain, ours = make_pair(FAMILY)
    batch = padded("right")
    on, off = run(ours, output_router_logits=True, **batch), run(ours, **batch)
    expected = run(plain, use_cache=False, output_router_logits=True, **batch)
    assert_same(on, expected, batch["attention_mask"])
    assert getattr(on.output, "aux_loss", None) is None and torch.equal(on.output.loss, off.output.loss)


def names_in(path) -> set[str]:
    with safe_open(path / "model.safetensors", "pt") as file:
        return set(file.keys())


def test_l4_names_on_disk_are_the_published_ones(tmp_path):
    AutoModelForCausalLM.from_config(make_config(FAMILY)).save_pretrained(tmp_path)
    names = names_in(tmp_path)
    for name in (
        "backbone.embeddings.weight",
        "backbone.layers.0.mixer.A_log",
        "backbone.layers.0.mixer.conv1d.weight",
        "backbone.layers.1.mixer.experts.7.up_proj.weight",
        "backbone.layers.1.mixer.gate.e_score_correction_bias",
        "backbone.norm_f.weight",
        "lm_head.weight",
    ):
        assert name in names
    assert all(name.startswith("backbone.") for name in names - {"lm_head.weight"})


def test_a_model_in_bfloat16_keeps_its_router_in_fp32(tmp_path):
    plain, _ = make_pair(FAMILY)
    plain.save_pretrained(tmp_path)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {n: p.dtype for n, p in ours.state_dict().items()} == {
        n: p.dtype for n, p in expected.state_dict().items()
    }
    assert ours.model.layers[1].mixer.gate.weight.dtype == torch.float32
    ids = tokens(2, 9)
    found = ours.train()(ids, labels=ids)
    assert_on_engine(ours)
    assert found.logits.dtype == torch.float32
    found.loss.backward()
    assert ours.model.layers[1].mixer.gate.weight.grad.dtype == torch.float32


def test_a_pattern_of_letters_reads_as_the_list(tmp_path):
    plain, _ = make_pair(FAMILY)
    plain.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    words = config.pop("layers_block_type")
    letters = "".join(key for word in words for key, value in LAYERS.items() if value == word)
    file.write_text(json.dumps({**config, "hybrid_override_pattern": letters, "num_hidden_layers": 5}))
    ours = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert ours.config.layers_block_type == words
    ids = tokens(2, 9)
    assert_close(ours(ids, use_cache=False).logits, plain(ids, use_cache=False).logits, "logits")
    assert_on_engine(ours)


def test_l1_tensors_of_multi_token_prediction_are_kept_and_saved_bit_equal(tmp_path):
    """Transformers neither loads nor misses them, and drops them on saving."""
    plain, _ = make_pair(FAMILY)
    plain.save_pretrained(tmp_path / "first")
    file = tmp_path / "first" / "model.safetensors"
    generator = torch.Generator().manual_seed(3)
    prediction = {
        "mtp.layers.0.eh_proj.weight": torch.randn(32, 64, generator=generator),
        "mtp.layers.1.mixer.experts.0.up_proj.weight": torch.randn(24, 16, generator=generator),
    }
    save_file({**load_file(file), **prediction}, file, {"format": "pt"})
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    ids = tokens(2, 9)
    assert_close(ours(ids, use_cache=False).logits, plain(ids, use_cache=False).logits, "logits")
    ours.save_pretrained(tmp_path / "second")
    found = load_file(tmp_path / "second" / "model.safetensors")
    assert found.keys() == load_file(file).keys()
    for name, tensor in load_file(file).items():
        assert torch.equal(found[name], tensor), name
