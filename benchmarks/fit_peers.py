"""Answers of other estimators for a measured case: bytes by name, each as its source computes them.

None of them knows of batches of pictures, of clipping or of frozen layers; they are asked with what they take.
"""

NAMES = (
    "guide, 16 B a parameter",
    "guide, its function",
    "accelerate estimate-memory",
    "DeepSpeed ZeRO-2",
    "DeepSpeed ZeRO-3",
)


def answers(case, facts):
    """`facts`: total, learned and largest_layer (numbers of parameters), width and depth (None where the model has no
    config with these names)."""
    total = facts["total"]
    made = (
        # The short formula, kindly read: the term for activations only where there are sequences.
        16 * total + (activations(case, facts) if case["seq"] else 0),
        guide(case, facts),
        accelerate(case, total),
        # deepspeed/runtime/zero/stage_1_and_2.py, stage3.py: estimate_zero{2,3}_model_states_mem_needs, one GPU,
        # nothing offloaded. They answer for weights, gradients and states alone.
        4 * total + 16 * total,
        4 * facts["largest_layer"] + 18 * total,
    )
    return dict(zip(NAMES, made, strict=True))


def size(case):
    return 4 if case["precision"] == "fp32" else 2


def activations(case, facts):
    """batch * sequence * hidden * layers * bytes * 2, with the defaults of the guide's function (512, 768, 12) wherever the
    model does not say."""
    return (
        case["batch"]
        * (case["seq"] or 512)
        * (facts["width"] or 768)
        * (facts["depth"] or 12)
        * size(case)
        * 2
    )


def guide(case, facts):
    """Its function as it stands: what learns, and the defaults also for models without sequences. They make 154 GB of a
    multilayer perceptron with a batch of 4096; that is its worst case."""
    learned, optimizer = facts["learned"], case["optimizer"].lower()
    states = {"adam": 8, "adamw": 8, "sgd": 4}.get(optimizer, 0)
    return learned * (2 * size(case) + states) + activations(case, facts)


def accelerate(case, total):
    """accelerate/commands/estimate.py: `Training using Adam` is the largest of its four figures."""
    single = 4 * total
    return 4 * single if case["precision"] == "fp32" else 2 * single
