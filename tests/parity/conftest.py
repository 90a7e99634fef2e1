"""AUTOMOE_TEST_DEVICE=cuda: every model and tensor of these tests lies on the GPU."""

import torch
from oracle import DEVICE

if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
