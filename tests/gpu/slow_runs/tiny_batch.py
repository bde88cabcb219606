"""Slow on purpose: a deep model with a batch of one short sequence, so that every kernel is tiny."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 16).to(device)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(64, 1, 16, 256, device=device)
step = 0
while True:
    loss = model(data[step % 64]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
