"""`automoe finetune --use-peft` with the real engine: adapters in, adapters or a whole model out."""

import json

import pytest
import torch
import transformers
from automoe.cli import app
from test_data_formats import write_jsonl
from test_finetune import ROWS, save_model
from tiny_tokenizers import make_tokenizer
from typer.testing import CliRunner

peft = pytest.importorskip("peft")


@pytest.fixture
def run(tmp_path):
    """Calls the command on a model whose answers end in `eos`; returns what it said."""
    write_jsonl(tmp_path / "chats.jsonl", ROWS)

    def call(*flags, eos="<|im_end|>", out="out"):
        if not (tmp_path / "model").exists():
            save_model(tmp_path / "model", eos_token_id=make_tokenizer("qwen3").convert_tokens_to_ids(eos))
        base = ["finetune", "--model", tmp_path / "model", "--data", tmp_path / "chats.jsonl"]
        base += ["--out", tmp_path / out, "--max-steps", 3, "--max-length", 96, "--max-new-tokens", 2]
        result = CliRunner().invoke(app, list(map(str, [*base, *flags])))
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    return call


def test_the_output_is_an_adapter_that_transformers_loads_onto_the_base(run, tmp_path):
    said = run("--use-peft", "--lora-r", 4)
    assert "LoRA of rank 4 on all-linear; experts and router frozen" in said
    assert "logits agree" in said and "rate 0.0001" in said
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "model") and config["r"] == 4
    assert sorted(config["target_modules"]) == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert not (tmp_path / "out" / "model.safetensors").exists()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    adapters = [p for name, p in model.named_parameters() if "lora_B" in name]
    assert len(adapters) == 8 and all(p.abs().max() > 0 for p in adapters)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_merging_saves_a_whole_model_that_differs_from_its_base_where_it_was_adapted(run, tmp_path):
    assert "logits agree" in run("--use-peft", "--merge-adapter", "--lr", 0.01)
    load = transformers.AutoModelForCausalLM.from_pretrained
    base, merged = (load(tmp_path / name).state_dict() for name in ("model", "out"))
    changed = {name for name, tensor in merged.items() if not torch.equal(tensor, base[name])}
    assert changed == {name for name in base if "self_attn" in name and "_proj" in name}


@pytest.mark.parametrize(("flags", "warns"), [(["--use-peft"], True), ([], False)])
def test_an_end_token_whose_row_lora_leaves_untrained_is_warned_of(run, flags, warns):
    """C5: a base model that ends in <|endoftext|>, chats that end in <|im_end|>."""
    said = run(*flags, eos="<|endoftext|>")
    assert ("LoRA trains neither its embedding nor the head" in said and "'<|im_end|>'" in said) == warns


def test_a_model_that_ends_as_the_chats_do_is_not_warned_of(run):
    assert "neither its embedding" not in run("--use-peft")


def test_adapter_settings_without_adapters_are_refused(tmp_path):
    flags = ["finetune", "--model", "m", "--data", "d", "--lora-r", "8"]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code != 0 and "add --use-peft" in " ".join(result.output.split())


def test_a_target_that_matches_nothing_is_refused_before_training(run, tmp_path):
    """P1: the error names it and lists the real names."""
    with pytest.raises(AssertionError, match="q_proj, v_proj"):
        run("--use-peft", "--lora-target-modules", "query_proj")
