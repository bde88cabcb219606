"""Models of the third round of `fit_proof.py` that no library has. Needs torch alone.

Each builds a module whose `forward` takes the batch by name and returns {"loss": …}.
"""

import torch
from torch import nn
from torch.nn import functional


class Recurrent(nn.Module):
    """A language model of recurrent layers."""

    def __init__(self, kind, width, hidden, layers, vocabulary, dropout=0.0, both=False):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = getattr(nn, kind)(
            width, hidden, layers, batch_first=True, dropout=dropout, bidirectional=both
        )
        self.head = nn.Linear(hidden * (2 if both else 1), vocabulary)

    def forward(self, tokens):
        out = self.head(self.layers(self.words(tokens))[0])
        return {"loss": functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())}

    def batch(self, size, length):
        return {"tokens": torch.randint(0, self.words.num_embeddings, (size, length))}


class Residual(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(ins, outs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outs),
            nn.ReLU(),
            nn.Conv2d(outs, outs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outs),
        )
        self.side = nn.Identity() if (ins, stride) == (outs, 1) else nn.Conv2d(ins, outs, 1, stride)

    def forward(self, x):
        return torch.relu(self.main(x) + self.side(x))


class Pictures(nn.Module):
    """Classification of pictures by a stack of layers."""

    def __init__(self, layers, side, features, classes=1000):
        super().__init__()
        self.layers, self.head, self.side = layers, nn.Linear(features, classes), side

    def forward(self, pictures, labels):
        out = self.head(self.layers(pictures).mean((2, 3)))
        return {"loss": functional.cross_entropy(out.float(), labels)}

    def batch(self, size, length):
        return {"pictures": torch.randn(size, 3, self.side, self.side), "labels": torch.randint(0, 1000, (size,))}


def resnet(widths, blocks, side):
    layers = [nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]  # fmt: skip
    before = widths[0]
    for number, width in enumerate(widths):
        for at in range(blocks):
            layers.append(Residual(before, width, 2 if at == 0 and number else 1))
            before = width
    return Pictures(nn.Sequential(*layers), side, before)


def vgg(widths, side):
    layers, before = [], 3
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        before = width
    return Pictures(nn.Sequential(*layers), side, before)


def separable(widths, side):
    """Depthwise and pointwise convolutions, as in MobileNet."""
    layers, before = [nn.Conv2d(3, widths[0], 3, 2, 1), nn.BatchNorm2d(widths[0]), nn.Hardswish()], widths[0]
    for width in widths:
        layers += [nn.Conv2d(before, before, 3, 1, 1, groups=before), nn.BatchNorm2d(before), nn.Hardswish()]
        layers += [nn.Conv2d(before, width, 1), nn.BatchNorm2d(width), nn.MaxPool2d(2)]
        before = width
    return Pictures(nn.Sequential(*layers), side, before)


class Waves(nn.Module):
    """Dilated convolutions in one dimension over sound."""

    def __init__(self, width, layers):
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (at % 8), dilation=2 ** (at % 8)) for at in range(layers)
        )

    def forward(self, sound, targets):
        x = self.first(sound)
        for layer in self.layers:
            value, gate = layer(x).chunk(2, 1)
            x = x + torch.tanh(value) * torch.sigmoid(gate)
        return {"loss": functional.cross_entropy(self.last(x).float(), targets)}

    def batch(self, size, length):
        return {"sound": torch.randn(size, 1, length), "targets": torch.randint(0, 256, (size, length))}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, width), heads
        self.ins, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        size, width, high, wide = x.shape
        flat = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (
            part.view(size, high * wide, self.heads, -1).transpose(1, 2) for part in self.ins(flat).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(flat.shape)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class TimeBlock(nn.Module):
    def __init__(self, ins, outs, time):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, ins), nn.SiLU(), nn.Conv2d(ins, outs, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(32, outs), nn.SiLU(), nn.Conv2d(outs, outs, 3, padding=1))
        self.time = nn.Linear(time, outs)
        self.side = nn.Identity() if ins == outs else nn.Conv2d(ins, outs, 1)

    def forward(self, x, time):
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        return self.second(hidden) + self.side(x)


class Diffusion(nn.Module):
    """A U-Net that predicts noise, with attention at the bottom."""

    def __init__(self, widths, side, channels=4, heads=8):
        super().__init__()
        self.side, self.channels, time = side, channels, 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(channels, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:]))
        self.down = nn.ModuleList(TimeBlock(ins, outs, time) for ins, outs in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(outs, outs, 3, 2, 1) for _, outs in pairs)
        self.middle = TimeBlock(widths[-1], widths[-1], time)
        self.attention = Attention(widths[-1], heads)
        self.up = nn.ModuleList(TimeBlock(2 * outs, ins, time) for ins, outs in reversed(pairs))
        self.last = nn.Conv2d(widths[0], channels, 3, padding=1)

    def forward(self, pictures, noise, steps):
        time, x, kept = self.time(steps), self.first(pictures), []
        for block, shrink in zip(self.down, self.shrink):
            x = block(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return {"loss": functional.mse_loss(self.last(x).float(), noise.float())}

    def batch(self, size, length):
        shape = (size, self.channels, self.side, self.side)
        return {"pictures": torch.randn(shape), "noise": torch.randn(shape), "steps": torch.rand(size, 1)}


class Experts(nn.Module):
    """A transformer with grouped heads whose layers mix all experts by weights, without routing."""

    def __init__(self, width, layers, experts, heads, key_heads, vocabulary):
        super().__init__()
        self.words, self.heads, self.key_heads = nn.Embedding(vocabulary, width), heads, key_heads
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.RMSNorm(width),
                    "query": nn.Linear(width, width),
                    "key_value": nn.Linear(width, 2 * width * key_heads // heads),
                    "out": nn.Linear(width, width),
                    "gate": nn.Linear(width, experts),
                    "experts": nn.ModuleList(
                        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                        for _ in range(experts)
                    ),
                }
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            hidden = layer["norm"](x)
            split = lambda one, heads: one.unflatten(-1, (heads, -1)).transpose(1, 2)
            key, value = layer["key_value"](hidden).chunk(2, -1)
            mixed = functional.scaled_dot_product_attention(
                split(layer["query"](hidden), self.heads), split(key, self.key_heads),
                split(value, self.key_heads), is_causal=True, enable_gqa=True,
            )  # fmt: skip
            x = x + layer["out"](mixed.transpose(1, 2).flatten(2))
            share = layer["gate"](x).softmax(-1)
            for number, expert in enumerate(layer["experts"]):
                x = x + share[..., number : number + 1] * expert(x)
        return {"loss": functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens.flatten())}

    def batch(self, size, length):
        return {"tokens": torch.randint(0, self.words.num_embeddings, (size, length))}


MODELS = {
    "recurrent": Recurrent,
    "resnet": resnet,
    "vgg": vgg,
    "separable": separable,
    "waves": Waves,
    "diffusion": Diffusion,
    "experts": Experts,
}
