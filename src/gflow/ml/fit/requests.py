"""Requests for predictions, plans and GPUs by the names of options: from the command line and from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Unpack

import msgspec

from gflow.errors import Refused, UsageError, unknown
from gflow.ml.fit import formula, gpu_choice
from gflow.ml.fit.answer import Answer, estimate_answer
from gflow.ml.fit.batch_scaling import BatchScaling, needed
from gflow.ml.fit.catalogue import Gpu, catalogue, check_precision, find_gpu
from gflow.ml.fit.cuda.architectures import HOPPER, MEASURED_CONTEXT, Architecture
from gflow.ml.fit.estimate import check_one_model, record
from gflow.ml.fit.fits import largest_batch
from gflow.ml.fit.keywords import (
    EFFECTIVE_BATCH,
    TAKE,
    EstimateKeywords,
    LargestKeywords,
    PickKeywords,
    PlanKeywords,
    with_keywords,
)
from gflow.ml.fit.plan import TECHNIQUES, Plan, PlanRequest, Way, plan
from gflow.ml.fit.recipe import RENAMED, Recipe, recipe_of
from gflow.ml.fit.report import Estimate, evaluate, fits
from gflow.ml.fit.sharding import Shaping, Sharing
from gflow.options.commands import fit_options, gpus_options, plan_options
from gflow.options.commands.fit_options import CARD, CHART, MODEL
from gflow.options.job_options import Option
from gflow.options.values import read

Values = Mapping[str, Any]
# Shows what takes long while it does.
Show = Callable[[str], AbstractContextManager[None]]
RECIPE = {option.name for option in fit_options.RECIPE}
# Options whose value need not be text in Python: a configuration, a function; `recipe_of` reads the others.
AS_GIVEN = {"hf", "py", *RECIPE}
FIELDS = {field: option for option, field in RENAMED.items()}
# Keywords of a model that exists, which a command line cannot have, and options that its example replaces.
LIVE = ("model", "example", "step")
EXAMPLE_TELLS = ("task", "seq", "target-seq", "image")


def quiet(what: str) -> AbstractContextManager[None]:
    return nullcontext()


def values_of(options: Iterable[Option], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of options, from keyword arguments, read as the command line reads them."""
    known = {option.name: option for option in options}
    values = {}
    for name, value in settings.items():
        spelled = FIELDS.get(name, name).replace("_", "-")
        if spelled not in known:
            raise unknown("option", name, [one.replace("-", "_") for one in known])
        if value is None or value is False:
            continue
        if isinstance(value, (list, tuple, set, frozenset)):
            value = ",".join(map(str, value))
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if spelled not in AS_GIVEN:
            is_number = known[spelled].kind == "text" and isinstance(value, int) and value is not True
            value = read(known[spelled], str(value) if is_number else value)
        values[spelled] = value
    return values


class Model:
    """The model and the training that a request describes."""

    def __init__(self, values: Values, show: Show = quiet, chosen: Recipe | None = None) -> None:
        """`show`: of a command, whose process only predicts. `chosen`: replaces options in `values`."""
        self.values, self.show = values, show
        named = {name: one for name, one in values.items() if name in RECIPE}
        self.recipe: Recipe = chosen or recipe_of(named)

    @property
    def parameters(self) -> int | None:
        """Their number, if nothing else is known of the model."""
        return formula.count(str(self.values["params"])) if "params" in self.values else None

    def run(self, recipe: Recipe, card: Architecture) -> Any:
        """The training run of a recipe, for any batch size."""
        if self.parameters is not None:
            return formula.FormulaRun(self.parameters, recipe)
        return BatchScaling(lambda batch: self.trace(msgspec.structs.replace(recipe, batch=batch), card))

    def trace(self, recipe: Recipe, card: Architecture) -> Any:
        from gflow.ml.fit.models import hf_config, lazy_torch

        check_one_model(dict(self.values))
        given = {name: self.values[name] for name in ("hf", "tv", "py", "task") if name in self.values}
        if isinstance(given.get("hf"), str):
            # Report an unreadable file before PyTorch is loaded.
            given["hf"] = hf_config.read(given["hf"])
        if self.show is not quiet:
            with self.show("loading PyTorch"):
                lazy_torch.load(transformers="hf" in given, is_ours="py" not in given)
        with self.show(f"recording a run with batch {recipe.batch}"):
            return record(**given, recipe=recipe, card=card)

    def refuse_formula(self, *more: str) -> None:
        if any(name in self.values for name in ("hf", "tv", "py", *more)):
            raise UsageError("--params cannot be combined with a model or --largest")


# ---------------------------------------------------------------- gflow fit


def predict(values: Values, show: Show = quiet, chosen: Recipe | None = None) -> Answer:
    """What `gflow fit --json` prints."""
    model = Model(values, show, chosen)
    gpu = find_gpu(values["gpu"], model.recipe.precision) if "gpu" in values else None
    space, card = room_of(values, gpu), gpu.card if gpu else HOPPER
    if model.parameters is not None:
        model.refuse_formula("largest")
        trace, found = None, formula.estimate(model.parameters, model.recipe)
    else:
        trace = model.trace(model.recipe, card)
        found = evaluate(trace, card)
    gpus = {gpu.name: gpu} if gpu else {} if "cap" in values else catalogue()
    answer = estimate_answer(found, trace, gpus)
    if space is not None:
        answer["fits"] = _fits(trace, found, space)
        if not answer["fits"]:
            answer["would_fit"] = Answer.of(ways_that_fit(model, gpu or _card(values["cap"])))
        if "largest" in values:
            answer["largest_batch"] = _largest(model, card, space)
    if "chart" in values or "plot" in values:
        answer["chart"] = Answer.of(_chart(model, card, gpu))
    return answer


def room_of(values: Values, gpu: Gpu | None) -> int | None:
    """Bytes of the named GPU that are available to the allocator."""
    if "cap" in values:
        if gpu is not None:
            raise UsageError("--gpu or --cap, not both")
        return int(values["cap"]) * (1 << 20) - MEASURED_CONTEXT
    if gpu is None and "largest" in values:
        raise UsageError("--largest needs a GPU", hint="--gpu A100-40GB, or --cap 24G")
    return gpu.room if gpu is not None else None


def _fits(trace: Any, found: Estimate, room: int) -> bool:
    return fits(trace, room) if trace is not None else found.peak_reserved_bytes <= room


def _largest(model: Model, card: Architecture, room: int) -> int:
    def trace(batch: int) -> Any:
        return model.trace(msgspec.structs.replace(model.recipe, batch=batch), card)

    return largest_batch(trace, room, BatchScaling(trace).largest(room))


def ways_that_fit(model: Model, gpu: Gpu) -> list[Way]:
    """Training setups with the same batch that fit, fastest first (as found by `gflow plan`)."""
    chosen = model.recipe
    batch = chosen.batch * chosen.accumulate
    request = PlanRequest(gpu, 1, batch, chosen.sequence, chosen.precision, _has_states(chosen))
    try:
        with model.show("comparing training setups"):
            found = plan(_runs(model, request), request)
    except Refused:
        return []
    return [found.chosen, *found.alternatives]


def _card(mib: int) -> Gpu:
    """A GPU of which only the memory is known; assumed to be as fast as an H100."""
    gib = int(mib) / 1024
    return msgspec.structs.replace(find_gpu("H100-80GB"), name=f"{gib:g} GiB", memory_gib=gib)


def _chart(model: Model, card: Architecture, gpu: Gpu | None) -> Any:
    """Memory against batch size; also drawn to a file with --plot."""
    from gflow.ml.fit.chart import chart, picture, sizes

    values, chosen = model.values, model.recipe
    gpus = {gpu.name: gpu} if gpu else catalogue()
    cards = {"the card": int(values["cap"]) << 20} if "cap" in values else sizes(gpus)
    found = chart(model.run(chosen, card), cards, card.context)
    if "plot" in values:
        given = next(values[name] for name in ("hf", "tv", "py", "params") if name in values)
        picture(found, f"{given}, {chosen.precision}, sequence {chosen.sequence}", values["plot"])
    return found


# ---------------------------------------------------------------- gflow plan


def make_plan(values: Values, local: Callable[[], tuple[Gpu, int]], show: Show = quiet) -> Plan:
    """The plan of `gflow plan`. `local`: the GPUs to plan for if none are named."""
    model = Model(values, show)
    without = frozenset(word.strip() for word in values.get("without", "").split(",") if word.strip())
    for word in sorted(without - set(TECHNIQUES)):
        raise unknown("technique", word, TECHNIQUES)
    chosen = model.recipe
    gpu, count = gpus_of(values["on"]) if "on" in values else local()
    check_precision(gpu, chosen.precision)
    if "cap" in values:
        gpu = msgspec.structs.replace(gpu, memory_gib=values["cap"] / 1024)
    request = PlanRequest(
        gpu,
        count,
        values.get("effective-batch", EFFECTIVE_BATCH),
        chosen.sequence,
        chosen.precision,
        _has_states(chosen),
        without,
        values.get("take", TAKE),
    )
    runs = _runs(model, request)
    with show("comparing training setups"):
        found = plan(runs, request)
    return msgspec.structs.replace(
        found,
        optimizer=chosen.optimizer,
        clip=chosen.clip,
        lora=chosen.lora,
        expandable_segments=chosen.expandable_segments,
    )


def gpus_of(text: str) -> tuple[Gpu, int]:
    """`4xA100-80GB`, or one GPU by name."""
    count, times, name = text.partition("x")
    if not times or not count.isdigit():
        return find_gpu(text), 1
    if not 1 <= int(count) <= 1024:
        raise UsageError(f"invalid number of GPUs: {count}", hint="--on 4xA100-80GB")
    return find_gpu(name), int(count)


def _has_states(chosen: Recipe) -> bool:
    return chosen.optimizer in ("Adam", "AdamW")


def _runs(model: Model, request: PlanRequest) -> dict[bool, Any]:
    """Runs without and with checkpointing; not every model supports it."""
    card = request.gpu.card
    runs = {False: model.run(msgspec.structs.replace(model.recipe, checkpointing=False), card)}
    if "checkpointing" in request.without:
        return runs
    try:
        runs[True] = model.run(msgspec.structs.replace(model.recipe, checkpointing=True), card)
    except Refused as refusal:
        import sys

        sys.stderr.write(f"gflow plan: checkpointing is not possible: {refusal.message}\n")
    return runs


# ---------------------------------------------------------------- gflow gpus pick


def choose_gpu(
    values: Values, show: Show = quiet
) -> tuple[gpu_choice.BestChoices, list[gpu_choice.Choice], gpu_choice.Workload]:
    """The cheapest, fastest and best-value GPU for a workload, all that have room, and the workload."""
    work = _work(values, show)
    named = [find_gpu(name.strip()) for name in values["gpu"].split(",")] if "gpu" in values else []
    gpus = {gpu.name: gpu for gpu in named} or catalogue()
    found = gpu_choice.choices(work, gpus, is_spot="spot" in values)
    if not found:
        size = work.needs(gpu_choice.COUNTS[-1]) / (1 << 30)
        none = "none of these GPUs" if named else "no GPU of the catalogue"
        raise Refused(
            f"{none} has enough memory, not even eight of them: {size:.0f} GiB on each",
            hint="gflow plan tries more: checkpointing, an 8-bit optimizer, offloading",
        )
    return gpu_choice.pick(found), found, work


def _work(values: Values, show: Show) -> gpu_choice.Workload:
    """The named workload, or the training of a model."""
    models = [name for name in ("hf", "tv", "py", "params") if name in values]
    if "workload" not in values:
        if not models:
            names = ", ".join(gpu_choice.WORKLOADS)
            raise UsageError("which workload?", hint=f"--workload {names}; or --hf config.json, --params 7B")
        return _training(Model(values, show))
    if models:
        raise UsageError(f"--workload or --{models[0]}, not both")
    name = values["workload"]
    if name not in gpu_choice.WORKLOADS:
        raise unknown("workload", name, gpu_choice.WORKLOADS)
    if further := sorted(RECIPE & values.keys()):
        raise UsageError(f"--workload {name} has its own --{further[0]}", hint="name a model: --params 7B")
    return gpu_choice.WORKLOADS[name]


def _training(model: Model) -> gpu_choice.Workload:
    """Training of a model; several GPUs shard weights, gradients and optimizer states (FSDP)."""
    chosen = model.recipe
    if model.parameters is not None:
        counted = formula.FormulaRun(model.parameters, chosen)
    else:
        trace = model.trace(chosen, HOPPER)
        sizes = [request.size for request in trace.requests]

    def needs(gpus: int) -> int:
        way = Shaping(Sharing(gpus, "fsdp" if gpus > 1 else "none"))
        if model.parameters is not None:
            return (counted.needed(chosen.batch, way) or 0) + HOPPER.context
        return (needed(trace, sizes, way) or 0) + HOPPER.context

    about = f"training, batch {chosen.batch} on each GPU, {chosen.precision}; several GPUs by FSDP"
    return gpu_choice.Workload(about, needs, needs_bf16=chosen.precision.startswith("bf16"))


# ---------------------------------------------------------------- Python


def arguments(
    options: Iterable[Option], keywords: Mapping[str, object], recipe: Recipe | None = None
) -> dict[str, Any]:
    """Values by the names of options, from the keyword arguments of a function. `recipe`: replaces some."""
    given = {name: value for name, value in keywords.items() if name not in LIVE}
    live: dict[str, Any] = {name: keywords[name] for name in LIVE if keywords.get(name) is not None}
    values = values_of(options, given)
    if recipe is not None and (further := sorted(RECIPE & values.keys())):
        raise UsageError(f"recipe cannot be combined with {further[0]}", hint="put it into the recipe")
    if not live:
        return values
    if "model" not in live or "example" not in live:
        raise UsageError("a model needs an example of its batches", hint="model=net, example=(x, y)")
    for name in ("hf", "tv", "py", "params", *EXAMPLE_TELLS):
        if name in values:
            reason = "the example tells it" if name in EXAMPLE_TELLS else "one model at a time"
            raise UsageError(f"model= and {name.replace('-', '_')}=: {reason}")
    from gflow.ml.fit.models.live_model import LiveModel

    model = LiveModel(**live)
    values.setdefault("batch", model.batch)
    if model.precision:
        values.setdefault("precision", model.precision)
    return {**values, "py": model}


@with_keywords(EstimateKeywords)
def estimate(**options: Unpack[EstimateKeywords]) -> Answer:
    """Predict the memory of training a model by running its steps on a fake CUDA device.

    `hf`: a config.json, its folder, or the configuration as a dictionary. `tv`: a name of torchvision.
    `py`: `module:callable` or the callable itself. `params`: a number of parameters, `7B`, for a rough
    estimate. `model`: a model that exists, which stays as it is, with an `example` of its batches, and a
    `step(model, batch, optimizer)` if it does not return its loss. `gpu`: a GPU of the catalogue; `cap`: the
    memory of one, `24G` or a number of MiB. `largest` adds the largest batch that fits into it, `chart`
    memory by batch. `options` are those of `gflow fit`; `recipe` replaces those of the
    training. Returns what `gflow fit --json` prints: a dictionary whose entries are attributes too.
    """
    given = {name: value for name, value in options.items() if name != "recipe"}
    recipe = options.get("recipe")
    return predict(arguments((*MODEL, *fit_options.RECIPE, *CARD, *CHART), given, recipe), chosen=recipe)


@with_keywords(PlanKeywords)
def plan_training(**options: Unpack[PlanKeywords]) -> Answer:
    """Find the fastest training setup that fits: `plan(params="7B", on="4xA100-80GB", precision="bf16")`.

    `options` are those of `gflow plan`, and `model` and `example` as for `estimate`. Returns
    what `--json` prints; `out` writes it to a file for `gflow.train.Run.planned`.
    """
    named: dict[str, object] = {**options}
    if (gpu := named.pop("gpu", None)) is not None:
        named["on"] = gpu
    values = arguments((*MODEL, *plan_options.TRAINING, *plan_options.PLAN), named)
    values.pop("batch", None)

    def local() -> tuple[Gpu, int]:
        raise UsageError("which GPUs?", hint='on="4xA100-80GB"')

    found = make_plan(values, local)
    if "out" in values:
        write_plan(values["out"], found, "")
    return plan_answer(found)


@with_keywords(PickKeywords)
def pick_gpu(**options: Unpack[PickKeywords]) -> Answer:
    """Choose a GPU: `pick(workload="finetune-7b")`, or for a model: `pick(hf="config.json", batch=8)`.

    `options` are those of `gflow gpus pick`. Returns what `--json` prints.
    """
    picked, found, _ = choose_gpu(arguments(gpus_options.PICK, options))
    answer: Answer = Answer.of(picked)
    answer["fits"] = Answer.of(found)
    return answer


@with_keywords(LargestKeywords)
def largest(**options: Unpack[LargestKeywords]) -> int:
    """Predict the largest batch that fits: `largest(hf="config.json", gpu="A100-40GB", precision="bf16")`.

    `options` are those of `gflow fit`; 0 if not even one example fits.
    """
    values = arguments((*MODEL, *fit_options.RECIPE, *CARD), options)
    gpu = find_gpu(values["gpu"], Model(values).recipe.precision) if "gpu" in values else None
    room = room_of({**values, "largest": True}, gpu)
    assert room is not None
    if "params" in values:
        Model(values).refuse_formula("params")
    return _largest(Model(values), gpu.card if gpu else HOPPER, room)


def write_plan(path: str, found: Plan, command: str) -> None:
    import json

    try:
        with open(path, "w") as file:
            file.write(json.dumps(plan_answer(found, command), indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path!a}: {error.strerror}") from None


def plan_answer(found: Plan, command: str = "") -> Answer:
    """What `gflow plan --json` prints. `command`: the line that submits it."""
    answer: Answer = Answer.of(found)
    if command:
        answer["command"] = command
    return answer
