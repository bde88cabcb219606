"""The proof of `gflow fit`: predicted first, then measured on a GPU, then compared.

    python benchmarks/fit_proof.py predict PREDICTIONS.jsonl      where the extra fit is installed (no GPU)
    python benchmarks/fit_proof.py measure MEASURED.jsonl         on a GPU machine: torch, transformers, torchvision; no gflow, no network
    python benchmarks/fit_proof.py compare PREDICTIONS.jsonl MEASURED.jsonl

Cases: fit_proof_cases.json beside this file, or --cases FILE. `measure` gives every case a process of its own,
three steps with the optimizer, and writes a line as soon as it has one; --seconds N stops before a case that would
begin later than that, --jobs N runs so many at a time (then what the whole process takes is not known).
"""

import argparse, contextlib, copy, json, os, statistics, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
KEYS = (
    "batch",
    "sequence",
    "target",
    "image",
    "precision",
    "optimizer",
    "optimizer_options",
    "accumulate",
    "checkpointing",
    "clip",
    "attention",
    "lora",
    "channels_last",
)


def own_model(case):
    """For `gflow fit --py`: a function that builds one of fit_proof_models.py and its batch."""
    import fit_proof_models

    def make(batch, sequence):
        model = fit_proof_models.MODELS[case["own"]](**case["args"])
        freeze(model, case)
        return model, lambda: model.batch(batch, sequence)

    return make


def freeze(model, case):
    """Parameters whose names begin with one of these do not learn."""
    for name, parameter in model.named_parameters():
        if name.startswith(tuple(case.get("freeze", ()))):
            parameter.requires_grad_(False)


def predict(cases, out):
    from gflow.fit import Recipe
    from gflow.fit import estimate

    for case in cases:
        began = time.time()
        row = {"id": case["id"]}
        try:
            found = estimate(
                hf=case.get("hf"),
                tv=case.get("tv"),
                py=own_model(case) if "own" in case else None,
                recipe=Recipe(**{key: case[key] for key in KEYS if key in case}),
            )
            row |= {
                "allocated": found.peak_allocated_bytes,
                "reserved": found.peak_reserved_bytes,
                "process": found.process_bytes,
                "confidence": found.confidence,
                "torch": found.torch,
            }
        except Exception as error:
            row["refused"] = str(error)
        row["seconds"] = round(time.time() - began, 1)
        print(json.dumps(row), flush=True)
        with open(out, "a") as file:
            file.write(json.dumps(row) + "\n")


# ------------------------------------------------------------------ on the GPU, without gflow
AUTO = {
    "speech": "AutoModelForSpeechSeq2Seq",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "mlm": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
    "image": "AutoModelForImageClassification",
}
ADAPTED = ("q_proj", "v_proj", "query", "value", "c_attn", "query_key_value", "qkv_proj", "Wqkv", "q", "v")


def build(case, dtype):
    import transformers
    from torch import nn

    if "tv" in case:
        import torchvision

        return getattr(torchvision.models, case["tv"])().to(dtype), "tv", None
    if "own" in case:
        import fit_proof_models

        model = fit_proof_models.MODELS[case["own"]](**case["args"]).to(dtype)
        freeze(model, case)
        return model, "own", None
    settings = dict(case["hf"])
    config = transformers.CONFIG_MAPPING[settings.pop("model_type")](**settings)
    config.use_cache = False
    kind = next(
        kind for kind, auto in AUTO.items() if type(config) in getattr(transformers, auto)._model_mapping
    )
    auto = getattr(transformers, AUTO[kind])
    offered = auto._model_mapping[type(config)]
    # Several models for one task (DeiT with and without its teacher): the first is the plain one.
    if isinstance(offered, tuple) and not config.architectures:
        config.architectures = [offered[0].__name__]
    # Filling three billion weights on the host takes longer than training them; their values do not matter.
    for name in ("_initialize_weights", "initialize_weights", "_init_weights"):
        if hasattr(transformers.PreTrainedModel, name):
            setattr(transformers.PreTrainedModel, name, lambda *_, **__: None)
    for name in dir(nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    # A copy: a refused way of attention stays written in the configuration.
    try:
        model = auto.from_config(
            copy.deepcopy(config), attn_implementation=case.get("attention", "sdpa"), dtype=dtype
        )
    except ValueError:
        model = auto.from_config(config, dtype=dtype)
    model = model.to(dtype)
    if case.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if case.get("lora"):

        class Adapted(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base
                self.down = nn.Linear(base.in_features, case["lora"], bias=False, dtype=dtype)
                self.up = nn.Linear(case["lora"], base.out_features, bias=False, dtype=dtype)

            def forward(self, x):
                return self.base(x) + self.up(self.down(x)) * 2.0

        model.requires_grad_(False)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if name in ADAPTED and isinstance(child, nn.Linear):
                    setattr(module, name, Adapted(child))
        if case.get("checkpointing"):
            model.enable_input_require_grads()
    return model, kind, config


def batch_of(case, kind, config, dtype):
    import torch

    size, length = case["batch"], case.get("sequence", 512)
    words = lambda top, *shape: torch.randint(0, top, shape).to("cuda")
    if kind == "tv":
        x = torch.randn(size, 3, 224, 224).to("cuda", dtype)
        return (x.to(memory_format=torch.channels_last) if case.get("channels_last") else x), words(
            1000, size
        )
    if kind == "own":
        made = {name: one.to("cuda") for name, one in config.batch(size, length).items()}
        made = {name: one.to(dtype) if one.is_floating_point() else one for name, one in made.items()}
        last = case.get("channels_last")
        return {
            name: one.to(memory_format=torch.channels_last) if last and one.dim() == 4 else one
            for name, one in made.items()
        }
    if kind in ("causal", "mlm"):
        tokens = words(config.vocab_size, size, length)
        return {"input_ids": tokens, "labels": tokens}
    if kind == "seq2seq":
        return {
            "input_ids": words(config.vocab_size, size, length),
            "labels": words(config.vocab_size, size, case.get("target") or max(1, length // 4)),
        }
    if kind == "speech":
        return {
            "input_features": torch.randn(size, config.num_mel_bins, 2 * config.max_source_positions).to(
                "cuda", dtype
            ),
            "labels": words(config.vocab_size, size, case.get("target") or 128),
        }
    if kind == "image":
        return {
            "pixel_values": torch.randn(size, 3, *2 * (getattr(config, "image_size", 224),)).to(
                "cuda", dtype
            ),
            "labels": words(config.num_labels, size),
        }
    raise SystemExit(f"no batch for {kind}")


def one(case):
    """Train one case here and now; the row on standard output."""
    import torch

    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    dtype = {"bf16-pure": torch.bfloat16, "fp16-pure": torch.float16}.get(case["precision"], torch.float32)
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case["precision"])
    model, kind, config = build(case, dtype)
    model = model.to("cuda").train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_(0.5)
    if case.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, case.get("optimizer", "AdamW"))(
        learned, **{"lr": 1e-4, **case.get("optimizer_options", {})}
    )
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0) if case["precision"] == "fp16" else None
    for _ in range(3):
        for _ in range(case.get("accumulate", 1)):
            batch = batch_of(case, kind, model if kind == "own" else config, dtype)
            with torch.autocast("cuda", dtype=narrow) if narrow else contextlib.nullcontext():
                loss = (
                    torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
                    if kind == "tv"
                    else model(**batch)["loss"]
                )
            if case.get("accumulate", 1) > 1:
                loss = loss / case["accumulate"]
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler and case.get("clip"):
            scaler.unscale_(optimizer)
        if case.get("clip"):
            torch.nn.utils.clip_grad_norm_(learned, case["clip"])
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "id": case["id"],
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "process": total - free,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def measure(cases, out, seconds, path, jobs):
    began = time.time()

    def run(case):
        if time.time() - began > seconds:
            print("out of time before", case["id"])
            return
        done = subprocess.run(
            [sys.executable, __file__, "one", "-", "--cases", str(path), "--id", case["id"]],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        row = (
            json.loads(done.stdout.splitlines()[-1])
            if done.returncode == 0
            else {"id": case["id"], "error": done.stderr.strip().splitlines()[-1:]}
        )
        if jobs > 1:
            row.pop("process", None)  # what is free on the GPU is not this process's alone
        print(json.dumps(row), f"{time.time() - began:.0f} s", flush=True)
        with open(out, "a") as file:
            file.write(json.dumps(row) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, cases))


def compare(predicted, measured):
    rows = {row["id"]: row for row in map(json.loads, open(measured))}
    errors = {"allocated": [], "reserved": [], "process": []}
    for guess in map(json.loads, open(predicted)):
        truth = rows.get(guess["id"])
        if "refused" in guess or truth is None or "error" in truth:
            print(f"{guess['id']:45} {guess.get('refused') or (truth or {}).get('error') or 'not measured'}")
            continue
        percent = {key: 100 * (guess[key] / truth[key] - 1) for key in errors if key in truth}
        for key, value in percent.items():
            errors[key].append(abs(value))
        print(
            f"{guess['id']:45} "
            + "  ".join(f"{key} {value:+7.2f} %" for key, value in percent.items())
            + f"  {guess['confidence']}"
        )
    for key, values in errors.items():
        if values:
            print(
                f"{key}: median {statistics.median(values):.2f} %, worst {max(values):.2f} %, {len(values)} cases"
            )


def main():
    options = argparse.ArgumentParser()
    options.add_argument("what", choices=("predict", "measure", "compare", "one"))
    options.add_argument("files", nargs="+")
    options.add_argument("--cases", type=Path, default=HERE / "fit_proof_cases.json")
    options.add_argument("--id")
    options.add_argument("--only", default="")
    options.add_argument("--seconds", type=float, default=540)
    options.add_argument("--jobs", type=int, default=1)
    options = options.parse_args()
    cases = [
        case
        for case in json.loads(options.cases.read_text())
        if not options.only or any(text in case["id"] for text in options.only.split(","))
    ]
    if options.what == "predict":
        predict(cases, options.files[0])
    elif options.what == "measure":
        measure(cases, options.files[0], options.seconds, options.cases, options.jobs)
    elif options.what == "one":
        print(json.dumps(one(next(case for case in cases if case["id"] == options.id))))
    else:
        compare(*options.files)


if __name__ == "__main__":
    main()
