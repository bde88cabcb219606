"""The measured cases of `fit_cases.py`: how each model, its batch, its loss and its optimizer are built.

A case is a dictionary of fit_cases_measured.jsonl. With `config` it is a model of Hugging Face, `tv:NAME` is one
of torchvision, and the others are here. Needs torch, and transformers or torchvision for their models.
"""

import contextlib

import torch
from torch import nn
from torch.nn import functional

AUTO = {
    "gpt2": "CausalLM",
    "llama": "CausalLM",
    "qwen2": "CausalLM",
    "mixtral": "CausalLM",
    "bert": "MaskedLM",
    "t5": "Seq2SeqLM",
    "vit": "ImageClassification",
    "whisper": "SpeechSeq2Seq",
}


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(32000, 512)
        self.layers = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.head = nn.Linear(512, 32000)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        words = self.words(x)
        return self.head(self.layers(words, words, tgt_mask=mask, tgt_is_causal=True))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(32000, 1024)
        layer = nn.TransformerEncoderLayer(
            1024, 16, 4096, batch_first=True, activation="gelu", norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(1024, 1000)

    def forward(self, x):
        return self.head(self.layers(self.words(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(10000, 512)
        self.layers = kind(512, 1024, 4, batch_first=True, dropout=0.1)
        self.head = nn.Linear(1024, 10000)

    def forward(self, x):
        return self.head(self.layers(self.words(x))[0])


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512, 1024)):
        super().__init__()

        def block(ins, outs):
            layers = []
            for before in (ins, outs):
                layers += [nn.Conv2d(before, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU(inplace=True)]
            return nn.Sequential(*layers)

        pairs = list(zip(widths[:-1], widths[1:]))
        self.down = nn.ModuleList(block(ins, outs) for ins, outs in [(3, widths[0]), *pairs])
        self.larger = nn.ModuleList(nn.ConvTranspose2d(outs, ins, 2, 2) for ins, outs in reversed(pairs))
        self.up = nn.ModuleList(block(2 * width, width) for width in reversed(widths[:-1]))
        self.out = nn.Conv2d(widths[0], 21, 1)

    def forward(self, x):
        sides = []
        for at, block in enumerate(self.down):
            x = block(x)
            if at < len(self.down) - 1:
                sides.append(x)
                x = functional.max_pool2d(x, 2)
        for larger, block in zip(self.larger, self.up):
            x = block(torch.cat([larger(x), sides.pop()], 1))
        return self.out(x)


def perceptron():
    layers = [layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


OWN = {
    "nn_transformer": Translator,
    "nn_encoder": Classifier,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "unet": UNet,
    "mlp": perceptron,
}


class Adapted(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        dtype = base.weight.dtype
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * 2.0


def build(case):
    """Build the model of a case on the CPU, with weights that are not initialised."""
    dtype = torch.bfloat16 if case["precision"] == "bf16_pure" else torch.float32
    with uninitialised():
        if "config" in case:
            model = of_transformers(case, dtype)
        elif case["model"].startswith("tv:"):
            import torchvision

            model = getattr(torchvision.models, case["model"][3:])()
        else:
            model = OWN[case["model"]]()
        model = model.to(dtype)
        if case["lora"]:
            adapt(model, case)
        if case["freeze"]:
            model.requires_grad_(False)
            model.fc = nn.Linear(model.fc.in_features, 1000)
    return model.train()


def of_transformers(case, dtype):
    import transformers

    settings = dict(case["config"])
    kind = settings.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **settings)
    config.use_cache = False
    options = {} if kind == "t5" else {"attn_implementation": case["attn"]}
    model = getattr(transformers, f"AutoModelFor{AUTO[kind]}").from_config(config, dtype=dtype, **options)
    if case["grad_ckpt"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def adapt(model, case):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in ("q_proj", "v_proj"):
            if hasattr(module, name):
                setattr(module, name, Adapted(getattr(module, name), case["lora"]))
    if case["grad_ckpt"]:
        model.enable_input_require_grads()


@contextlib.contextmanager
def uninitialised():
    """Disable the initialisation of weights: filling billions of them takes longer than a prediction."""
    before = [
        (nn.init, name, getattr(nn.init, name))
        for name in dir(nn.init)
        if name.endswith("_") and not name.startswith("_") and callable(getattr(nn.init, name))
    ]
    with contextlib.suppress(ImportError):
        from transformers import PreTrainedModel

        before += [
            (PreTrainedModel, name, getattr(PreTrainedModel, name))
            for name in ("_initialize_weights", "initialize_weights", "_init_weights")
            if hasattr(PreTrainedModel, name)
        ]
    try:
        for owner, name, _ in before:
            setattr(owner, name, lambda tensor, *_, **__: tensor)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def make_batch(case, device):
    size, length, model = case["batch"], case["seq"], case["model"]
    dtype = torch.bfloat16 if case["precision"] == "bf16_pure" else torch.float32

    def words(top, *shape):
        return torch.randint(0, top, shape).to(device)

    def values(*shape):
        return torch.randn(*shape).to(device, dtype)

    if "config" in case:
        return batch_of_transformers(case, words, values)
    if model.startswith("tv:"):
        x = values(size, 3, case["img"], case["img"])
        x = x.to(memory_format=torch.channels_last) if case["channels_last"] else x
        return {"x": x, "y": words(1000, size)}
    if model == "unet":
        side = case["img"]
        return {"x": values(size, 3, side, side), "y": words(21, size, side, side)}
    if model == "mlp":
        return {"x": values(size, 4096), "y": words(1000, size)}
    if model == "nn_encoder":
        return {"x": words(32000, size, length), "y": words(1000, size)}
    top = 32000 if model == "nn_transformer" else 10000
    return {"x": words(top, size, length), "y": words(top, size, length)}


def batch_of_transformers(case, words, values):
    size, length, config = case["batch"], case["seq"], case["config"]
    kind = AUTO[config["model_type"]]
    if kind == "ImageClassification":
        return {"pixel_values": values(size, 3, case["img"], case["img"]), "labels": words(1000, size)}
    if kind == "SpeechSeq2Seq":
        return {"input_features": values(size, 80, length), "labels": words(51865, size, case["tgt_seq"])}
    tokens = words(config["vocab_size"], size, length)
    targets = words(config["vocab_size"], size, case["tgt_seq"]) if kind == "Seq2SeqLM" else tokens
    return {"input_ids": tokens, "labels": targets}


def loss_of(case, model, batch):
    if "config" in case:
        return model(**batch).loss
    out, targets = model(batch["x"]), batch["y"]
    if out.dim() == 3:
        return functional.cross_entropy(out.flatten(0, 1), targets.flatten())
    return functional.cross_entropy(out, targets)


def make_opt(case, model):
    learned = [one for one in model.parameters() if one.requires_grad]
    return getattr(torch.optim, case["optimizer"])(learned, **{"lr": 1e-4, **case["opt_kwargs"]})
