"""`automoe finetune` from the command line to the saved folder, with a stand-in for the engine."""

import json
import sys

import automoe
import fake_engine
import pytest
import torch
import transformers
from automoe.cli import app
from automoe.finetune.banner import balance_line
from automoe.finetune.config import FinetuneConfig
from automoe.finetune.saving import add_end_tokens
from automoe.model_info import model_info
from test_data_formats import write_jsonl
from tiny_tokenizers import make_tokenizer
from typer.testing import CliRunner

ROWS = [{"prompt": f"What is {n}?", "completion": f"It is {n}, of course."} for n in range(30)]


def save_model(folder, name="qwen3", **config):
    tokenizer = make_tokenizer(name)
    torch.manual_seed(1)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 24,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>") if name == "qwen3" else None,
        **config,
    }
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "automoe.engine", fake_engine)
    monkeypatch.setitem(vars(automoe), "engine", fake_engine)
    monkeypatch.setattr(fake_engine.Trainer, "made", [])
    return fake_engine.Trainer


@pytest.fixture
def run(tmp_path, engine):
    save_model(tmp_path / "model")
    write_jsonl(tmp_path / "chats.jsonl", ROWS)

    def call(*flags):
        base = ["finetune", "--model", tmp_path / "model", "--data", tmp_path / "chats.jsonl"]
        base += ["--out", tmp_path / "out", "--lr", "0.01", "--eval-split", "0.2", "--max-new-tokens", "4"]
        return CliRunner().invoke(app, [str(x) for x in [*base, *flags]])

    return call


def test_the_saved_folder_stands_on_its_own(run, tmp_path, engine):
    """L10: config, weights, tokenizer, template and generation settings; chats render as with the source."""
    result = run("--max-steps", 12)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "generation_config.json",
        "index.html",
    ):
        assert (out / name).is_file(), name
    before, after = (transformers.AutoTokenizer.from_pretrained(p) for p in (tmp_path / "model", out))
    for chat in ([ROWS[0]["prompt"]], ["Hi", "Hello", "Bye"], ["  spaces \n", "é", "!"]):
        messages = [
            {"role": r, "content": c} for r, c in zip(["user", "assistant", "user"], chat, strict=False)
        ]
        for generate in (True, False):
            rendered = [
                t.apply_chat_template(messages, add_generation_prompt=generate) for t in (before, after)
            ]
            assert rendered[0] == rendered[1]
    assert "logits agree" in result.output.replace("\n", " ")


def test_held_out_loss_is_told_before_and_after_and_falls(run, tmp_path):
    result = run("--max-steps", 24)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert "held-out loss before training" in result.output and "perplexity" in result.output
    assert record["eval_after"]["loss"] < record["eval_before"]["loss"] - 0.3
    assert all({"prompt", "before", "after", "reference"} <= set(sample) for sample in record["samples"])
    assert record["samples"][0]["reference"].startswith("It is ")


def test_settings_reach_the_engine_by_name(run, engine):
    run("--max-steps", 1, "--seed", 7, "--freeze", "embed", "--freeze", "gate", "--no-packing")
    config = engine.made[0].config
    assert config["seed"] == 7 and config["freeze"] == ["embed", "gate"] and config["packing"] is False
    assert config["learning_rate"] == 0.01 and "router_aux_loss" not in config
    assert not {"model", "data", "eval_split", "prompts", "dtype"} & set(config)
    assert (engine.made[0].dtype, engine.made[0].device) == ("float32", "cpu")


def test_sigterm_writes_a_checkpoint_and_leaves_with_zero_and_the_same_command_goes_on(
    run, tmp_path, engine, monkeypatch
):
    monkeypatch.setattr(engine, "kill_after", 3)
    result = run("--max-steps", 8)
    assert result.exit_code == 0
    assert (tmp_path / "out" / "checkpoint-3").is_dir()
    assert "SIGTERM: stopped after step 3 of 8" in result.output
    assert not (tmp_path / "out" / "model.safetensors").exists()
    monkeypatch.setattr(engine, "kill_after", None)
    before = json.loads((tmp_path / "out" / "run.json").read_text())["eval_before"]
    result = run("--max-steps", 8)
    assert result.exit_code == 0 and "went on from checkpoint-3" in result.output
    assert engine.made[1].finished_steps() == 8
    assert json.loads((tmp_path / "out" / "run.json").read_text())["eval_before"] == before


def test_a_folder_that_does_not_reload_as_it_was_trained_is_an_error(run, engine, monkeypatch):
    monkeypatch.setattr(engine, "spoil_save", True)
    original = engine.save_pretrained

    def save(self, folder):
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        original(self, folder)
        self.model.load_state_dict(kept)

    monkeypatch.setattr(engine, "save_pretrained", save)
    result = run("--max-steps", 1)
    assert isinstance(result.exception, RuntimeError) and "does not reload" in str(result.exception)


def test_generation_stops_at_the_end_of_turn_that_the_chats_taught(run, tmp_path):
    """C5: the base model ends in <|endoftext|>, the template in <|im_end|>."""
    run("--max-steps", 1)
    tokenizer = make_tokenizer("qwen3")
    ends = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert ends == tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])


@pytest.mark.parametrize(
    ("old", "trained", "new"),
    [(None, [5], 5), (2, [2], 2), (2, [5], [2, 5]), ([2, 3], [3, 9], [2, 3, 9]), (2, [], 2)],
)
def test_end_tokens_are_added_and_none_is_lost(tmp_path, old, trained, new):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": old, "pad_token_id": 0}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "do_sample": True}))
    add_end_tokens(tmp_path, tmp_path, trained)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    assert settings["eos_token_id"] == new and settings["temperature"] == 0.6


@pytest.mark.parametrize(
    ("in_config", "flag", "expected"),
    [
        (True, None, "on, coefficient 0.01"),
        (False, None, "off (config: output_router_logits is false"),
        (False, True, "on, coefficient 0.01"),
        (True, False, "off (router_aux_loss is false"),
    ],
)
def test_the_banner_says_whether_the_balance_loss_is_computed(tmp_path, in_config, flag, expected):
    """N2: a positive coefficient alone does nothing, and the banner does not pretend."""
    save_model(tmp_path, output_router_logits=in_config, router_aux_loss_coef=0.01)
    config = FinetuneConfig(model="m", data="d", router_aux_loss=flag)
    assert balance_line(config, model_info(tmp_path)).startswith(expected)


def test_the_banner_is_about_ten_lines_with_everything_a_user_asks(run):
    output = run("--max-steps", 1).output
    for label in (
        "model",
        "parameters",
        "data",
        "a step",
        "packing",
        "balance loss",
        "precision",
        "saves to",
        "resume",
    ):
        assert any(line.strip().startswith(label) for line in output.splitlines()), label


def test_a_model_is_never_overwritten_by_its_own_fine_tune(run, tmp_path, engine):
    result = run("--out", tmp_path / "model")
    assert result.exit_code == 2 and "is the model itself" in result.output and not engine.made


def test_a_finished_run_is_not_trained_again_until_something_changes(run, tmp_path, engine):
    run("--max-steps", 2)
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    again = run("--max-steps", 2)
    assert again.exit_code == 0 and "all of it is done" in again.output and "index.html" in again.output
    assert len(engine.made) == 1 and (tmp_path / "out" / "model.safetensors").read_bytes() == weights
    for flags in (["--max-steps", 3], ["--max-steps", 3, "--resume-from-checkpoint", "never"]):
        assert "all of it is done" not in run(*flags).output
    save_model(tmp_path / "model", num_hidden_layers=1)
    assert "all of it is done" not in run("--max-steps", 3).output
    assert len(engine.made) == 4


def test_prepared_data_is_found_again_until_something_changes(run, tmp_path):
    run("--max-steps", 1)
    assert "found as prepared before" in run("--max-steps", 1, "--resume-from-checkpoint", "never").output
    write_jsonl(tmp_path / "chats.jsonl", ROWS[:-1])
    assert "found as prepared before" not in run("--max-steps", 1, "--resume-from-checkpoint", "never").output


def test_a_changed_chat_template_is_saved_with_the_model(run, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(make_tokenizer("chatml").chat_template.replace("<|im_end|>", "<|endoftext|>"))
    assert run("--max-steps", 1, "--chat-template", template).exit_code == 0
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert saved.chat_template == template.read_text()
