"""Models of the third, fourth and fifth round of `fit_proof.py` that no library has. Needs torch alone.

Each builds a module whose `forward` takes the batch by name and returns {"loss": …}.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


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


class Speech(nn.Module):
    """Frames of sound to words: two strided convolutions, then projected recurrent layers in both directions."""

    def __init__(self, features, width, hidden, projection, layers, words):
        super().__init__()
        self.features, self.words = features, words
        self.shrink = nn.Sequential(
            nn.Conv1d(features, width, 5, 2, 2), nn.GELU(), nn.Conv1d(width, width, 5, 2, 2), nn.GELU()
        )
        self.norm = nn.LayerNorm(width)
        self.layers = nn.LSTM(
            width, hidden, layers, batch_first=True, dropout=0.1, bidirectional=True, proj_size=projection
        )
        self.head = nn.Linear(2 * projection, words)

    def forward(self, frames, labels):
        out = self.head(self.layers(self.norm(self.shrink(frames).transpose(1, 2)))[0])
        return {"loss": functional.cross_entropy(out.flatten(0, 1).float(), labels.flatten())}

    def batch(self, size, length):
        labels = torch.randint(0, self.words, (size, length // 4))
        return {"frames": torch.randn(size, self.features, length), "labels": labels}


class Vocoder(nn.Module):
    """Sound from spectra: transposed convolutions in one dimension, dilated residual ones between them."""

    def __init__(self, features, width, rates):
        super().__init__()
        self.features, self.rates = features, rates
        self.first = nn.Conv1d(features, width, 7, padding=3)
        self.grow, self.mix = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            self.grow.append(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2))
            width //= 2
            self.mix.append(
                nn.ModuleList(
                    nn.Sequential(
                        nn.LeakyReLU(0.1), nn.Conv1d(width, width, 3, padding=apart, dilation=apart),
                        nn.LeakyReLU(0.1), nn.Conv1d(width, width, 3, padding=1),
                    )
                    for apart in (1, 3, 5)
                )
            )  # fmt: skip
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, spectra, sound):
        x = self.first(spectra)
        for grow, mix in zip(self.grow, self.mix):
            x = grow(functional.leaky_relu(x, 0.1))
            for block in mix:
                x = x + block(x)
        return {"loss": functional.l1_loss(torch.tanh(self.last(x)).float(), sound.float())}

    def batch(self, size, length):
        samples = length
        for rate in self.rates:
            samples *= rate
        return {"spectra": torch.randn(size, self.features, length), "sound": torch.randn(size, 1, samples)}


def volume_block(ins, outs):
    return nn.Sequential(
        nn.Conv3d(ins, outs, 3, padding=1, bias=False), nn.InstanceNorm3d(outs, affine=True), nn.LeakyReLU(inplace=True),
        nn.Conv3d(outs, outs, 3, padding=1, bias=False), nn.InstanceNorm3d(outs, affine=True), nn.LeakyReLU(inplace=True),
    )  # fmt: skip


class Volumes(nn.Module):
    """A U-Net in three dimensions that gives every voxel a class."""

    def __init__(self, widths, side, channels, classes):
        super().__init__()
        self.side, self.channels, self.classes = side, channels, classes
        self.first, pairs = volume_block(channels, widths[0]), list(zip(widths, widths[1:]))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv3d(ins, outs, 3, 2, 1), volume_block(outs, outs)) for ins, outs in pairs
        )
        self.grow = nn.ModuleList(nn.ConvTranspose3d(outs, ins, 2, 2) for ins, outs in reversed(pairs))
        self.up = nn.ModuleList(volume_block(2 * ins, ins) for ins, _ in reversed(pairs))
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, volumes, labels):
        kept = [self.first(volumes)]
        for block in self.down:
            kept.append(block(kept[-1]))
        x = kept.pop()
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), kept.pop()], 1))
        return {"loss": functional.cross_entropy(self.last(x).float(), labels)}

    def batch(self, size, length):
        space = (self.side,) * 3
        labels = torch.randint(0, self.classes, (size, *space))
        return {"volumes": torch.randn(size, self.channels, *space), "labels": labels}


class Grouped(nn.Module):
    """A bottleneck whose middle convolution is grouped and dilated."""

    def __init__(self, ins, outs, groups, stride, apart):
        super().__init__()
        inner = outs // 2
        self.main = nn.Sequential(
            nn.Conv2d(ins, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, apart, apart, groups, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, outs, 1, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.side = nn.Identity() if (ins, stride) == (outs, 1) else nn.Conv2d(ins, outs, 1, stride)

    def forward(self, x):
        return torch.relu(self.main(x) + self.side(x))


class Segments(nn.Module):
    """A class for every pixel: grouped and dilated bottlenecks, context at several distances, transposed upwards."""

    def __init__(self, widths, blocks, groups, side, classes):
        super().__init__()
        self.size, self.classes, before = side, classes, widths[0]
        layers = [nn.Conv2d(3, before, 3, 2, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
        for number, width in enumerate(widths):
            stride, apart = (2, 1) if number < 2 else (1, 2 ** (number - 1))
            for at in range(blocks):
                layers.append(Grouped(before, width, groups, 1 if at else stride, apart))
                before = width
        self.layers, inner = nn.Sequential(*layers), before // 4
        self.context = nn.ModuleList(nn.Conv2d(before, inner, 3, 1, apart, apart) for apart in (6, 12, 18))
        self.grow = nn.Sequential(
            nn.ConvTranspose2d(3 * inner, inner, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(inner, inner // 2, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(inner // 2, classes, 4, 2, 1),
        )  # fmt: skip

    def forward(self, pictures, labels):
        x = self.layers(pictures)
        out = self.grow(torch.cat([torch.relu(one(x)) for one in self.context], 1))
        return {"loss": functional.cross_entropy(out.float(), labels)}

    def batch(self, size, length):
        space = (self.size, self.size)
        labels = torch.randint(0, self.classes, (size, *space))
        return {"pictures": torch.randn(size, 3, *space), "labels": labels}


def bottlenecks(blocks, width, side):
    """Narrow and wide layers in turn, with a pointwise side path, as in ResNet-50."""
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = width
    for number, count in enumerate(blocks):
        outs = 4 * width * 2**number
        for at in range(count):
            layers.append(Bottleneck(before, outs, 2 if at == 0 and number else 1))
            before = outs
    return Pictures(nn.Sequential(*layers), side, before)


class Bottleneck(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        inner = outs // 4
        self.main = nn.Sequential(
            nn.Conv2d(ins, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, outs, 1, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.side = nn.Identity()
        if (ins, stride) != (outs, 1):
            self.side = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))

    def forward(self, x):
        return torch.relu_(self.main(x) + self.side(x))


class Gated(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.ins, self.out = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        value, gate = self.ins(x).chunk(2, -1)
        return self.out(value * functional.silu(gate))


class Choosing(nn.Module):
    """Experts that choose their words, each the same number of them: two experts a word on average."""

    def __init__(self, width, hidden, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.ins = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.out = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, x):
        flat = x.flatten(0, 1)
        share = self.gate(flat).softmax(-1)
        weight, chosen = share.t().topk(2 * flat.shape[0] // share.shape[1])
        made = functional.gelu(flat[chosen] @ self.ins) @ self.out * weight.unsqueeze(-1)
        made = made.flatten(0, 1).to(flat.dtype)
        return torch.zeros_like(flat).index_add(0, chosen.flatten(), made).view_as(x)


def turned(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, key_heads, hidden, experts):
        super().__init__()
        self.head, self.sizes = width // heads, [width, *2 * [width * key_heads // heads]]
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.ins = nn.Linear(width, sum(self.sizes), bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = Choosing(width, hidden, experts) if experts else Gated(width, hidden)

    def forward(self, x, cosine, sine):
        query, key, value = (
            one.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for one in self.ins(self.first(x)).split(self.sizes, -1)
        )
        query, key = turned(query, cosine, sine), turned(key, cosine, sine)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.second(x))


class Decoder(nn.Module):
    """A language model with rotary positions and grouped heads; with `experts`, they choose their words."""

    def __init__(self, width, layers, heads, key_heads, hidden, vocabulary, experts=0, again=False):
        super().__init__()
        self.words, self.again, self.size = nn.Embedding(vocabulary, width), again, width // heads
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, key_heads, hidden, experts) for _ in range(layers)
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        places = torch.arange(tokens.shape[1], device=x.device).float()
        turns = 10000.0 ** (-torch.arange(0, self.size, 2, device=x.device) / self.size)
        angles = (places[:, None] * turns).repeat(1, 2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            if self.again:
                x = checkpoint(layer, x, cosine, sine, use_reentrant=False)
            else:
                x = layer(x, cosine, sine)
        out = self.head(self.norm(x))
        return {"loss": functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())}

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
    "speech": Speech,
    "vocoder": Vocoder,
    "volumes": Volumes,
    "segments": Segments,
    "bottlenecks": bottlenecks,
    "decoder": Decoder,
}
