"""Faults that users of fine-tuning tools reported, each as a test of its kind."""

import pytest
import torch
from oracle import (
    BALANCED,
    DEVICE,
    FAMILIES,
    GPT_OSS,
    assert_close,
    assert_documents_are_apart,
    assert_on_engine,
    make_pair,
    packed,
    padded,
    run,
    run_plain,
    tokens,
)
from torch.utils._python_dispatch import TorchDispatchMode

QWEN = "Qwen3MoeForCausalLM"
DOCUMENTS = (5, 9, 3)


def test_n1_renormalisation_changes_the_logits_and_follows_the_config():
    """Against Transformers in test_forward_backward; here: the flag is not ignored."""
    _, on = make_pair(QWEN, norm_topk_prob=True)
    _, off = make_pair(QWEN, norm_topk_prob=False)
    ids = tokens(2, 9)
    assert not torch.allclose(on(ids).logits, off(ids).logits, atol=1e-3)


@pytest.mark.parametrize("family", BALANCED)
def test_n2_the_balance_loss_is_on_with_its_coefficient_or_absent(family):
    _, ours = make_pair(family, router_aux_loss_coef=0.01)
    batch = padded("left")
    on, off = ours(**batch, output_router_logits=True), ours(**batch)
    torch.testing.assert_close(on.loss - off.loss, 0.01 * on.aux_loss, rtol=1e-4, atol=0)
    assert off.aux_loss is None and off.router_logits is None


@pytest.mark.parametrize("family", BALANCED)
def test_n2_asked_for_in_the_config_it_needs_no_other_flag(family):
    _, ours = make_pair(family, output_router_logits=True)
    assert ours(**packed()).aux_loss is not None


@pytest.mark.parametrize("family", BALANCED)
def test_n3_the_balance_loss_is_the_same_beside_a_mean_and_a_sum(family):
    _, ours = make_pair(family, router_aux_loss_coef=0.01)
    batch = {**packed(), "output_router_logits": True}
    mean, total = ours(**batch), ours(**batch, num_items_in_batch=1)
    assert torch.equal(mean.aux_loss, total.aux_loss)
    count = (batch["labels"][:, 1:] != -100).sum()
    part = 0.01 * mean.aux_loss
    torch.testing.assert_close(total.loss - part, (mean.loss - part) * count, rtol=1e-5, atol=0)


def pad_to(batch: dict, length: int, side: str) -> dict:
    extra = length - batch["input_ids"].shape[1]
    where = (extra, 0) if side == "left" else (0, extra)
    values = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {k: torch.nn.functional.pad(x, where, value=values[k]) for k, x in batch.items()}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", BALANCED)
def test_n4_padding_does_not_count_in_the_balance_loss(family, side):
    _, ours = make_pair(family, router_aux_loss_coef=1.0)
    short, long = (pad_to(padded(side), length, side) for length in (16, 64))
    expected, found = (run(ours, **batch, output_router_logits=True) for batch in (short, long))
    assert_close(found.output.aux_loss, expected.output.aux_loss, "balance loss", 1e-6)
    for name, grad in expected.grads.items():
        if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            torch.testing.assert_close(found.grads[name], grad, rtol=0, atol=1e-6)


def documents_both_ways() -> tuple[dict, dict]:
    """The same documents as a padded batch and as one packed row."""
    rows = [tokens(1, length, seed=length)[0] for length in DOCUMENTS]
    batch = padded("right", DOCUMENTS)
    for i, row in enumerate(rows):
        batch["input_ids"][i, : len(row)] = row
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    positions = torch.cat([torch.arange(length) for length in DOCUMENTS]).unsqueeze(0).to(DEVICE)
    ids = torch.cat(rows).unsqueeze(0)
    row = {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, -100)}
    return batch, row


@pytest.mark.parametrize("family", BALANCED)
def test_n5_padded_or_packed_the_balance_loss_and_everything_else_are_equal(family):
    _, ours = make_pair(family, router_aux_loss_coef=0.1)
    expected, found = (run(ours, **batch, output_router_logits=True) for batch in documents_both_ways())
    assert_on_engine(ours)
    assert_close(found.output.aux_loss, expected.output.aux_loss, "balance loss", 1e-6)
    assert_close(found.output.loss, expected.output.loss, "loss", 1e-6)
    for name, grad in expected.grads.items():
        assert_close(found.grads[name], grad, name)


@pytest.mark.parametrize("pads", [0, 5, 10])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_n6_logits_do_not_depend_on_padding_and_padding_is_exactly_zero(family, side, pads):
    """11 tokens wide; with 10 pads a row has one real token."""
    _, ours = make_pair(family)
    batch = padded(side, (11, 11 - pads))
    found = run(ours, **batch)
    for row, mask in enumerate(batch["attention_mask"].bool()):
        alone = ours(batch["input_ids"][row][mask].unsqueeze(0)).logits[0]
        assert_close(found.output.logits[row][mask], alone, f"row {row}")
        assert (found.output.logits[row][~mask] == 0).all()
    assert all(torch.isfinite(grad).all() for grad in found.grads.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_n6_a_row_without_any_token_changes_nothing(family):
    _, ours = make_pair(family)
    batch = padded("left", (7, 4))
    empty = {
        k: torch.cat([x, torch.full_like(x[:1], -100 if k == "labels" else 0)]) for k, x in batch.items()
    }
    expected, found = run(ours, **batch), run(ours, **empty)
    assert_close(found.output.loss, expected.output.loss, "loss", 1e-6)
    assert (found.output.logits[2] == 0).all()
    for name, grad in expected.grads.items():
        assert_close(found.grads[name], grad, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_n6_before_the_first_token_of_a_row_nothing_is_learnt(family):
    """Left padding and labels on every token: the last pad has no say in the first token."""
    _, ours = make_pair(family)
    losses = []
    for side in ("left", "right"):
        batch = padded(side, (9, 4))
        ids = tokens(2, 9)
        batch["input_ids"][1][batch["attention_mask"][1].bool()] = ids[1, :4]
        batch["input_ids"][0] = ids[0]
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        losses.append(ours(**batch).loss)
    assert_close(losses[0], losses[1], "loss", 1e-6)


@pytest.mark.parametrize("length", [7, 300])
def test_n7_a_sink_has_its_exact_gradient_and_moves(length):
    plain, ours = make_pair(GPT_OSS)
    ids = tokens(2, length)
    expected, found = (run(model, input_ids=ids, labels=ids, use_cache=False) for model in (plain, ours))
    assert_on_engine(ours)
    sinks = {name: p for name, p in ours.named_parameters() if name.endswith("sinks")}
    assert len(sinks) == 2
    before = {name: p.detach().clone() for name, p in sinks.items()}
    for name in sinks:
        assert (found.grads[name] != 0).all()
        assert_close(found.grads[name], expected.grads[name], name)
    torch.optim.SGD(ours.parameters(), lr=1.0).step()
    assert all((p != before[name]).all() for name, p in sinks.items())


def test_n7_attention_with_sinks_makes_no_tensor_of_length_times_length():
    plain, ours = make_pair(GPT_OSS)
    length = 1500
    ids = tokens(1, length)
    with LargestTensor() as theirs:
        run(plain, input_ids=ids, labels=ids, use_cache=False)
    with LargestTensor() as largest:
        run(ours, input_ids=ids, labels=ids)
    assert_on_engine(ours)
    assert theirs.elements >= length * length, "the mode does not see what it should"
    assert largest.elements < length * length / 2


@pytest.mark.parametrize(
    ("family", "window"),
    [
        *(
            (family, window)
            for family in ("MistralForCausalLM", "MixtralForCausalLM", QWEN)
            for window in (None, 3)
        ),
        (GPT_OSS, 3),
        (GPT_OSS, 300),
    ],
)
def test_c1_a_packed_document_does_not_see_its_neighbour(family, window):
    _, ours = make_pair(family, sliding_window=window, use_sliding_window=window is not None)
    assert_documents_are_apart(ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_c1_packing_needs_no_use_cache_argument(family):
    """In Transformers a training call without use_cache=False makes a cache, and then documents leak."""
    plain, ours = make_pair(family)
    batch = packed()
    assert ours.config.use_cache
    assert_close(ours(**batch).loss, run_plain(plain, use_cache=False, **batch).output.loss, "loss")


@pytest.mark.parametrize("count", [None, 0, 5])
@pytest.mark.parametrize(
    ("family", "balance"), [*((f, False) for f in FAMILIES), *((f, True) for f in BALANCED)]
)
def test_t2_a_batch_without_labels_gives_loss_zero_and_no_update(family, balance, count):
    _, ours = make_pair(family, router_aux_loss_coef=0.0)
    ids = tokens(2, 9)
    router = {"output_router_logits": True} if balance else {}
    found = run(ours, input_ids=ids, labels=torch.full_like(ids, -100), num_items_in_batch=count, **router)
    assert found.output.loss == 0
    assert all((grad == 0).all() for grad in found.grads.values())
    before = {name: p.clone() for name, p in ours.named_parameters()}
    torch.optim.SGD(ours.parameters(), lr=1.0).step()
    assert all(torch.equal(p, before[name]) for name, p in ours.named_parameters())


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any op makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return result


def test_m1_a_huge_vocabulary_never_makes_tokens_times_vocabulary():
    vocabulary = 262144
    changes = {"vocab_size": vocabulary, "hidden_size": 16, "head_dim": 8, "output_router_logits": True}
    plain, ours = make_pair(QWEN, router_aux_loss_coef=0.01, **changes)
    count = 64 if DEVICE == "cpu" else 4096  # a GPU takes more rows at a time
    ids = tokens(1, count + 1, vocabulary=vocabulary)
    with LargestTensor() as theirs:
        expected = run(plain, input_ids=ids, labels=ids, use_cache=False)
    with LargestTensor() as largest:
        found = run(ours, input_ids=ids, labels=ids)
    assert_on_engine(ours)
    assert theirs.elements >= count * vocabulary, "the mode does not see what it should"
    assert largest.elements < count * vocabulary
    assert_close(found.output.loss, expected.output.loss, "loss, balance loss included")
    for name, grad in expected.grads.items():
        assert_close(found.grads[name], grad, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_t1_the_same_batch_in_more_parts_gives_the_same_gradients(family):
    _, ours = make_pair(family)
    rows = padded("right", (3, 40, 17, 9, 25, 31))
    count = (rows["labels"][:, 1:] != -100).sum()

    def in_parts(size: int):
        ours.zero_grad()
        loss = 0.0
        for i in range(0, 6, size):
            part = {k: x[i : i + size] for k, x in rows.items()}
            result = ours(**part, num_items_in_batch=count).loss
            result.backward()
            loss += result.detach()
        return loss, {name: p.grad.clone() for name, p in ours.named_parameters()}

    expected, grads = in_parts(6)
    for size in (1, 3):
        loss, found = in_parts(size)
        assert_close(loss, expected, "loss")
        for name, grad in grads.items():
            assert_close(found[name], grad, name)
