"""Predictions of PyTorch's MemTracker for the measured cases, used as documented: fake tensors, two steps.

    python benchmarks/fit_tracker.py OUT.jsonl [--only TEXT]
    python benchmarks/fit_tracker.py OUT.jsonl --device cuda --jobs 14      on a GPU machine; no gflow, no network

`fit_cases.py --tracker OUT.jsonl` puts it beside the others. Fake CUDA tensors need a build of PyTorch for CUDA
and a GPU; on fake tensors of the CPU it takes the CPU's attention kernels for CUDA's. Cases that are in OUT
already are passed over, and neighbours in the list are far apart in time, so that a run that was stopped says
something about all kinds. In fit_cases_tracker.jsonl, rows with `by_its_error` were read from the printed percentage.
"""

import argparse, contextlib, json, signal, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).parent
MOST_S = 240
STRIDE = 7


def tracked(case, cases, device):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    narrow = {"bf16_autocast": torch.bfloat16, "fp16_scaler": torch.float16}.get(case["precision"])
    model = cases.build(case)
    if case["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made_fake(model, mode, device)
        optimizer = cases.make_opt(case, model)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        learned = [p for p in model.parameters() if p.requires_grad]
        with tracker:
            for step in range(2):
                if step:
                    tracker.reset_mod_stats()
                for part in range(case["accum"]):
                    if part:
                        tracker.reset_mod_stats()
                    batch = cases.make_batch(case, device)
                    with torch.autocast(device, dtype=narrow) if narrow else contextlib.nullcontext():
                        loss = cases.loss_of(case, model, batch)
                    loss.backward()
                if case["clip"]:
                    torch.nn.utils.clip_grad_norm_(learned, case["clip"])
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return max(
        sum(size for name, size in parts.items() if name != "Total")
        for parts in tracker.get_tracker_snapshot("peak").values()
    )


def made_fake(model, mode, device):
    """Weights as fake tensors; those that are one and the same stay one."""
    import torch

    made = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = mode.from_tensor(tensor.detach()).to(device)
                    made[id(tensor)] = (
                        tensor,
                        torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
                        if isinstance(tensor, torch.nn.Parameter)
                        else fake,
                    )
                tensors[name] = made[id(tensor)][1]
        if isinstance(module, torch.nn.RNNBase):
            module._flat_weights = [module._parameters[n] for names in module._all_weights for n in names]


def too_long(*_):
    raise TimeoutError(f"more than {MOST_S} s of CPU time")


def shared(options):
    """The cases dealt out to so many processes."""
    parts = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                f"{options.out}.{part}",
                "--device",
                options.device,
                "--only",
                options.only,
                "--part",
                f"{part}/{options.jobs}",
            ]
        )
        for part in range(options.jobs)
    ]
    for part in parts:
        part.wait()
    with open(options.out, "a") as file:
        for part in range(options.jobs):
            path = Path(f"{options.out}.{part}")
            if path.exists():
                file.write(path.read_text())
                path.unlink()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("out")
    options.add_argument("--only", default="")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--part", default="0/1")
    options = options.parse_args()
    shared(options) if options.jobs > 1 else one_by_one(options)


def one_by_one(options):
    sys.path.insert(0, str(HERE))
    with contextlib.suppress(Exception):  # a torchvision without its compiled operators
        from gflow.ml.fit.models import lazy_torch

        lazy_torch.torchvision_models()
    import fit_cases_models as cases

    signal.signal(signal.SIGPROF, too_long)
    truths = [json.loads(line) for line in open(HERE / "fit_cases_measured.jsonl")]
    done = {json.loads(line)["id"] for line in open(options.out)} if Path(options.out).exists() else set()
    part, parts = map(int, options.part.split("/"))
    for truth in [truths[place * STRIDE % len(truths)] for place in range(len(truths))][part::parts]:
        case = truth["case"]
        if options.only not in case["id"] or case["id"] in done:
            continue
        began, row = time.process_time(), {"id": case["id"], "device": options.device}
        signal.setitimer(signal.ITIMER_PROF, MOST_S)
        try:
            row["bytes"] = tracked(case, cases, options.device)
        except Exception as error:
            row["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        signal.setitimer(signal.ITIMER_PROF, 0)
        row["seconds"] = round(time.process_time() - began, 1)
        found = (
            f"{100 * (row['bytes'] / truth['max_allocated'] - 1):+.2f} %"
            if "bytes" in row
            else row["refused"]
        )
        print(f"{case['id']:66} {found}", flush=True)
        with open(options.out, "a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
