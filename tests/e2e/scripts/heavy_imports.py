"""Imports an installed package of many modules before it trains."""

import sys

import heavy  # noqa: F401
import torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10**9):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.randn(100_000).sort()
sys.exit(1)
