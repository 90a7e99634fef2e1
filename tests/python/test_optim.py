"""automoe.AdamW beside torch.optim.AdamW."""

import copy

import pytest
import torch
from automoe import AdamW


def parameters(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((33, 17), (5,), (1,))
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give_gradients(lists, step):
    for values in zip(*lists, strict=True):
        gradient = torch.randn(values[0].shape, generator=torch.Generator().manual_seed(step))
        for value in values:
            value.grad = gradient.to(value.dtype)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fp32_follows_torch(decay):
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    optimizers = [
        kind(p, lr=3e-2, betas=(0.8, 0.95), weight_decay=decay)
        for kind, p in ((AdamW, ours), (torch.optim.AdamW, theirs))
    ]
    for step in range(20):
        give_gradients((ours, theirs), step)
        for optimizer in optimizers:
            optimizer.step()
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("master", [True, False])
def test_bf16_learns_at_rates_below_its_spacing(master):
    """T4: plain bf16 does not move at all."""
    weight = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=1e-5, weight_decay=0.0, master_weights=master)
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    held = optimizer.state[weight]["master"] if master else weight
    assert 0.009 < 1 - held.double().mean().item() < 0.011


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("master", [True, False])
def test_a_reloaded_state_goes_on_with_the_same_bits(dtype, master):
    first = parameters(dtype)
    optimizer = AdamW(first, lr=1e-2, master_weights=master, seed=3)
    for step in range(3):
        give_gradients((first,), step)
        optimizer.step()
    second = copy.deepcopy(first)
    again = AdamW(second, lr=1e-2, master_weights=master, seed=3)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, 6):
        give_gradients((first, second), step)
        optimizer.step()
        again.step()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_groups_schedulers_and_parameters_without_gradient_work_as_in_torch():
    moving, still = parameters(torch.bfloat16)[:2]
    before = still.detach().clone()
    optimizer = AdamW([{"params": [moving], "lr": 0.1}, {"params": [still]}])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    moving.grad = torch.ones_like(moving)
    optimizer.step()
    scheduler.step()
    at_first = moving.detach().clone()
    optimizer.step()
    assert torch.equal(moving, at_first) and torch.equal(still, before)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="betas"):
        AdamW(parameters(torch.float32), betas=(0.9, 1.0))
    half = parameters(torch.float16)
    half[0].grad = torch.ones_like(half[0])
    with pytest.raises(ValueError, match="master_weights=True"):
        AdamW(half).step()
