"""The tools around Transformers, given our model: generate, Trainer, TRL, PEFT, torch.compile."""

import warnings
from typing import Any

import pytest
import torch
import transformers
from automoe import AutoModelForCausalLM
from oracle import DEVICE, FAMILIES, MIXTURES, assert_close, assert_on_engine, make_config, make_pair, tokens

pytestmark = pytest.mark.filterwarnings("ignore")
QWEN = "Qwen3MoeForCausalLM"
# Of TrainingArguments: the rows lie on the device already.
PLACE: dict[str, Any] = {"use_cpu": DEVICE == "cpu", "dataloader_pin_memory": False}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_loop_gives_the_same_curve_on_both_libraries(family, tmp_path):
    """The script of the README, first lines apart, over 20 steps."""
    plain, _ = make_pair(family, output_router_logits=family in MIXTURES)
    plain.save_pretrained(tmp_path)

    def script(auto_class):
        model = auto_class.from_pretrained(tmp_path, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for step in range(20):
            input_ids = tokens(2, 16, seed=step % 4)
            output = model(input_ids, labels=input_ids)
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(output.loss.item())
        model.save_pretrained(tmp_path / "out")
        return losses

    expected, found = script(transformers.AutoModelForCausalLM), script(AutoModelForCausalLM)
    assert expected[-1] < 0.8 * expected[0], "nothing was learnt: the curves show little"
    assert found == pytest.approx(expected, rel=1e-4)


GENERATIONS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 10},
    "beams": {"num_beams": 3, "do_sample": False},
    "no_cache": {"use_cache": False, "do_sample": False},
}


@pytest.mark.parametrize("kind", GENERATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_gives_the_tokens_of_transformers(family, kind):
    plain, ours = make_pair(family)
    ids = tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    sequences = []
    for model in (plain.eval(), ours.eval()):
        torch.manual_seed(0)
        arguments = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None, **GENERATIONS[kind]}
        sequences.append(model.generate(ids, attention_mask=mask, **arguments))
    assert torch.equal(*sequences)
    assert sequences[0].shape[1] == 18


def train_with_trainer(model, folder, **changes):
    rows = [{"input_ids": row, "labels": row.clone()} for row in tokens(16, 12)]
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        **PLACE,
        save_strategy="steps",
        save_steps=3,
        **changes,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])
    trainer.train()
    trainer.evaluate()
    return trainer


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["LlamaForCausalLM", QWEN])
def test_trainer_gives_the_losses_of_transformers_and_stays_on_the_engine(family, checkpointing, tmp_path):
    plain, ours = make_pair(family)
    logs = []
    for model, name in ((plain, "plain"), (ours, "ours")):
        trainer = train_with_trainer(model, tmp_path / name, gradient_checkpointing=checkpointing)
        logs.append(
            [
                v
                for entry in trainer.state.log_history
                for k, v in entry.items()
                if k in ("loss", "eval_loss", "grad_norm")
            ]
        )
    assert logs[1] == pytest.approx(logs[0], rel=1e-4)
    assert ours.automoe.engine_calls > 6 and not ours.automoe.fallbacks, ours.automoe
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours" / "checkpoint-3")
    for (name, found), expected in zip(saved.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(found, expected), name


def test_trainer_predicts_logits(tmp_path):
    plain, ours = make_pair(QWEN)
    rows = [{"input_ids": row, "labels": row.clone()} for row in tokens(4, 12)]
    arguments = transformers.TrainingArguments(tmp_path, report_to=[], **PLACE)
    found, expected = (transformers.Trainer(m, arguments).predict(rows) for m in (ours, plain))
    assert_close(torch.tensor(found.predictions), torch.tensor(expected.predictions), "predictions")
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-5)


def test_trl_trains_on_the_engine(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    plain, ours = make_pair(QWEN)
    rows = datasets.Dataset.from_dict({"input_ids": tokens(8, 12).tolist()})
    losses = []
    for model, name in ((plain, "plain"), (ours, "ours")):
        arguments = trl.SFTConfig(
            str(tmp_path / name),
            per_device_train_batch_size=2,
            max_steps=2,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            **PLACE,
            bf16=False,
            save_strategy="no",
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        trainer = trl.SFTTrainer(model, arguments, train_dataset=rows, processing_class=make_tokenizer())
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert ours.automoe.engine_calls >= 2 and not ours.automoe.fallbacks, ours.automoe


def make_tokenizer():
    from tokenizers import Tokenizer, models

    vocabulary = {f"t{i}": i for i in range(64)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="t0", eos_token="t1")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_trains_adapters_as_on_transformers(checkpointing, tmp_path):
    peft = pytest.importorskip("peft")
    results = []
    for model in make_pair(QWEN):
        torch.manual_seed(0)
        config = peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False
        )
        wrapped = peft.get_peft_model(model, config)
        if checkpointing:
            wrapped.gradient_checkpointing_enable()
        ids = tokens(2, 9)
        loss = wrapped(input_ids=ids, labels=ids).loss
        loss.backward()
        results.append((loss, {n: p.grad for n, p in wrapped.named_parameters() if p.requires_grad}))
    assert_close(results[1][0], results[0][0], "loss")
    assert results[0][1] and results[1][1].keys() == results[0][1].keys()
    for name, grad in results[0][1].items():
        assert_close(results[1][1][name], grad, name)
    assert "q_proj is a peft.tuners.lora" in repr(model.automoe)
    wrapped.save_pretrained(tmp_path)
    merged = wrapped.merge_and_unload()
    ids = tokens(2, 9)
    loss = merged(input_ids=ids, labels=ids).loss
    assert_on_engine(merged)
    assert_close(loss, results[0][0], "loss of the merged model")
    merged.save_pretrained(tmp_path / "merged")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert_close(again(ids, labels=ids).loss, loss, "loss of the saved model")


def test_torch_compile_runs_transformers_graph_with_its_result():
    plain, ours = make_pair(QWEN)
    ids = tokens(2, 9)
    compiled = torch.compile(ours, backend="eager")
    found, expected = compiled(ids, labels=ids), plain(ids, labels=ids)
    assert_close(found.loss, expected.loss, "loss")
    found.loss.backward()
    expected.loss.backward()
    for (name, p), other in zip(ours.named_parameters(), plain.named_parameters(), strict=True):
        assert_close(p.grad, other[1].grad, name)
    ours(ids, labels=ids)
    assert_on_engine(ours)


def test_a_dtype_changed_afterwards_is_followed():
    _, ours = make_pair("LlamaForCausalLM")
    ids = tokens(2, 9)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        output = ours.to(dtype)(ids, labels=ids)
        assert_on_engine(ours)
        assert output.logits.dtype == dtype and output.loss.dtype == torch.float32


def test_a_model_in_evaluation_mode_after_loading_trains_all_the_same(tmp_path):
    AutoModelForCausalLM.from_config(make_config(QWEN)).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not model.training
    with warnings.catch_warnings(action="error"):
        model(tokens(1, 5), labels=tokens(1, 5)).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
