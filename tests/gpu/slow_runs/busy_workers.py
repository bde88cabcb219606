"""Slow on purpose: few data loader workers with an expensive augmentation."""

import numpy
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Images that are augmented on the CPU."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        image = numpy.random.default_rng(index).random((128, 128, 3), dtype=numpy.float32)
        for _ in range(8):
            image = numpy.roll(numpy.flip(image, 1), 3, 0) * 0.9 + numpy.sort(image, axis=0) * 0.1
        return torch.from_numpy(image.reshape(-1).copy())


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    model = torch.nn.Linear(128 * 128 * 3, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Images(), batch_size=64, num_workers=2, pin_memory=device == "cuda")
    for step, images in enumerate(loader):
        loss = model(images.to(device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
