"""How far is `gflow fit` from what was measured? One line per case, and the bars.

    python benchmarks/fit_cases.py FOLDER [--only TEXT] [--json FILE] [--tracker FILE]

FOLDER holds ground_truth.jsonl (measured cases) and cases.py (how those are built that are neither
Hugging Face nor torchvision).
"""
import argparse, gc, json, statistics, sys, time
from pathlib import Path


def recipe(case):
    from gflow.fit import Recipe
    precision = {"bf16_autocast": "bf16", "fp16_scaler": "fp16", "bf16_pure": "bf16-pure"}.get(case["precision"], case["precision"])
    return Recipe(batch=case["batch"], sequence=case["seq"] or 512, target=case["tgt_seq"] or 0, image=case["img"] if "config" not in case else 0,
                  precision=precision, optimizer=case["optimizer"], optimizer_options=case["opt_kwargs"], accumulate=case["accum"],
                  checkpointing=case["grad_ckpt"], clip=case["clip"], attention=case["attn"], lora=case["lora"] or 0,
                  channels_last=case["channels_last"], steps=case["steps"])


def source(case, cases):
    if "config" in case: return {"hf": case["config"]}
    if case["model"].startswith("tv:") and not case["freeze"]: return {"tv": case["model"][3:]}
    def make():
        model = cases.build({**case, "lora": None})
        def batch():
            made = cases.make_batch(case, "cuda")
            return made["x"], made["y"]
        return model, batch
    return {"py": make}


def predict(case, cases):
    from gflow.fit import estimate
    return estimate(**source(case, cases), recipe=recipe(case))


def peers(case, parameters):
    """What the usual estimators answer: bytes by name. Widths and depths as each of them would take them."""
    config = case.get("config", {})
    width = next((config[k] for k in ("hidden_size", "n_embd", "d_model") if k in config), 768)
    depth = next((config[k] for k in ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers") if k in config), 12)
    size = 4 if case["precision"] == "fp32" else 2
    length = case["seq"] or 512
    return {
        "16 B a parameter + 2bshL": 16 * parameters + 2 * case["batch"] * length * width * depth * size,
        "accelerate estimate": 4 * parameters * (2 if case["precision"] == "bf16_pure" else 4),
        "DeepSpeed ZeRO-2 states": 20 * parameters,
        "DeepSpeed ZeRO-3 states": 18 * parameters,
    }


def summary(errors):
    errors = sorted(abs(e) for e in errors)
    return {"median": round(statistics.median(errors), 3), "p90": round(errors[max(0, int(0.9 * len(errors)) - 1)], 3), "worst": round(errors[-1], 3)}


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--tracker", type=Path); options.add_argument("folder", type=Path); options.add_argument("--only", default=""); options.add_argument("--json", type=Path)
    options = options.parse_args()
    sys.path.insert(0, str(options.folder))
    from gflow.fit import vision
    try: vision.load()  # the cases import torchvision themselves
    except Exception as error: print("torchvision:", error)
    import cases
    tracker = {row["id"]: row.get("bytes") for row in map(json.loads, open(options.tracker))} if options.tracker else {}
    rows, refused = [], []
    for line in open(options.folder / "ground_truth.jsonl"):
        truth = json.loads(line); case = truth["case"]
        if options.only not in case["id"]: continue
        began = time.process_time()
        try: found = predict(case, cases)
        except Exception as error:
            refused.append(case["id"]); print(f"{case['id']:66} REFUSED {error}", flush=True); continue
        row = {"id": case["id"], "allocated": 100 * (found.peak_allocated_bytes / truth["max_allocated"] - 1),
               "reserved": 100 * (found.peak_reserved_bytes / truth["max_reserved"] - 1),
               "process": 100 * (found.process_bytes / truth["nvml_process_bytes"] - 1), "seconds": time.process_time() - began, "confidence": found.confidence}
        row["peers"] = {name: 100 * (size / truth["max_allocated"] - 1) for name, size in peers(case, found.total_params).items()}
        if tracker.get(case["id"]): row["peers"]["PyTorch's MemTracker"] = 100 * (tracker[case["id"]] / truth["max_allocated"] - 1)
        rows.append(row)
        print(f"{row['id']:66} allocated {row['allocated']:+7.2f} %  reserved {row['reserved']:+7.2f} %  process {row['process']:+7.2f} %  {row['confidence']:6} {row['seconds']:5.1f} s", flush=True)
        gc.collect()
    if rows:
        for what in ("allocated", "reserved", "process"): print(what, summary([row[what] for row in rows]))
    if rows:
        print("the usual estimators, against peak allocated:")
        for name in dict.fromkeys(name for row in rows for name in row["peers"]):
            errors = [row["peers"][name] for row in rows if name in row["peers"]]
            print(f"  {name:26}", summary(errors), f"{len(errors)} cases")
    print(f"answered {len(rows)} of {len(rows) + len(refused)}")
    if options.json: options.json.write_text(json.dumps({"rows": rows, "refused": refused}))


if __name__ == "__main__":
    main()
