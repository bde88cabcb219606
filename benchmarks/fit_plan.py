"""Does the plan of `gflow plan` run, and is it the fastest? Planned first, then tried on a GPU beside a small grid.

    python benchmarks/fit_plan.py predict        where the extra fit is installed (no GPU): writes fit_plan_predicted.json
    python benchmarks/fit_plan.py measure OUT    on a GPU machine with torch and transformers; no gflow, no network
    python benchmarks/fit_plan.py show OUT

A card of 24, 40 or 80 GiB is an H200 whose allocator may take as much as would be left on such a card. The chosen way
runs in a process of its own; then every micro-batch with and without checkpointing is tried in another.
"""

import argparse, gc, json, os, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).parent
PLANS = HERE / "fit_plan_predicted.json"
CONTEXT = 766 << 20
CASES = [
    {
        "id": "gpt2-medium s1024 bf16, 24 GiB",
        "cap": 24,
        "sequence": 1024,
        "precision": "bf16",
        "effective_batch": 32,
        "hf": {
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": 1024,
            "n_layer": 24,
            "n_head": 16,
        },
    },
    {
        "id": "llama-1.1b s2048 bf16, 40 GiB",
        "cap": 40,
        "sequence": 2048,
        "precision": "bf16",
        "effective_batch": 16,
        "hf": {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
        },
    },
    {
        "id": "llama-7b s2048 bf16-pure, 80 GiB",
        "cap": 80,
        "sequence": 2048,
        "precision": "bf16-pure",
        "effective_batch": 8,
        "hf": {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
        },
    },
]


def predict():
    from gflow.cli.tools.plan import run

    plans = []
    for case in CASES:
        config, out = Path("/tmp/fit_plan_config.json"), Path("/tmp/fit_plan_out.json")
        config.write_text(json.dumps(case["hf"]))
        run(
            [
                "--hf",
                str(config),
                "--on",
                "H200",
                "--cap",
                f"{case['cap']}G",
                "--seq",
                str(case["sequence"]),
                "--precision",
                case["precision"],
                "--effective-batch",
                str(case["effective_batch"]),
                "--without",
                "8-bit,offload",
                "--out",
                str(out),
            ]
        )
        plan = json.loads(out.read_text())
        del plan["command"]
        plans.append({"id": case["id"], "plan": plan})
        config.unlink()
        out.unlink()
    PLANS.write_text(json.dumps(plans, indent=1) + "\n")


# ------------------------------------------------------------------ on the GPU, without gflow
def train(case, micro, checkpointing, steps):
    """Seconds of one step of the optimizer, and the peaks; the first step is not counted."""
    import contextlib, torch, transformers

    torch.cuda.reset_peak_memory_stats()
    dtype = torch.bfloat16 if case["precision"] == "bf16-pure" else torch.float32
    settings = dict(case["hf"])
    config = transformers.CONFIG_MAPPING[settings.pop("model_type")](**settings)
    config.use_cache = False
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    accumulate, times = case["effective_batch"] // micro, []
    for _ in range(1 + steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(accumulate):
            tokens = torch.randint(0, config.vocab_size, (micro, case["sequence"])).to("cuda")
            with (
                torch.autocast("cuda", dtype=torch.bfloat16)
                if case["precision"] == "bf16"
                else contextlib.nullcontext()
            ):
                loss = model(input_ids=tokens, labels=tokens).loss
            (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return {
        "seconds": min(times[1:]),
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }


def attempt(case, micro, checkpointing, steps):
    import torch

    row = {"micro_batch": micro, "checkpointing": checkpointing}
    try:
        row |= train(case, micro, checkpointing, steps)
    except torch.cuda.OutOfMemoryError:
        row["error"] = "out of memory"
    gc.collect()
    torch.cuda.empty_cache()
    return row


def limit(case):
    import torch

    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, ((case["cap"] << 30) - CONTEXT) / total))


def one(case, micro, checkpointing):
    limit(case)
    print(json.dumps(attempt(case, micro, checkpointing, 3)))


def grid(case):
    limit(case)
    sizes = [size for size in (32, 16, 8, 4, 2, 1) if case["effective_batch"] % size == 0]
    for checkpointing in (False, True):
        fitting = 0
        for micro in sizes:
            row = attempt(case, micro, checkpointing, 2)
            print(json.dumps(row), flush=True)
            fitting += "error" not in row
            if fitting == 3:
                break  # smaller ones are slower


def called(*words):
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        return [{"error": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measure(out, seconds):
    began, plans = time.time(), {row["id"]: row["plan"]["chosen"] for row in json.loads(PLANS.read_text())}
    for place, case in enumerate(CASES):
        if time.time() - began > seconds:
            print("out of time before", case["id"])
            break
        way = plans[case["id"]]
        row = {
            "id": case["id"],
            "planned": way,
            "chosen": called("one", place, way["micro_batch"], int(way["checkpointing"]))[-1],
            "grid": called("grid", place),
        }
        with open(out, "a") as file:
            file.write(json.dumps(row) + "\n")
        show_row(row)
        print(f"{time.time() - began:.0f} s", flush=True)


def show_row(row):
    print(row["id"])
    best = min((point["seconds"] for point in row["grid"] if "seconds" in point), default=None)
    for point in [row["chosen"], *row["grid"]]:
        name = "chosen" if point is row["chosen"] else "grid"
        word = f"micro-batch {point.get('micro_batch', '?'):>3} {'checkpointing' if point.get('checkpointing') else '':13}"
        if "error" in point:
            print(f"  {name:6} {word} {point['error']}")
            continue
        against = f"{100 * best / point['seconds']:.0f} % of the fastest" if best else ""
        print(
            f"  {name:6} {word} {point['seconds']:.3f} s  reserved {point['reserved'] / 2**30:.2f} GiB  retries {point['retries']}  {against}"
        )
    if "reserved" in row["chosen"]:
        predicted = row["planned"]["bytes"] - CONTEXT
        print(
            f"  predicted reserved {predicted / 2**30:.2f} GiB: {100 * (predicted / row['chosen']['reserved'] - 1):+.2f} %"
        )


def main():
    options = argparse.ArgumentParser()
    options.add_argument("what", choices=("predict", "measure", "show", "one", "grid"))
    options.add_argument("words", nargs="*")
    options.add_argument("--seconds", type=float, default=300)
    options = options.parse_args()
    if options.what == "predict":
        predict()
    elif options.what == "measure":
        measure(options.words[0], options.seconds)
    elif options.what == "one":
        one(CASES[int(options.words[0])], int(options.words[1]), bool(int(options.words[2])))
    elif options.what == "grid":
        grid(CASES[int(options.words[0])])
    else:
        for line in open(options.words[0]):
            show_row(json.loads(line))


if __name__ == "__main__":
    main()
