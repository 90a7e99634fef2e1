"""Folders go back and forth between Transformers and automoe without a changed byte."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from automoe import AutoModelForCausalLM, library
from oracle import (
    FAMILIES,
    GPT_OSS,
    MIXTURES,
    OTHERS,
    assert_close,
    make_config,
    make_pair,
    randomise,
    tokens,
)
from safetensors import safe_open

Plain = transformers.AutoModelForCausalLM
SHARDS = {"max_shard_size": "20KB"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names_in(folder: Path) -> set[str]:
    found = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return found


def published(folder: Path, family: str, seed: int = 0, **changes) -> Path:
    """A checkpoint as Transformers leaves it after loading one."""
    model = Plain.from_config(make_config(family, **changes))
    randomise(model, seed)
    model.save_pretrained(folder / "first")
    Plain.from_pretrained(folder / "first").save_pretrained(folder / "published", **SHARDS)
    return folder / "published"


def train_a_step(model) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()(tokens(2, 9), labels=tokens(2, 9)).loss.backward()
    optimizer.step()
    model.eval()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_save_load_save_load_is_bitwise_equal_names_and_shards_included(family, tied, trained, tmp_path):
    ours = AutoModelForCausalLM.from_pretrained(published(tmp_path, family, tie_word_embeddings=tied))
    if trained:
        train_a_step(ours)
    ours.save_pretrained(tmp_path / "ours", **SHARDS)
    plain = Plain.from_pretrained(tmp_path / "ours")
    plain.save_pretrained(tmp_path / "plain", **SHARDS)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    again.save_pretrained(tmp_path / "again", **SHARDS)
    first = files_of(tmp_path / "ours")
    assert len(first) > 4, "one shard would not show how tensors are spread"
    assert first == files_of(tmp_path / "plain") == files_of(tmp_path / "again")
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_l1_loading_and_saving_without_a_step_changes_no_byte(family, tmp_path):
    source = published(tmp_path, family)
    AutoModelForCausalLM.from_pretrained(source).save_pretrained(tmp_path / "ours", **SHARDS)
    assert files_of(source) == files_of(tmp_path / "ours")


@pytest.mark.parametrize("family", MIXTURES)
def test_l1_fused_experts_stay_fused_and_separate_ones_separate(family, tmp_path):
    plain, _ = make_pair(family)
    plain.save_pretrained(tmp_path / "fused", save_original_format=False)
    plain.save_pretrained(tmp_path / "separate")
    for kind in ("fused", "separate"):
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / kind)
        ours.save_pretrained(tmp_path / f"{kind}_again")
        assert names_in(tmp_path / kind) == names_in(tmp_path / f"{kind}_again")
        assert_close(ours(tokens(1, 5)).logits, plain(tokens(1, 5)).logits, kind)


def test_l5_gpt_oss_is_saved_expert_in_out_with_gate_and_up_in_turn(tmp_path):
    """Every number says where it belongs: 100 * expert + input + output / 100."""
    _, ours = make_pair(GPT_OSS)
    experts = ours.model.layers[1].mlp.experts
    at = torch.arange
    value = (
        100 * at(4).view(4, 1, 1) + at(32).view(1, 32, 1) + at(32).view(1, 1, 32) / 100
    )  # [expert, in, out]
    with torch.no_grad():
        experts.gate_up_proj[:, :, 0::2] = value / 1e3  # gate
        experts.gate_up_proj[:, :, 1::2] = -value / 1e3  # up
        experts.down_proj.copy_(value / 1e3)
    ours.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        gate_up = file.get_tensor("model.layers.1.mlp.experts.gate_up_proj")
        down = file.get_tensor("model.layers.1.mlp.experts.down_proj")
    assert torch.equal(gate_up[..., 0::2], value / 1e3) and torch.equal(gate_up[..., 1::2], -value / 1e3)
    assert torch.equal(down, value / 1e3)
    batch = {"input_ids": tokens(2, 11), "use_cache": False}
    assert_close(ours(**batch).logits, Plain.from_pretrained(tmp_path)(**batch).logits, "logits")
    assert ours.automoe.path == "engine"


def as_mxfp4(folder: Path) -> Path:
    """The GPT-OSS checkpoint in `folder` with random MXFP4 experts, as the published ones have them."""
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(5)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, width, rows = tensors.pop(name).shape
        shape = (experts, rows, width // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        tensors[f"{name}_blocks"] = blocks
        tensors[f"{name}_scales"] = torch.randint(119, 126, shape, generator=generator, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    not_converted = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": not_converted}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    return folder


def mxfp4_checkpoint(folder: Path, **changes) -> Path:
    model = Plain.from_config(make_config(GPT_OSS, **changes)).to(torch.bfloat16)
    randomise(model, 0)
    model.save_pretrained(folder)
    return as_mxfp4(folder)


@pytest.mark.parametrize("asked", [True, False])
def test_mxfp4_is_dequantised_to_the_bits_of_transformers_by_the_engine_itself(asked, tmp_path, monkeypatch):
    source = mxfp4_checkpoint(tmp_path / "mxfp4", intermediate_size=96, num_local_experts=3)
    dequantise = {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    plain = Plain.from_pretrained(source, **dequantise)
    monkeypatch.setattr(
        transformers.PreTrainedModel, "_load_pretrained_model", None
    )  # not through Transformers
    ours = AutoModelForCausalLM.from_pretrained(source, **(dequantise if asked else {}))
    expected, found = plain.state_dict(), ours.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert tensor.dtype == found[name].dtype == torch.bfloat16, name
        assert torch.equal(tensor, found[name]), name
    assert not getattr(ours, "is_quantized", False) and not hasattr(ours.config, "quantization_config")
    batch = {"input_ids": tokens(2, 11), "labels": tokens(2, 11), "use_cache": False}
    ours.train()(**batch).loss.backward()
    assert ours.automoe.path == "engine"


def test_what_was_mxfp4_is_saved_as_plain_bfloat16(tmp_path):
    source = mxfp4_checkpoint(tmp_path / "mxfp4")
    ours = AutoModelForCausalLM.from_pretrained(source)
    plain = Plain.from_pretrained(source, quantization_config=transformers.Mxfp4Config(dequantize=True))
    for model, name in ((ours, "ours"), (plain, "plain")):
        model.save_pretrained(tmp_path / name, **SHARDS)
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "plain")
    assert not any("_blocks" in name or "_scales" in name for name in names_in(tmp_path / "ours"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").state_dict()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_l2_a_trained_model_loads_elsewhere_complete_and_computes_the_same(family, tmp_path):
    _, ours = make_pair(family)
    train_a_step(ours)
    ours.save_pretrained(tmp_path / "out", **SHARDS)
    plain, info = Plain.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    batch = {"input_ids": tokens(2, 11), "use_cache": False}
    assert_close(ours(**batch).logits, plain(**batch).logits, "logits")


@pytest.mark.parametrize("family", FAMILIES)
def test_l4_names_do_not_depend_on_how_the_model_came_into_being(family, tmp_path):
    Plain.from_config(make_config(family)).save_pretrained(tmp_path / "plain")
    AutoModelForCausalLM.from_config(make_config(family)).save_pretrained(tmp_path / "config")
    AutoModelForCausalLM.from_pretrained(tmp_path / "config").save_pretrained(tmp_path / "file")
    expected = names_in(tmp_path / "plain")
    assert names_in(tmp_path / "config") == names_in(tmp_path / "file") == expected
    assert any("gate_up_proj" in name for name in expected) == (family == GPT_OSS)


@pytest.mark.parametrize("family", FAMILIES)
def test_from_config_saves_the_bytes_that_transformers_does(family, tmp_path):
    plain, ours = make_pair(family)
    plain.save_pretrained(tmp_path / "plain", **SHARDS)
    ours.save_pretrained(tmp_path / "ours", **SHARDS)
    assert files_of(tmp_path / "plain") == files_of(tmp_path / "ours")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", OTHERS)
def test_l9_a_tied_head_is_not_written_an_untied_one_is(family, tied, tmp_path):
    _, ours = make_pair(family, tie_word_embeddings=tied)
    ours.save_pretrained(tmp_path / "out")
    assert ("lm_head.weight" in names_in(tmp_path / "out")) == (not tied)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] == tied
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    batch = {"input_ids": tokens(2, 5), "use_cache": False}
    assert torch.equal(again(**batch).logits, ours(**batch).logits)


@pytest.mark.parametrize("equal", [True, False])
def test_l9_a_file_with_a_tied_head_as_well_is_read_as_transformers_reads_it(equal, tmp_path):
    plain, _ = make_pair("Qwen3MoeForCausalLM", tie_word_embeddings=False)
    if equal:
        plain.lm_head.weight.data.copy_(plain.model.embed_tokens.weight)
    plain.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "tie_word_embeddings": True}))
    expected, found = Plain.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    for model in (expected, found):
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == equal
    batch = {"input_ids": tokens(2, 5), "use_cache": False}
    assert_close(found(**batch).logits, expected(**batch).logits, "logits")


def test_old_llama_checkpoints_with_rope_tables_load(tmp_path):
    from safetensors.torch import load_file, save_file

    plain, _ = make_pair("LlamaForCausalLM")
    plain.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ours = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_close(ours(tokens(1, 5)).logits, plain(tokens(1, 5)).logits, "logits")


@pytest.mark.parametrize("fault", ["missing", "unexpected", "shape", "truncated"])
def test_a_checkpoint_that_does_not_fit_is_an_error_naming_file_and_tensor(fault, tmp_path):
    from safetensors.torch import load_file, save_file

    plain, _ = make_pair("Qwen3MoeForCausalLM")
    plain.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    tensors = load_file(path)
    if fault == "missing":
        del tensors[name]
    elif fault == "unexpected":
        name = "model.layers.1.mlp.experts.3.surprise.weight"
        tensors[name] = torch.ones(3)
    elif fault == "shape":
        tensors[name] = torch.ones(3, 5)
    save_file(tensors, path, {"format": "pt"})
    if fault == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(
        ValueError, match="model.safetensors" if fault == "truncated" else name.replace(".", r"\.")
    ):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_other_files_of_the_folder_stay_and_stale_weights_go(tmp_path):
    _, ours = make_pair("Qwen3MoeForCausalLM")
    ours.save_pretrained(tmp_path, max_shard_size="10KB")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-1").mkdir()
    many = set(files_of_names(tmp_path))
    ours.save_pretrained(tmp_path, max_shard_size="40KB")
    few = set(files_of_names(tmp_path))
    assert len(few) < len(many)
    ours.save_pretrained(tmp_path)
    assert files_of_names(tmp_path) == [
        "checkpoint-1",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "notes.txt",
    ]
    ours.save_pretrained(tmp_path, max_shard_size="40KB")
    assert set(files_of_names(tmp_path)) == few
    assert Plain.from_pretrained(tmp_path).state_dict().keys() == ours.state_dict().keys()


def files_of_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


OTHER_SAVES = {
    "variant": {"variant": "fp16"},
    "fused": {"save_original_format": False},
    "state_dict": {"state_dict": None},
}


@pytest.mark.parametrize("shard_size", ["20KB", "5GB"])
@pytest.mark.parametrize("kind", OTHER_SAVES)
def test_the_other_arguments_of_save_pretrained_give_transformers_files(kind, shard_size, tmp_path):
    plain, ours = make_pair("MixtralForCausalLM")
    for model, name in ((plain, "plain"), (ours, "ours")):
        arguments = dict(OTHER_SAVES[kind])
        if kind == "state_dict":
            arguments["state_dict"] = {k: v + 1 for k, v in model.state_dict().items()}
        for _ in range(2):  # into a new folder, and over an old one
            model.save_pretrained(tmp_path / name, max_shard_size=shard_size, **dict(arguments))
    assert files_of(tmp_path / "plain") == files_of(tmp_path / "ours")
    assert files_of_names(tmp_path) == ["ours", "plain"]


def save_again_and_again(folder: Path, arguments: dict, saved) -> None:
    _, model = make_pair("Qwen3MoeForCausalLM", hidden_size=64)
    while True:
        model.save_pretrained(folder, max_shard_size="30KB", **arguments)
        saved.set()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)


@pytest.mark.parametrize("arguments", [{}, {"save_original_format": False}])
def test_l6_killed_while_saving_leaves_a_folder_of_one_state(arguments, tmp_path, monkeypatch):
    """All tensors move by 1 from save to save: a mixture of two saves would show as different distances."""
    start, ours = make_pair("Qwen3MoeForCausalLM", hidden_size=64)
    folder = tmp_path / "out"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    context = multiprocessing.get_context("forkserver")  # imports once, and forks before there are threads
    context.set_forkserver_preload(["oracle"])
    for attempt in range(8):
        saved = context.Event()
        process = context.Process(target=save_again_and_again, args=(folder, arguments, saved), daemon=True)
        process.start()
        in_time = saved.wait(120)
        time.sleep(0.013 * attempt)
        process.kill()
        process.join()
        assert in_time
        model = AutoModelForCausalLM.from_pretrained(folder)
        expected = start.state_dict()
        moved = {round(float((v - expected[k]).mean()), 2) for k, v in model.state_dict().items()}
        assert len(moved) == 1, moved
    ours.save_pretrained(folder)
    assert files_of_names(folder) == ["config.json", "generation_config.json", "model.safetensors"]
    assert files_of_names(tmp_path) == ["out"]


@pytest.mark.parametrize("exists", [True, False])
def test_l7_a_save_that_fails_leaves_what_was_there_and_nothing_else(exists, tmp_path, monkeypatch):
    _, ours = make_pair("Qwen3MoeForCausalLM")
    if exists:
        ours.save_pretrained(tmp_path / "out")
    before = files_of(tmp_path / "out") if exists else None
    ours.config.bos_token_id = 7

    def full(*_):
        raise RuntimeError("disk full")

    monkeypatch.setattr(library, "save_checkpoint", full)
    with pytest.raises(RuntimeError, match="disk full"):
        ours.save_pretrained(tmp_path / "out")
    assert files_of_names(tmp_path) == (["out"] if exists else [])
    assert not exists or files_of(tmp_path / "out") == before


def test_saving_into_a_link_and_into_the_working_folder(tmp_path, monkeypatch):
    _, ours = make_pair("LlamaForCausalLM")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    ours.save_pretrained(tmp_path / "link")
    monkeypatch.chdir(tmp_path / "real")
    (tmp_path / "real" / "model.safetensors").unlink()
    ours.save_pretrained(".", save_original_format=False)
    assert files_of_names(tmp_path) == ["link", "real"] and (tmp_path / "link").is_symlink()
    assert files_of_names(tmp_path / "real") == ["config.json", "generation_config.json", "model.safetensors"]


class Hub:
    """Stands in for the Hub: keeps what is uploaded."""

    def __init__(self):
        self.repo, self.files = None, {}

    def create_repo(self, repo_id, **_):
        self.repo = repo_id
        return SimpleNamespace(repo_id=repo_id)

    def create_commit(self, operations, **_):
        self.files = {each.path_in_repo: Path(each.path_or_fileobj).read_bytes() for each in operations}


def test_push_to_hub_uploads_what_save_pretrained_writes(tmp_path, monkeypatch):
    hub = Hub()
    card = SimpleNamespace(save=lambda path: Path(path).write_text("card"))
    for module in (transformers.utils.hub, transformers.modeling_utils):
        monkeypatch.setattr(module, "hf_api", lambda: hub)
        monkeypatch.setattr(module, "create_and_tag_model_card", lambda *_, **__: card)
    _, ours = make_pair("Qwen3MoeForCausalLM")
    ours.save_pretrained(tmp_path / "mine")
    ours.push_to_hub("somebody/mine")
    assert hub.repo == "somebody/mine"
    assert hub.files == {**files_of(tmp_path / "mine"), "README.md": b"card"}
    ours.save_pretrained(tmp_path / "again", push_to_hub=True)
    assert hub.repo == "again"
    assert hub.files == files_of(tmp_path / "again") == {**files_of(tmp_path / "mine"), "README.md": b"card"}
