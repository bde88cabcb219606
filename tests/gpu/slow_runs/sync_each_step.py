"""Slow on purpose: reads a statistic of every layer and of every gradient from the GPU in each step."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
width = 1024 if device == "cuda" else 256
layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(48)).to(device)
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
data = torch.randn(8, 256, width, device=device)
step = 0
while True:
    x = data[step % 8]
    statistics = []
    for layer in layers:
        x = torch.relu(layer(x)) + x
        statistics.append(x.abs().mean().item())
    loss = x.square().mean()
    loss.backward()
    for parameter in layers.parameters():
        statistics.append(parameter.grad.abs().max().item())
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 100 == 0:
        print(f"step {step} largest {max(statistics):.4f}", flush=True)
