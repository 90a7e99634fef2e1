"""Outputs look and behave like Transformers', although logits beside a loss are computed on demand."""

import copy
import pickle

import pytest
import torch
from automoe import running
from oracle import FAMILIES, assert_close, make_pair, tokens
from torch.utils import _pytree
from transformers.utils import ModelOutput

READERS = {
    "attribute": lambda output: output.logits,
    "key": lambda output: output["logits"],
    "get": lambda output: output.get("logits"),
    "index": lambda output: output[1],
    "negative_index": lambda output: output[-1],
    "slice": lambda output: output[1:][0],
    "to_tuple": lambda output: output.to_tuple()[1],
    "items": lambda output: dict(output.items())["logits"],
    "values": lambda output: list(output.values())[1],
    "iteration": lambda output: {key: output[key] for key in output}["logits"],
    "unpacked": lambda output: dict(**output)["logits"],
    "pytree": lambda output: _pytree.tree_leaves(output)[1],
    "rebuilt": lambda output: type(output)({key: value for key, value in output.items()}).logits,
    "deepcopy": lambda output: copy.copy(output).logits,
}


@pytest.fixture
def counted(monkeypatch):
    """Counts how often logits are computed."""
    calls = []
    compute = running._Logits.__call__
    monkeypatch.setattr(running._Logits, "__call__", lambda self: calls.append(1) or compute(self))
    return calls


@pytest.mark.parametrize("reader", READERS)
def test_every_way_to_read_logits_gives_them(reader, counted):
    plain, ours = make_pair("LlamaForCausalLM")
    ids = tokens(2, 7)
    output = ours(ids, labels=ids)
    assert not counted
    assert_close(READERS[reader](output), plain(ids, labels=ids, use_cache=False).logits, "logits")
    output.logits, output["logits"]
    assert len(counted) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_anything_else_computes_none(family, counted):
    _, ours = make_pair(family)
    ids = tokens(2, 7)
    output = ours(ids, labels=ids)
    assert output.loss is output["loss"] is output[0] is output.get("loss")
    assert "loss" in output and "logits" in output and "hidden_states" not in output
    assert output.past_key_values is None and output.hidden_states is None and output.get("cache") is None
    assert len(output) == 2 and isinstance(output, ModelOutput)
    output.loss.backward()
    assert not counted


@pytest.mark.parametrize("family", FAMILIES)
def test_type_keys_and_order_are_those_of_transformers(family):
    plain, ours = make_pair(family)
    ids = tokens(2, 7)
    router = {"output_router_logits": True} if "Moe" in family or "Mixtral" in family else {}
    for batch in ({"labels": ids}, {}, {"labels": ids, **router}, router):
        expected, found = plain(ids, use_cache=False, **batch), ours(ids, use_cache=False, **batch)
        assert list(found) == list(expected) and len(found) == len(expected)
        assert type(found).__name__ == type(expected).__name__ and isinstance(found, type(expected))
        assert [type(x) for x in found.to_tuple()] == [type(x) for x in expected.to_tuple()]
        assert repr(found).startswith(type(expected).__name__)


@pytest.mark.parametrize("family", FAMILIES)
def test_return_dict_false_gives_the_tuple(family):
    plain, ours = make_pair(family)
    ids = tokens(2, 7)
    expected = plain(ids, labels=ids, use_cache=False, return_dict=False)
    found = ours(ids, labels=ids, use_cache=False, return_dict=False)
    assert type(found) is tuple and len(found) == len(expected)
    for i, x in enumerate(expected):
        assert_close(found[i], x, f"element {i}")
    ours.config.return_dict = False
    assert type(ours(ids, labels=ids)) is tuple


def test_gradients_flow_through_logits_read_late_even_inside_no_grad():
    plain, ours = make_pair("Qwen3MoeForCausalLM")
    ids = tokens(2, 7)
    output, expected = ours(ids, labels=ids), plain(ids, labels=ids, use_cache=False)
    with torch.no_grad():
        assert output.logits.requires_grad
    for each in (output, expected):
        (each.loss + each.logits.sin().mean()).backward()
    for (name, found), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert_close(found.grad, other.grad, name)


def test_logits_of_an_evaluation_need_no_gradient():
    _, ours = make_pair("LlamaForCausalLM")
    with torch.no_grad():
        output = ours(tokens(2, 7), labels=tokens(2, 7))
    assert not output.logits.requires_grad and not output.loss.requires_grad


def test_logits_read_after_the_weights_moved_are_an_error_and_no_wrong_number():
    _, ours = make_pair("LlamaForCausalLM")
    ids = tokens(2, 7)
    early, late = ours(ids, labels=ids), ours(ids, labels=ids)
    kept = early.logits.detach().clone()
    late.loss.backward()
    torch.optim.SGD(ours.parameters(), lr=0.1).step()
    assert torch.equal(early.logits, kept)
    with pytest.raises(RuntimeError, match=r"before `optimizer.step\(\)`"):
        late.logits  # noqa: B018


def test_an_output_can_be_pickled_and_assigned_to():
    _, ours = make_pair("Qwen3MoeForCausalLM")
    ids = tokens(2, 7)
    with torch.no_grad():
        output = ours(ids, labels=ids)
    again = pickle.loads(pickle.dumps(output))
    assert torch.equal(again.logits, output.logits) and torch.equal(again.loss, output.loss)
    with torch.no_grad():
        other = ours(ids, labels=ids)
    other.logits = torch.ones(1)
    other["loss"] = torch.zeros(())
    assert torch.equal(other.to_tuple()[1], torch.ones(1)) and other.loss == 0
