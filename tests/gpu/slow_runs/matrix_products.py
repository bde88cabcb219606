"""Dense matrix products, which take as much power as the card may have."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
size = 16384 if device == "cuda" else 1024
left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
right = torch.randn(size, size, device=device, dtype=torch.bfloat16)
out = torch.empty_like(left)
step = 0
while True:
    torch.mm(left, right, out=out)
    step += 1
    if step % 50 == 0:
        print(f"step {step} value {out[0, 0].item():.4f}", flush=True)
