"""An upcycled model says what the dense one says, to the last bits of fp32, with plain Transformers."""

import json

import pytest
import torch
import transformers
from automoe.upcycle import UpcycleConfig, upcycle

SIZES = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
DENSE = {
    "llama": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}
    ),
    "llama tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "mistral window": transformers.MistralConfig(**SIZES, sliding_window=7),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=10),
    "qwen3 biased": transformers.Qwen3Config(
        **SIZES, head_dim=6, attention_bias=True, tie_word_embeddings=True
    ),
}
IDS = torch.arange(3, 43).reshape(2, 20)


def save_dense(name, folder):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(DENSE[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from the initial zeros and ones
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_logits_equal_those_of_the_dense_model(tmp_path, name, top_k):
    dense = save_dense(name, tmp_path / "dense")
    options = UpcycleConfig(tmp_path / "dense", tmp_path / "moe", num_experts=3, top_k=top_k)
    moe = load(upcycle(options))
    expected = "Qwen3MoeForCausalLM" if "qwen3" in name else "MixtralForCausalLM"
    assert type(moe).__name__ == expected == moe.config.architectures[0]
    assert moe.config.num_local_experts == 3 and moe.config.num_experts_per_tok == top_k
    with torch.no_grad():
        torch.testing.assert_close(moe(IDS).logits, dense(IDS).logits, rtol=1e-5, atol=1e-5)


def test_noise_tells_the_experts_apart_and_a_seed_repeats_it(tmp_path):
    dense = save_dense("llama", tmp_path / "dense")

    def make(name, **options):
        return load(upcycle(UpcycleConfig(tmp_path / "dense", tmp_path / name, **options)))

    noisy, again, exact = make("a", noise=0.1), make("b", noise=0.1), make("c")
    experts = noisy.model.layers[0].mlp.experts.gate_up_proj
    assert not torch.equal(experts[0], experts[1])
    assert torch.equal(experts, again.model.layers[0].mlp.experts.gate_up_proj)
    same = exact.model.layers[0].mlp.experts.gate_up_proj
    assert torch.equal(same[0], same[-1])
    with torch.no_grad():
        assert not torch.allclose(noisy(IDS).logits, dense(IDS).logits, atol=1e-4)


def test_tokens_go_to_different_experts_from_the_start(tmp_path):
    save_dense("qwen3", tmp_path / "dense")
    moe = load(upcycle(UpcycleConfig(tmp_path / "dense", tmp_path / "moe", num_experts=4, top_k=1)))
    with torch.no_grad():
        logits = moe(IDS, output_router_logits=True).router_logits
    assert all(len(layer.argmax(-1).unique()) > 1 for layer in logits)


def test_shards_dtype_and_side_files(tmp_path):
    save_dense("llama", tmp_path / "dense")
    (tmp_path / "dense" / "tokenizer.json").write_text("{}")
    options = UpcycleConfig(tmp_path / "dense", tmp_path / "moe", dtype="bfloat16", max_shard_bytes=20_000)
    out = upcycle(options)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert (out / "tokenizer.json").read_text() == "{}"
    assert load(out).config.dtype == torch.float32  # as asked for on loading
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_sharded_sources_are_read(tmp_path):
    model = save_dense("llama", tmp_path / "dense")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    moe = load(upcycle(UpcycleConfig(tmp_path / "sharded", tmp_path / "moe")))
    with torch.no_grad():
        torch.testing.assert_close(moe(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"model_type": "gpt2"}, {}, "cannot upcycle model type 'gpt2'; possible are llama"),
        ({}, {"top_k": 9}, "between 1 and the 8 experts, got 9"),
        ({"mlp_bias": True}, {}, "mlp_bias is true"),
        ({"quantization_config": {}}, {}, "quantized"),
    ],
)
def test_what_cannot_be_exact_is_refused_and_leaves_nothing(tmp_path, change, options, message):
    save_dense("llama", tmp_path / "dense")
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    (tmp_path / "dense" / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=message):
        upcycle(UpcycleConfig(tmp_path / "dense", tmp_path / "moe", **options))
    assert [f.name for f in tmp_path.iterdir()] == ["dense"]
