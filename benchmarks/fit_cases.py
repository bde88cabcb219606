"""Compare `gflow fit` and other estimators with measured cases, in one table.

    python benchmarks/fit_cases.py [--only TEXT] [--rows ROWS.jsonl] [--tracker TRACKER.jsonl] [--write TABLE.md]

The cases and what an H200 measured are in fit_cases_measured.jsonl, how they are built in fit_cases_models.py
(torchvision is needed for some). ROWS keeps what was predicted: cases in it are not run again. TRACKER is what
fit_tracker.py wrote. TABLE is where the table of every case goes; the summary is printed.
"""

import argparse, gc, json, math, statistics, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import fit_peers

MEASURED = Path(__file__).parent / "fit_cases_measured.jsonl"
OURS, TRACKER = "gflow fit", "PyTorch's MemTracker"
SHORT = {
    "guide, 16 B a parameter": "16 B",
    "guide, its function": "guide",
    "accelerate estimate-memory": "accelerate",
    "DeepSpeed ZeRO-2": "ZeRO-2",
    "DeepSpeed ZeRO-3": "ZeRO-3",
    TRACKER: "MemTracker",
}


def recipe(case):
    from gflow.fit import Recipe

    precision = {"bf16_autocast": "bf16", "fp16_scaler": "fp16", "bf16_pure": "bf16-pure"}.get(
        case["precision"], case["precision"]
    )
    return Recipe(
        batch=case["batch"],
        sequence=case["seq"] or 512,
        target=case["tgt_seq"] or 0,
        image=case["img"] if "config" not in case else 0,
        precision=precision,
        optimizer=case["optimizer"],
        optimizer_options=case["opt_kwargs"],
        accumulate=case["accum"],
        checkpointing=case["grad_ckpt"],
        clip=case["clip"],
        attention=case["attn"],
        lora=case["lora"] or 0,
        channels_last=case["channels_last"],
        steps=case["steps"],
    )


def source(case, cases):
    if "config" in case:
        return {"hf": case["config"]}
    if case["model"].startswith("tv:") and not case["freeze"]:
        return {"tv": case["model"][3:]}

    def make():
        model = cases.build({**case, "lora": None})

        def batch():
            made = cases.make_batch(case, "cuda")
            return made["x"], made["y"]

        return model, batch

    return {"py": make}


def predicted(case, cases):
    """One row: what we answer, and what the others need to know of the model."""
    from gflow.ml.fit.report import evaluate
    from gflow.ml.fit.estimate import record

    began = time.process_time()
    try:
        trace = record(**source(case, cases), recipe=recipe(case))
    except Exception as error:
        return {"id": case["id"], "refused": str(error)}
    found = evaluate(trace)
    row = {
        "id": case["id"],
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "process": found.process_bytes,
        "confidence": found.confidence,
        "torch": found.torch,
        "seconds": round(time.process_time() - began, 1),
    }
    return row | {
        "facts": {
            "total": found.total_params,
            "learned": found.trainable_params,
            "largest_layer": largest_layer(case, trace),
            **shape(case),
        }
    }


def largest_layer(case, trace):
    layers, each = {}, 2 if case["precision"] == "bf16_pure" else 4
    for request in {id(one): one for one in trace.requests if one.kind == "parameters"}.values():
        layer = request.module.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + request.size // each
    return max(layers.values())


def shape(case):
    """Width and depth by the names that the guide's function asks the model's config for."""
    if "config" not in case:
        return {"width": None, "depth": None}
    import transformers

    settings = dict(case["config"])
    config = transformers.CONFIG_MAPPING[settings.pop("model_type")](**settings)
    return {
        "width": getattr(config, "hidden_size", None),
        "depth": getattr(config, "num_hidden_layers", None),
    }


def error(answer, truth):
    return 100 * (answer / truth - 1)


def errors(rows, truths, tracker):
    """By estimator, by case: how far it is from allocated and from reserved, in percent."""
    found = {OURS: {}, **{name: {} for name in fit_peers.NAMES}}
    for row in rows:
        truth = truths[row["id"]]
        if "refused" in row:
            continue
        found[OURS][row["id"]] = (
            error(row["allocated"], truth["max_allocated"]),
            error(row["reserved"], truth["max_reserved"]),
        )
        for name, answer in fit_peers.answers(truth["case"], row["facts"]).items():
            found[name][row["id"]] = (
                error(answer, truth["max_allocated"]),
                error(answer, truth["max_reserved"]),
            )
    if tracker:
        found[TRACKER] = {
            row["id"]: (
                error(row["bytes"], truths[row["id"]]["max_allocated"]),
                error(row["bytes"], truths[row["id"]]["max_reserved"]),
            )
            for row in tracker
            if "bytes" in row and row["id"] in truths
        }
    return found


def summary(values):
    values = sorted(map(abs, values))
    return statistics.median(values), values[max(0, math.ceil(0.9 * len(values)) - 1)], values[-1]


def percent(value):
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def summary_table(found, asked):
    yield "| | answered | allocated: median | p90 | worst | reserved: median | p90 | worst |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, by_case in found.items():
        if not by_case:
            continue
        figures = [
            f"{percent(value)} %"
            for place in (0, 1)
            for value in summary([pair[place] for pair in by_case.values()])
        ]
        yield f"| {name} | {len(by_case)} of {asked} | " + " | ".join(figures) + " |"


def case_table(rows, found, tracker):
    peers = [name for name in found if name != OURS]
    refusals = {row["id"]: row["refused"] for row in tracker if "refused" in row}
    yield (
        "| case | allocated | reserved | "
        + " | ".join(SHORT[name] for name in peers)
        + " | confidence | CPU |"
    )
    yield "|---" * (5 + len(peers)) + "|"
    for row in rows:
        if "refused" in row:
            yield f"| {row['id']} | refused: {row['refused']} |" + " |" * (3 + len(peers))
            continue
        ours = [f"{value:+.2f} %" for value in found[OURS][row["id"]]]
        others = [
            f"{found[name][row['id']][0]:+.0f} %"
            if row["id"] in found[name]
            else "refused"
            if row["id"] in refusals
            else "-"
            for name in peers
        ]
        yield (
            f"| {row['id']} | "
            + " | ".join([*ours, *others])
            + f" | {row['confidence']} | {row['seconds']} s |"
        )


def written(rows, found, tracker, asked):
    yield "# Predicted and measured, case by case\n"
    yield "Made by `benchmarks/fit_cases.py`; do not edit. Errors in percent of what an H200 measured. The first two columns are ours, against peak"
    yield "allocated and peak reserved; the others are the answers of other estimators against peak allocated. A dash: not run to its end,"
    yield "the time on the GPU was limited.\n"
    yield from summary_table(found, asked)
    yield ""
    yield from case_table(rows, found, tracker)
    refused = [row for row in tracker if "refused" in row]
    if refused:
        yield "\nMemTracker refused:\n"
        yield from (f"- {row['id']}: {row['refused']}" for row in refused)


def lines(path):
    return [json.loads(line) for line in open(path)] if path and path.exists() else []


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--only", default="")
    for name in ("--rows", "--tracker", "--write"):
        options.add_argument(name, type=Path)
    options = options.parse_args()
    truths = {
        truth["case"]["id"]: truth
        for truth in lines(MEASURED)
        if options.only in truth["case"]["id"]
    }
    known = {row["id"]: row for row in lines(options.rows) if row["id"] in truths}
    if len(known) < len(truths):
        from gflow.ml.fit.models import lazy_torch

        try:
            lazy_torch.torchvision_models()  # the cases import torchvision themselves
        except Exception as refusal:
            print("torchvision:", refusal)
        import fit_cases_models as cases
    for name, truth in truths.items():
        if name in known:
            continue
        known[name] = predicted(truth["case"], cases)
        print(json.dumps(known[name]), flush=True)
        if options.rows:
            with open(options.rows, "a") as file:
                file.write(json.dumps(known[name]) + "\n")
        gc.collect()
    rows, tracker = [known[name] for name in truths], lines(options.tracker)
    found = errors(rows, truths, tracker)
    print(*summary_table(found, len(truths)), sep="\n")
    whole = summary(
        [
            error(row["process"], truths[row["id"]]["nvml_process_bytes"])
            for row in rows
            if "refused" not in row
        ]
    )
    print("whole process:", *(f"{percent(value)} %" for value in whole))
    if options.write:
        options.write.write_text("\n".join(written(rows, found, tracker, len(truths))) + "\n")


if __name__ == "__main__":
    main()
