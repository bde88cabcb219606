"""GPUs, rough formulas, serving and picking: all without PyTorch."""

from __future__ import annotations

import json

import pytest

from gflow.errors import Refused, UsageError
from gflow.ml.fit import formula, gpu_choice, serving, tables
from gflow.ml.fit.catalogue import catalogue, find_gpu, gpu_named
from gflow.ml.fit.fits import verdicts
from gflow.ml.fit.recipe import Recipe

GIB = 1 << 30


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gflow").mkdir()
    return tmp_path / "gflow" / "gpus.toml"


def test_every_figure_has_its_source_and_date():
    gpus = catalogue()
    assert {"T4", "A100-40GB", "H200", "B200", "RTX-3080", "RTX-4090"} <= set(gpus)
    for gpu in gpus.values():
        assert 0 < gpu.room < gpu.memory_gib * GIB
        for offer in (gpu.spot, gpu.hourly):
            assert offer is None or (offer.price > 0 and offer.source and offer.date)


def test_own_entries_replace_and_add(own):
    own.write_text(
        '[H200]\narchitecture = "hopper"\nmemory_gib = 100\nbandwidth = 1\nbf16 = 1\nfp32 = 1\n'
        '[Mine]\narchitecture = "ada"\nmemory_gib = 1\nbandwidth = 1\nbf16 = 1\nfp32 = 1\n'
    )
    assert find_gpu("h200").memory_gib == 100
    assert next(iter(catalogue())) == "Mine"


@pytest.mark.parametrize(
    "text",
    ["[X]\nmemory_gib = 4\n", "[X", '[X]\narchitecture="moon"\nmemory_gib=4\nbandwidth=1\nbf16=1\nfp32=1\n'],
)
def test_own_entries_that_make_no_sense(own, text):
    own.write_text(text)
    with pytest.raises(UsageError, match=r"gpus\.toml"):
        catalogue()


def test_an_unknown_gpu_is_refused_with_a_guess():
    with pytest.raises(UsageError) as caught:
        find_gpu("A100-40G")
    assert "A100-40GB" in caught.value.hint


@pytest.mark.parametrize(
    ("model", "memory_gib", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 80.0, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40.0, "A100-40GB"),
        ("Tesla V100-SXM2-32GB", 32.0, "V100-32GB"),
        ("Tesla T4", 15.0, "T4"),
        ("NVIDIA L40S", 45.0, "L40S"),
        ("NVIDIA L4", 22.5, "L4"),
        ("NVIDIA GeForce RTX 4090", 24.0, "RTX-4090"),
        ("NVIDIA GeForce RTX 5090", 31.8, "RTX-5090"),
        ("NVIDIA RTX A6000", 48.0, "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", 48.0, "RTX-6000-Ada"),
        ("NVIDIA GH200 480GB", 95.0, "GH200-96GB"),
        ("NVIDIA H100 NVL", 93.6, "H100-80GB"),
        ("NVIDIA GeForce RTX 2080 Ti", 11.0, None),
        ("Simulated 80 GB", 80.0, None),
    ],
)
def test_gpu_is_found_by_the_model_of_its_driver(own, model, memory_gib, name):
    own.write_text('[80GB]\narchitecture = "ada"\nmemory_gib = 80\nbandwidth = 1\nbf16 = 1\nfp32 = 1\n')
    found = gpu_named(model, memory_gib)
    assert (found and found.name) == name


@pytest.mark.parametrize(("text", "number"), [("7B", 7 * 10**9), ("1.3b", 13 * 10**8), ("350M", 35 * 10**7)])
def test_parameter_counts(text, number):
    assert formula.count(text) == number


@pytest.mark.parametrize("text", ["", "B", "many", "-7B", "2000T", "nan", "1e400", "1"])
def test_parameter_counts_that_are_none(text):
    with pytest.raises(UsageError):
        formula.count(text)


def test_the_guessed_shape_is_that_of_known_models():
    width, depth = formula.shape(7 * 10**9)
    assert width == pytest.approx(4096, rel=0.1)
    assert depth == pytest.approx(32, rel=0.1)


def test_states_are_sixteen_bytes_per_parameter():
    found = formula.estimate(10**9, Recipe())
    parts = found.breakdown
    assert parts["parameters"] + parts["gradients"] + parts["optimizer"] == 16 * 10**9
    assert found.confidence == "rough"
    assert found.in_gb()["params_gb"] == pytest.approx(4.0)


def test_a_larger_card_never_fits_less():
    found = formula.estimate(10**9, Recipe(batch=4, sequence=2048))
    order = {"no": 0, "tight": 1, "yes": 2}
    states = [order[verdict.fits] for verdict in verdicts(found, None, catalogue())]
    assert states == sorted(states)
    assert {0, 2} <= set(states)


def test_serving_llama_7b():
    config = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
    found = serving.by_config(config, bits=16, context=4096)
    assert found.total_params == pytest.approx(6.74e9, rel=0.01)
    assert found.cache_bytes_per_token == 512 * 1024
    assert found.cache_bytes == 2 * GIB
    halved = serving.by_config(config, bits=16, context=4096, tensor_parallel=2)
    assert halved.weights_bytes == found.weights_bytes // 2
    assert serving.by_config(config, bits=4).weights_bytes < found.weights_bytes / 3


def test_serving_on_a_named_gpu_and_in_few_bits(capsys):
    from gflow.cli.tools.fit import run
    from gflow.fit import estimate_serving

    assert run(["--infer", "--params", "13B", "--gpu", "T4", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page == estimate_serving(params="13B", gpu="t4") and page["fits"] is False
    assert [card["gpu"] for card in page["gpus"]] == ["T4"]
    assert run(["--infer", "--params", "13B", "--gpu", "T4", "--quantize", "4"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("it fits\n") and "T4   yes" in text
    assert estimate_serving(params="7B", quantize=4) == estimate_serving(params="7B", bits=4)
    with pytest.raises(UsageError, match="are the same when a model is served"):
        estimate_serving(params="7B", quantize=4, bits=8)
    with pytest.raises(UsageError, match="--batch is for training"):
        run(["--infer", "--params", "7B", "--batch", "4"])


def test_serving_by_size_assumes_grouped_heads_for_large_models():
    """Llama 3 of 8B: 128 KiB a token. A 7B model with eight requests fits an L4."""
    assert serving.by_count(8 * 10**9).cache_bytes_per_token == pytest.approx(128 * 1024, rel=0.1)
    small = serving.by_count(10**9)
    assert small.cache_bytes_per_token == 4 * formula.shape(10**9).width * formula.shape(10**9).depth
    work = gpu_choice.WORKLOADS["inference-7b"]
    assert next(one.count for one in gpu_choice.choices(work, catalogue()) if one.gpu == "L4") == 1


def test_vision_workload_is_near_the_prediction_of_its_model():
    """`gflow fit --tv vit_b_16 --batch 64 --precision bf16`: 6.6 GiB, whole process."""
    assert gpu_choice.WORKLOADS["vision"].needs(1) == pytest.approx(6.6 * GIB, rel=0.1)


def test_one_gpu_is_enough_for_more_with_more_memory():
    named = [set(gpu_choice.good_for(catalogue()[name])) for name in ("T4", "L4", "A100-40GB", "B200")]
    assert named == sorted(named, key=len) and named[0] == {"embedding", "vision"}
    assert named[-1] == set(gpu_choice.WORKLOADS) and "finetune-7b" in named[1] - named[0]


def test_serving_what_is_no_decoder():
    with pytest.raises(UsageError):
        serving.by_config({"hidden_size": 8})
    with pytest.raises(UsageError):
        serving.by_count(10**9, bits=5)


@pytest.mark.parametrize("name", gpu_choice.WORKLOADS)
def test_every_workload_finds_a_gpu(name):
    work = gpu_choice.WORKLOADS[name]
    found = gpu_choice.choices(work, catalogue())
    picked = gpu_choice.pick(found)
    assert picked.cheapest is not None and picked.fastest is not None and picked.value is not None
    assert picked.cheapest.hourly == min(choice.hourly for choice in found if choice.hourly)
    assert all(choice.share <= 1 for choice in found)


def test_tables_are_computed():
    header, rows = tables.sizes()
    assert rows[4] == ["7B", "28.00 GB", "14.00 GB", "7.42 GB", "3.71 GB"]
    assert len(header) == len(rows[0])
    assert [row[2] for row in tables.sharding()[1]] == ["112.0 GB", "63.0 GB", "38.5 GB", "14.0 GB"]
    assert all(row[1].endswith("%") and not row[1].startswith("-") for row in tables.techniques()[1])


def test_every_figure_says_where_it_is_from():
    for gpu in catalogue().values():
        assert gpu.checked, f"{gpu.name}: say what was compared, or nothing"
        for offer in (gpu.spot, gpu.hourly):
            assert offer is None or (offer.source and offer.date)


def test_cards_without_bf16_get_no_work_in_bf16():
    work = gpu_choice.Workload("", lambda _: 1 << 30, needs_bf16=True)
    assert set(catalogue()) - {choice.gpu for choice in gpu_choice.choices(work, catalogue())} == {
        "T4",
        "V100-16GB",
        "V100-32GB",
    }


def test_large_model_is_spread_over_gpus(capsys):
    from gflow.cli.tools.gpus import run

    assert run(["pick", "--params", "13B", "--precision", "bf16", "--seq", "512", "--json"]) == 0
    counts = {choice["gpu"]: choice["count"] for choice in json.loads(capsys.readouterr().out)["fits"]}
    assert counts["B200"] < counts["H100-80GB"] <= 8
    assert "T4" not in counts


def test_prices_from_memory_are_marked(capsys):
    from gflow.cli.tools.gpus import run

    unsure = {name for name, gpu in catalogue().items() if gpu.hourly and not gpu.hourly.is_compared}
    assert run([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if " ~" in line and line[0] != "("} == unsure
    assert "B200" in unsure and "H100-80GB" not in unsure
    assert run(["pick", "--workload", "research"]) == 0
    assert "~4.99" in capsys.readouterr().out


def test_missing_price_is_named_and_not_taken_from_the_other_offer(capsys):
    from gflow.cli.tools.fit import run as fit
    from gflow.cli.tools.gpus import run

    notes = "(- no price known; ~ unverified price; sources: gflow gpus --json)"
    gpus = catalogue()
    assert gpus["GH200-96GB"].hourly and gpus["GH200-96GB"].spot is None and gpus["A30"].hourly is None
    assert run(["pick", "--workload", "finetune-7b", "--spot"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert next(row.split()[4] for row in rows if "GH200" in row) == "-"
    assert last == "(- no price known; sources: gflow gpus --json)"
    assert run(["pick", "--workload", "finetune-7b", "--gpu", "L40,MI300X"]) == 0
    assert "sources" not in capsys.readouterr().out
    for show in (lambda: run([]), lambda: fit(["--params", "1B"])):
        assert show() == 0
        assert notes in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ([], "which work"),
        (["--workload", "vision", "--params", "7B"], "not both"),
        (["--params", "999B"], "no GPU of"),
        (["--params", "70B", "--gpu", "T4"], "none of these GPUs"),
        (["--params", "7B", "--gpu", "T5"], "T5"),
    ],
)
def test_bad_pick_options_are_refused(words, refusal):
    from gflow.cli.tools.gpus import run

    with pytest.raises((UsageError, Refused), match=refusal):
        run(["pick", *words])


def test_picking_among_named_gpus(capsys):
    from gflow.cli.tools.gpus import run

    assert run(["pick", "--workload", "finetune-7b", "--gpu", "h200, A100-80GB", "--json"]) == 0
    assert {one["gpu"] for one in json.loads(capsys.readouterr().out)["fits"]} == {"H200", "A100-80GB"}


def test_prices_on_demand_and_spot_are_not_mixed(capsys):
    from gflow.cli.tools.gpus import run

    gpus = catalogue()
    for words, offer in (([], "hourly"), (["--spot"], "spot")):
        assert run(["pick", "--workload", "inference-7b", "--json", *words]) == 0
        answer = json.loads(capsys.readouterr().out)
        for choice in answer["fits"]:
            price = getattr(gpus[choice["gpu"]], offer)
            expected = round(price.price * choice["count"], 3) if price else None
            assert choice["hourly"] == expected and choice["offer"] == offer.replace("hourly", "on demand")
        assert answer["cheapest"]["hourly"] == min(one["hourly"] for one in answer["fits"] if one["hourly"])
    assert run(["pick", "--workload", "research", "--spot"]) == 0
    assert "$/HOUR SPOT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("workload", "unit", "cost"), [("vision", "TFLOP/S", "$/EFLOP"), ("inference-7b", "GB/S", "$/PB")]
)
def test_pick_shows_speed_and_the_price_of_work(capsys, workload, unit, cost):
    """The best value is the GPU whose work is cheapest; a price that is not known has none."""
    from gflow.cli.tools.gpus import run

    assert run(["pick", "--workload", workload]) == 0
    header, *rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[:22]]
    assert {unit, cost} <= {one.strip() for one in header}
    assert run(["pick", "--workload", workload, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    costs = [one["work_cost"] for one in answer["fits"] if one["work_cost"] is not None]
    assert answer["value"]["work_cost"] == min(costs)
    assert all((one["work_cost"] is None) is (one["hourly"] is None) for one in answer["fits"])
    one = answer["value"]
    seconds = one["hourly"] / 3600
    assert one["work_cost"] == pytest.approx(seconds / one["speed"] * 1e6, abs=0.001)
    picked = next(row for row in rows if row[-1].endswith("value"))
    assert f"{one['speed']:g}" in [cell.strip() for cell in picked]


def test_fit_plan_and_pick_take_the_gpu_by_the_same_names():
    from gflow.options.commands import fit_options, gpus_options, plan_options
    from gflow.options.job_options import spellings

    for table in (fit_options.OPTIONS, plan_options.OPTIONS, gpus_options.PICK):
        assert spellings(table)["--gpu"] is spellings(table)["--gpus"]
    assert spellings(plan_options.OPTIONS)["--on"] is spellings(plan_options.OPTIONS)["--gpu"]
