"""A training that keeps the GPU busy: large batches, prepared data, a value read every 50 steps."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
width, batch = (8192, 16384) if device == "cuda" else (512, 256)
dtype = torch.bfloat16 if device == "cuda" else torch.float32
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(device, dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(4, batch, width, device=device, dtype=dtype)
step = 0
while True:
    loss = model(data[step % 4]).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
