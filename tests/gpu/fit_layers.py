#!/usr/bin/env python3
"""Record what single recurrent layers and convolutions allocate on this GPU. Needs PyTorch alone.

    python3 tests/gpu/fit_layers.py [CASES.jsonl] > measured.jsonl        half a minute on an H200

The cases are those of benchmarks/fit_layers_measured.jsonl or of another file (.gz: compressed, as
fit_convolutions_measured.jsonl.gz), and the output has its form: one line for each case, with the sizes in
bytes of at least 16 KiB in the order of events, positive for an allocation, negative for a release, of the
forward and of the backward pass; for convolutions also of each gradient alone.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import torch
from torch import nn

CASES = Path(__file__).resolve().parents[2] / "benchmarks/fit_layers_measured.jsonl"
LEAST = 16384


def events(run):
    """Run a function; its result, and what it allocated and released."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=100_000)
    out = run()
    torch.cuda.synchronize()
    traces = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    return out, [
        signs[one["action"]] * one["size"]
        for trace in traces
        for one in trace
        if one["size"] >= LEAST and one["action"] in signs
    ]


def recurrent(case):
    kind, dtype, is_batch_first = case["kind"], getattr(torch, case["dtype"]), bool(case["batch_first"])
    extra = {"proj_size": case["projection"]} if case["projection"] else {}
    layer = getattr(nn, kind)(
        case["width"], case["hidden"], case["layers"], batch_first=is_batch_first, dropout=case["dropout"],
        bidirectional=bool(case["both"]), **extra,
    ).to("cuda", dtype)  # fmt: skip
    first, second = (case["batch"], case["length"]) if is_batch_first else (case["length"], case["batch"])
    for _ in range(2):  # the first pass creates what is kept: the state of dropout
        x = torch.randn(first, second, case["width"], device="cuda", dtype=dtype, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=bool(case["autocast"])):
            out, made = events(lambda: layer(x)[0])
        grad = torch.randn_like(out)
        _, back = events(lambda: out.backward(grad))
        layer.zero_grad(set_to_none=True)
    return {"rnn": case, "kept": sum(made), "forward": made, "backward": back}


def convolution(case, tf32):
    shape, x_first, weight_shape, weight_first, *where, groups, name = case
    dtype, last = getattr(torch, name), {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))
    x = torch.randn(shape, device="cuda", dtype=dtype)
    weight = torch.randn(weight_shape, device="cuda", dtype=dtype)
    x = x if x_first else x.to(memory_format=last)
    weight = weight if weight_first else weight.to(memory_format=last)
    stride, padding, dilation, transposed, output_padding = where
    rest = (stride, padding, dilation, bool(transposed), output_padding, groups)
    torch.backends.cudnn.allow_tf32 = bool(tf32)

    def recorded(run):
        run()  # the first run chooses the kernel
        return events(run)

    def gradients(*wanted):
        run = torch.ops.aten.convolution_backward
        return recorded(lambda: run(grad, x, weight, None, *rest, [*wanted, False]))[1]

    out, made = recorded(lambda: torch.convolution(x, weight, None, *rest))
    grad, needs_x = torch.empty_like(out), shape[1] > 4
    row = {"conv": case, "tf32": tf32, "forward": made, "backward": gradients(needs_x, True)}
    return row | {"weight": gradients(False, True)} | ({"input": gradients(True, False)} if needs_x else {})


def main() -> None:
    torch.zeros(1, device="cuda")
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    print(json.dumps({**versions, "gpu": torch.cuda.get_device_name()}))
    cases = Path(sys.argv[1]) if len(sys.argv) > 1 else CASES
    text = gzip.decompress(cases.read_bytes()) if cases.suffix == ".gz" else cases.read_bytes()
    for case in map(json.loads, text.splitlines()[1:]):
        row = recurrent(case["rnn"]) if "rnn" in case else convolution(case["conv"], case.get("tf32", 1))
        print(json.dumps(row), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
