"""What the engine does not cover runs in Transformers' forward, with its result, and says so."""

import contextlib
import copy
import warnings

import pytest
import torch
import transformers
from automoe import AutoModelForCausalLM, FallbackWarning
from oracle import DEVICE, assert_close, assert_on_engine, make_pair, packed, run, tokens
from torch import nn
from torch.nn.utils import parametrize

QWEN = "Qwen3MoeForCausalLM"
IDS = tokens(2, 9)


def causal_mask(_):
    return {"attention_mask": torch.full((2, 1, 9, 9), -1e9).triu(1).to(IDS.device)}


# name -> (what to add to the call, words of the reason)
CALLS = {
    "cache": (lambda m: {"past_key_values": transformers.DynamicCache()}, "cache is given"),
    "use_cache": (lambda _: {"use_cache": True}, "cache is asked for"),
    "attentions": (lambda _: {"output_attentions": True}, "output_attentions"),
    "hidden_states": (lambda _: {"output_hidden_states": True}, "output_hidden_states"),
    "mask_4d": (causal_mask, "attention_mask does not have the shape"),
    "embeddings": (
        lambda m: {"input_ids": None, "inputs_embeds": m.get_input_embeddings()(IDS)},
        "inputs_embeds is given",
    ),
    "shift_labels": (lambda _: {"shift_labels": IDS, "use_cache": False}, "shift_labels is not covered"),
    "varlen": (lambda _: {"cu_seq_lens_q": torch.tensor([0, 18])}, "cu_seq_lens_q is not covered"),
}
# What touches nothing below the head leaves the rest to the engine.
ONLY_THE_HEAD = {"shift_labels", "replaced_loss", "another_class", "parametrisation"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS)
def test_calls_that_are_not_covered(call):
    plain, ours = make_pair(QWEN)
    make, words = CALLS[call]
    results = []
    for model in (plain, ours):
        batch = {"input_ids": IDS, "labels": IDS, **make(model)}
        results.append(run(model, **{k: v for k, v in batch.items() if v is not None}))
    path = "engine below the head" if call in ONLY_THE_HEAD else "transformers"
    assert ours.automoe.path == path and words in repr(ours.automoe)
    expected, found = results
    assert_close(found.output.loss, expected.output.loss, "loss")
    assert_close(found.output.logits, expected.output.logits, "logits")
    for name, grad in expected.grads.items():
        assert_close(found.grads[name], grad, name, zero=1e-6)
    assert list(found.output) == list(expected.output)


def hook_inside(model):
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)


def pre_hook_inside(model):
    model.model.layers[1].self_attn.q_proj.register_forward_pre_hook(lambda *_: None)


def backward_hook_inside(model):
    model.model.norm.register_full_backward_hook(lambda *_: None)


def another_class(model):
    class Other(nn.Linear): ...

    model.lm_head.__class__ = Other


def parametrisation(model):
    class Identity(nn.Module):
        def forward(self, x):
            return 1 * x

    parametrize.register_parametrization(model.lm_head, "weight", Identity())


def replaced_forward(model):
    layer = model.model.layers[0].mlp
    layer.forward = type(layer).forward.__get__(layer)


def replaced_loss(model):
    model.loss_function = lambda logits, labels, vocab_size, **_: logits.float().mean()


def config_attentions(model):
    model.set_attn_implementation("eager")
    model.config.output_attentions = True


def dropout(model):
    model.config.attention_dropout = 1e-9


def fewer_layers(model):
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1


def dynamic_attention(model):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    transformers.AttentionInterface.register("mine", sdpa_attention_forward)
    AttentionMaskInterface.register("mine", sdpa_mask)
    model.set_attn_implementation("mine")


MODELS = {
    hook_inside: "the module model.layers.1.mlp has forward hooks",
    pre_hook_inside: "the module model.layers.1.self_attn.q_proj has hooks",
    backward_hook_inside: "the module model.norm has hooks",
    another_class: "the module lm_head is a",
    parametrisation: "the module lm_head is a torch.nn.utils.parametrize",
    replaced_forward: "the forward of model.layers.0.mlp was replaced",
    replaced_loss: "the loss function was replaced",
    config_attentions: "output_attentions is asked for by the config",
    dropout: "attention_dropout is on",
    fewer_layers: "the parameters are not those of the config: model.layers.1",
    dynamic_attention: "attn_implementation is mine",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", MODELS, ids=lambda change: change.__name__)
def test_models_that_were_changed(change):
    plain, ours = make_pair(QWEN)
    results = []
    for model in (plain, ours):
        change(model)
        results.append(run(model, input_ids=IDS, labels=IDS, use_cache=False))
    path = "engine below the head" if change.__name__ in ONLY_THE_HEAD else "transformers"
    assert ours.automoe.path == path and MODELS[change] in repr(ours.automoe)
    assert_close(results[1].output.loss, results[0].output.loss, "loss", 1e-5)
    assert_close(results[1].output.logits, results[0].output.logits, "logits", 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_parameters_of_two_dtypes_fall_back():
    _, ours = make_pair(QWEN)
    ours.model.norm.double()
    with contextlib.suppress(RuntimeError):  # which Transformers' own forward raises
        ours(IDS, labels=IDS)
    assert "parameters differ in dtype or device: model.norm.weight" in repr(ours.automoe)


@pytest.mark.filterwarnings("ignore")
def test_mixtral_with_router_noise_falls_back_in_training_alone():
    _, ours = make_pair("MixtralForCausalLM", router_jitter_noise=0.1)
    ours(IDS, labels=IDS)
    assert "router_jitter_noise is on" in repr(ours.automoe)
    ours.eval()(IDS, labels=IDS)
    assert_on_engine(ours)


@pytest.mark.filterwarnings("ignore")
def test_holes_in_the_mask_with_a_sliding_window_fall_back():
    plain, ours = make_pair("MistralForCausalLM", sliding_window=3)
    mask = torch.ones_like(IDS)
    mask[1, 4] = 0
    batch = {"input_ids": IDS, "attention_mask": mask, "use_cache": False}
    assert_close(ours(**batch).logits[mask.bool()], plain(**batch).logits[mask.bool()], "logits")
    assert "holes" in repr(ours.automoe)


@pytest.mark.filterwarnings("ignore")
def test_autocast_to_another_dtype_falls_back_and_to_the_same_does_not():
    plain, ours = make_pair(QWEN)
    with torch.autocast(DEVICE, torch.bfloat16):
        expected, found = plain(IDS, labels=IDS), ours(IDS, labels=IDS)
    assert "autocast to torch.bfloat16 is on" in repr(ours.automoe)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-2, atol=0)
    ours.bfloat16()
    with torch.autocast(DEVICE, torch.bfloat16):
        inside = ours(IDS, labels=IDS)
    assert_on_engine(ours)
    assert torch.equal(inside.loss, ours(IDS, labels=IDS).loss)


def test_a_cache_comes_where_somebody_may_use_it():
    """In inference, and wherever it is asked for; a training step or a loss has no use for one."""
    _, ours = make_pair(QWEN)
    ours(IDS)
    assert_on_engine(ours)
    ours.eval()
    with torch.no_grad():
        ours(IDS, labels=IDS)
    assert_on_engine(ours)
    ours(IDS, use_cache=False)
    assert_on_engine(ours)
    with pytest.warns(FallbackWarning, match="use_cache"):
        assert ours(IDS).past_key_values.get_seq_length() == IDS.shape[1]
    ours.config.use_cache = False
    ours(IDS)
    assert_on_engine(ours)


def test_hooks_of_the_model_itself_and_those_of_transformers_are_no_reason():
    _, ours = make_pair(QWEN)
    seen = []
    ours.register_forward_hook(lambda *_: seen.append(1))
    ours.enable_input_require_grads()
    with warnings.catch_warnings(action="ignore"):
        ours(IDS, output_hidden_states=True)
        ours.activation_checkpointing_enable()
    ours(IDS, labels=IDS)
    assert_on_engine(ours)
    assert len(seen) == 2


def test_the_report_counts_and_warns_once_per_reason():
    _, ours = make_pair(QWEN)
    assert repr(ours.automoe) == "automoe: not called yet"
    with pytest.warns(FallbackWarning, match="output_attentions is asked for"):
        ours(IDS, output_attentions=True)
    with warnings.catch_warnings(action="error"):
        ours(IDS, labels=IDS)
        ours(IDS, output_attentions=True)
    status = ours.automoe
    assert status.engine_calls == 1 and status.fallbacks["output_attentions is asked for"] == 2
    assert status.path == "transformers" and status.reasons == ("output_attentions is asked for",)
    assert repr(status).splitlines() == [
        "automoe: the last call ran on transformers (output_attentions is asked for)",
        "engine calls: 1",
        "fallbacks: 2 x output_attentions is asked for",
    ]
    assert copy.deepcopy(ours).automoe.path is None


def test_strict_mode_turns_a_fallback_into_an_error(monkeypatch):
    _, ours = make_pair(QWEN)
    monkeypatch.setenv("AUTOMOE_STRICT", "1")
    ours(IDS, labels=IDS)
    with pytest.raises(RuntimeError, match=r"AUTOMOE_STRICT=1.*use_cache"):
        ours(IDS, labels=IDS, use_cache=True)


def test_the_backbone_called_by_itself_runs_on_the_engine():
    plain, ours = make_pair(QWEN)
    batch = {**packed(), "use_cache": False, "output_router_logits": True}
    del batch["labels"]
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):  # which position_ids say already
        batch[name] = torch.tensor([0, 5, 6, 13], dtype=torch.int32)
    expected, found = plain.model(**batch), ours.model(**batch)
    assert_on_engine(ours)
    assert list(found) == list(expected) and type(found) is type(expected)
    assert_close(found.last_hidden_state, expected.last_hidden_state, "hidden")
    for each in (found, expected):
        (each.last_hidden_state.sum() + each.router_logits[0].square().sum()).backward()
    for (name, p), other in zip(ours.model.named_parameters(), plain.model.parameters(), strict=True):
        assert_close(p.grad, other.grad, name)
    assert ours.lm_head.weight.grad is None
    assert ours.model.automoe is ours.automoe


def test_an_unknown_architecture_runs_with_our_ops():
    config = transformers.FlexOlmoConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_experts=4,
        num_experts_per_tok=2,
        pad_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    plain = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))
    ours = AutoModelForCausalLM.from_config(config)
    ours.load_state_dict(plain.state_dict())
    assert ours.config._experts_implementation == "automoe"
    with pytest.warns(FallbackWarning, match="FlexOlmoForCausalLM has no native implementation"):
        found = run(ours, input_ids=IDS, labels=IDS)
    expected = run(plain, input_ids=IDS, labels=IDS)
    assert_close(found.output.logits, expected.output.logits, "logits")
    for name, grad in expected.grads.items():
        assert_close(found.grads[name], grad, name, zero=1e-6)


def test_wrong_arguments_raise_what_transformers_raises():
    _, ours = make_pair(QWEN)
    with pytest.raises(TypeError):
        ours(IDS, None, None, None, None, None, None, None, 0, "one too many")
    with pytest.raises(ValueError), warnings.catch_warnings(action="ignore"):
        ours(labels=IDS)
    with pytest.raises(ValueError), warnings.catch_warnings(action="ignore"):
        ours(IDS, labels=IDS[:, :4])


def test_arguments_by_position_mean_what_they_mean_in_transformers():
    plain, ours = make_pair(QWEN)
    batch = packed()
    mask = torch.ones_like(batch["input_ids"])
    mask[0, 0] = 0
    found = ours(batch["input_ids"], mask, batch["position_ids"], use_cache=False)
    expected = plain(batch["input_ids"], mask, batch["position_ids"], use_cache=False)
    assert_on_engine(ours)
    assert_close(found.logits[mask.bool()], expected.logits[mask.bool()], "logits")


def test_a_changed_balance_coefficient_counts_as_in_transformers():
    plain, ours = make_pair(QWEN)
    for model in (plain, ours):
        model.router_aux_loss_coef = 0.5
        model.config.output_router_logits = True
    assert_close(ours(IDS, labels=IDS).loss, plain(IDS, labels=IDS, use_cache=False).loss, "loss")
    assert_on_engine(ours)


def test_resized_embeddings_stay_on_the_engine():
    plain, ours = make_pair("LlamaForCausalLM")
    for model in (plain, ours):
        torch.manual_seed(0)
        model.resize_token_embeddings(70, mean_resizing=False)
    ids = torch.full((2, 5), 68)
    assert_close(ours(ids, labels=ids).loss, plain(ids, labels=ids, use_cache=False).loss, "loss")
    assert_on_engine(ours)
