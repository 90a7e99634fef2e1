"""LoRA in the training engine, beside PEFT on plain Transformers."""

import copy
import json

import numpy as np
import peft
import pytest
import safetensors.torch
import torch
import transformers
from automoe import engine
from oracle import DEVICE, FAMILIES, MIXTURES, assert_close, make_pair, tokens

STEPS, RATE = 5, 3e-3
# PEFT takes gate_proj, up_proj and down_proj for the fused experts where a family has these, and so cannot
# name its dense MLPs.
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS = {
    "DeepseekV3ForCausalLM": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "Glm4MoeForCausalLM": ATTENTION,
    "Qwen2MoeForCausalLM": ATTENTION,
}


def targets_of(family):
    return TARGETS.get(family, ["all-linear"])


def write_document(folder, ids):
    """Prepared data of one document, all of it trained."""
    folder.mkdir()
    np.array(ids, dtype="<u4").tofile(folder / "tokens.bin")
    np.array([0] + [1] * (len(ids) - 1), dtype="u1").tofile(folder / "trained.bin")
    np.array([0, len(ids)], dtype="<i8").tofile(folder / "offsets.bin")
    meta = {"format": "automoe-data", "version": 1, "tokens": len(ids), "documents": 1}
    more = {"trained_tokens": len(ids) - 1, "max_document": len(ids), "vocab_size": None, "eos_token_ids": []}
    (folder / "meta.json").write_text(json.dumps({**meta, **more}))


def adapter_config(folder):
    return json.loads((folder / "adapter_config.json").read_text())


@pytest.fixture
def trainer(tmp_path):
    """Makes an engine trainer over the plain model's folder, with its document."""
    ids = tokens(1, 17)[0].tolist()
    write_document(tmp_path / "data", ids)

    def make(plain, **lora):
        plain.save_pretrained(tmp_path / "model")
        config = {
            "train_data": str(tmp_path / "data"),
            "output_dir": str(tmp_path / "out"),
            "max_steps": STEPS,
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "max_length": 32,
        }
        return engine.Trainer(tmp_path / "model", config, device=DEVICE, lora=lora), torch.tensor([ids])

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_training_follows_peft_and_peft_loads_the_result(family, trainer, tmp_path):
    plain, _ = make_pair(family)
    ours, ids = trainer(plain, r=3, lora_alpha=5, target_modules=targets_of(family))
    ours.save_pretrained(tmp_path / "start")
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path / "start", is_trainable=True)
    optimizer = torch.optim.AdamW(
        [p for p in theirs.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0
    )
    for _ in range(STEPS):
        loss = theirs(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert_close(torch.tensor(ours.step()["loss"]), loss.detach(), "loss", 1e-4)
    ours.save_pretrained(tmp_path / "adapter")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        assert_close(ours.logits(ids[0].tolist()), again(ids).logits[0], "logits")
        assert_close(ours.logits(ids[0].tolist()), theirs(input_ids=ids).logits[0], "PEFT's logits", 1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_file_has_the_keys_and_shapes_that_peft_writes(family, trainer, tmp_path):
    plain, _ = make_pair(family)
    trainer(plain, r=3, target_modules=targets_of(family))[0].save_pretrained(tmp_path / "ours")
    # PEFT's all-linear also means fused experts and the router; ours says that these stay frozen.
    dense = family not in MIXTURES
    targets = "all-linear" if dense else adapter_config(tmp_path / "ours")["target_modules"]
    config = peft.LoraConfig(r=3, target_modules=targets, task_type="CAUSAL_LM")
    peft.get_peft_model(plain, config).save_pretrained(tmp_path / "theirs")
    found, expected = (
        safetensors.torch.load_file(tmp_path / name / "adapter_model.safetensors")
        for name in ("ours", "theirs")
    )
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in expected.items()}


def test_merging_gives_a_plain_folder_with_the_logits_of_the_adapted_model(trainer, tmp_path):
    plain, _ = make_pair("Qwen3MoeForCausalLM")
    ours, ids = trainer(plain, r=3)
    for _ in range(STEPS):
        ours.step()
    ours.save_pretrained(tmp_path / "out")
    adapted = ours.logits(ids[0].tolist())
    ours.merge_adapter()
    ours.save_pretrained(tmp_path / "out")
    assert not list((tmp_path / "out").glob("adapter*"))
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert_close(merged(ids).logits[0], adapted, "logits")
        assert (plain(ids).logits[0] - adapted).abs().max() > 1e-3
