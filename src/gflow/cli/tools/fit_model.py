"""The model and the training recipe that the options of gflow fit and gflow plan describe."""

from __future__ import annotations

from typing import Any

from gflow.options.commands.fit_options import RECIPE


def run_of(values: dict[str, Any], recipe: Any, card: Any) -> Any:
    """The training run of the recipe, for any batch size."""
    import msgspec

    if "params" in values:
        from gflow.ml.fit import formula

        return formula.FormulaRun(formula.count(values["params"]), recipe)
    from gflow.ml.fit.batch_scaling import BatchScaling

    return BatchScaling(lambda batch: trace_of(values, msgspec.structs.replace(recipe, batch=batch), card))


def trace_of(values: dict[str, Any], recipe: Any, card: Any) -> Any:
    from gflow.cli.common.status_line import show_status
    from gflow.ml.fit.estimate import check_one_model, record
    from gflow.ml.fit.models import hf_config, lazy_torch

    check_one_model(values)
    given = {name: values[name] for name in ("hf", "tv", "py", "task") if name in values}
    if "hf" in given:
        # Report an unreadable file before PyTorch is loaded.
        given["hf"] = hf_config.read(given["hf"])
    with show_status("loading PyTorch"):
        lazy_torch.load(transformers="hf" in given, is_ours="py" not in given)
    with show_status(f"recording a run with batch {recipe.batch}"):
        return record(**given, recipe=recipe, card=card)


def recipe_of(values: dict[str, Any]) -> Any:
    """The recipe that the options describe."""
    from gflow.ml.fit import recipe

    names = {option.name for option in RECIPE}
    return recipe.recipe_of({name: value for name, value in values.items() if name in names})
