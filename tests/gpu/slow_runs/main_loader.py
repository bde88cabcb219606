"""Slow on purpose: the main process reads and augments every image itself (num_workers=0)."""

import numpy
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Images that are decoded and augmented in Python."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        image = numpy.random.default_rng(index).random((128, 128, 3), dtype=numpy.float32)
        for _ in range(4):
            image = numpy.roll(numpy.flip(image, 1), 3, 0) * 0.9 + numpy.sort(image, axis=0) * 0.1
        return torch.from_numpy(image.reshape(-1).copy())


device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(128 * 128 * 3, 100).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step, images in enumerate(DataLoader(Images(), batch_size=64)):
    loss = model(images.to(device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
