"""The smaller commands: data, info, upcycle, doctor, generate."""

import re
import sys
import types

import automoe
import pytest
import torch
import transformers
from automoe import doctor, library
from automoe.cli import app
from test_data_formats import write_jsonl
from test_finetune import ROWS, save_model
from tiny_tokenizers import make_tokenizer
from typer.testing import CliRunner


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def words(result):
    """The output as one line, wherever the terminal broke it."""
    return " ".join(result.output.split())


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


def test_preview_colours_the_trained_tokens_and_no_others(tmp_path, model, monkeypatch):
    from automoe.data import preview
    from rich.console import Console

    data = write_jsonl(tmp_path / "a.jsonl", ROWS)
    console = Console(force_terminal=True, width=200, color_system="standard", highlight=False)
    monkeypatch.setattr(preview, "console", console)
    with console.capture() as captured:
        preview.preview(data, make_tokenizer("qwen3"), first=3, rows=1, max_length=1024, plain=False)
    green = re.findall(r"\x1b\[1;32m(.*?)\x1b\[0m", captured.get(), re.S)
    trained = re.sub(r"[⏎\n]", "", "".join(green[:-1]))
    assert trained == "It is 2, of course.<|im_end|>" and green[-1] == "trained"


def test_preview_shows_prepared_folders_and_marks_what_would_be_cut(tmp_path, model):
    data = write_jsonl(tmp_path / "a.jsonl", ROWS)
    result = invoke("data", "preview", data, "--model", model, "--row", 2, "--rows", 2, "--max-length", 20)
    output = result.output.replace("\n", "")
    assert result.exit_code == 0 and "a.jsonl:2" in output and "a.jsonl:3" in output
    assert "beyond max_length 20" in result.output
    assert invoke("data", "prepare", data, "--tokenizer", model, "--out", tmp_path / "p").exit_code == 0
    for folder in (tmp_path / "p", tmp_path / "p" / "train"):
        assert "document 1" in invoke("data", "preview", folder).output
    assert "--model is needed" in invoke("data", "preview", data).output
    assert invoke("data", "preview", data, "--model", model, "--row", 99).exit_code == 2


def test_check_counts_and_names_bad_rows_with_exit_code_1(tmp_path, model):
    data = write_jsonl(tmp_path / "a.jsonl", [*ROWS, {"messages": [{"role": "usr", "content": "a"}]}])
    result = invoke("data", "check", data, "--model", model)
    assert result.exit_code == 1
    assert (
        "31, 1 bad" in result.output
        and "30 chat" in result.output
        and "30 user, 30 assistant" in result.output
    )
    assert "31: message 1 has the unknown role 'usr'; did you mean 'user'?" in result.output.replace("\n", "")
    assert "% trained" in result.output and "sample 3" in result.output


@pytest.mark.parametrize("native", [True, False])
def test_info_counts_active_parameters_and_says_native_or_not(model, monkeypatch, native):
    names = frozenset({"Qwen3MoeForCausalLM"} if native else {"LlamaForCausalLM"})
    monkeypatch.setattr(library, "native_architectures", lambda: names)
    output = invoke("info", model).output
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
    total = loaded.num_parameters()
    experts = sum(p.numel() for n, p in loaded.named_parameters() if ".experts." in n)
    assert f"{total:,}" in output and f"{total - experts // 2:,}" in output
    assert ("natively" in output) == native and ("through Transformers" in output) != native
    assert "4, 2 a token" in output


def test_upcycle_from_the_command_line_is_exact(tmp_path):
    config = transformers.Qwen3Config(
        vocab_size=33,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    dense = transformers.Qwen3ForCausalLM(config)
    dense.save_pretrained(tmp_path / "dense")
    result = invoke("upcycle", tmp_path / "dense", tmp_path / "moe", "--experts", 3, "--top-k", 2)
    assert result.exit_code == 0 and "exact copy" in result.output
    moe = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moe")
    ids = torch.arange(12)[None]
    torch.testing.assert_close(moe(ids).logits, dense(ids).logits, rtol=1e-5, atol=1e-5)


def broken_engine(message):
    engine = types.ModuleType("automoe.engine")

    def load():
        raise RuntimeError(message)

    engine.load = load
    return engine


def test_doctor_names_a_broken_extension_and_what_happens_then(monkeypatch):
    """I1: the words of the failure reach the user, with both versions in them."""
    message = "libautomoe.so was built for torch 2.9, found torch 2.11: reinstall automoe"
    engine = broken_engine(message)
    monkeypatch.setitem(sys.modules, "automoe.engine", engine)
    monkeypatch.setitem(vars(automoe), "engine", engine)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert message in words(result) and "fall back to Transformers" in words(result)
    engine.load = lambda: None
    engine.describe = lambda: "libautomoe 0.1, torch 2.11"
    result = invoke("doctor")
    assert result.exit_code == 0 and "libautomoe 0.1, torch 2.11" in words(result)


def test_doctor_says_what_is_missing_or_too_old_and_how_to_get_it(monkeypatch):
    versions = {"transformers": "4.57.1", "tokenizers": "0.22", "safetensors": "0.5"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    found = {finding.what: finding for finding in doctor._packages()}
    assert (
        found["transformers"].state == "bad"
        and "4.57.1 is too old; pip install" in found["transformers"].text
    )
    assert found["datasets"].state == "bad" and "missing; pip install" in found["datasets"].text
    assert found["tokenizers"].state == "ok" and found["peft"].state == "off"


def test_generate_answers_a_prompt_with_and_without_template(model, monkeypatch):
    monkeypatch.setitem(vars(automoe), "AutoModelForCausalLM", transformers.AutoModelForCausalLM)
    torch.manual_seed(0)
    for flags in ([], ["--raw"], ["--temperature", "0.7", "--top-p", "0.9"]):
        result = invoke("generate", model, "What is Paris?", "--max-new-tokens", 5, "--device", "cpu", *flags)
        assert result.exit_code == 0, result.output
        assert ("What is Paris?" in result.output) == (flags == ["--raw"])
