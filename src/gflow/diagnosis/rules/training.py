"""Rules about training: NaN, data loaders, batches."""

from __future__ import annotations

from gflow.diagnosis.rules.rule import Confidence, Depth, Rule

NAN_ADVICE = (
    "lower the learning rate or add warm-up, clip gradients, and prefer bf16 to fp16",
    "torch.autograd.set_detect_anomaly(True) names the operation; look for bad samples in the data",
)

RULES = (
    Rule(
        "nan",
        ("Loss is nan", "loss is nan", "loss is NaN", "Loss is NaN", "loss is inf", "loss: nan", "loss=nan", "Loss: nan", "returned nan values in its", "NaN detected", "nan detected", "Non-finite loss", "non-finite loss",
         "probability tensor contains either `inf`, `nan`", "Input contains NaN", "invalid values: tensor([nan", "found invalid values", "Nan loss", "Nan or Inf found", "became NaN", "is nan", "Loss diverged", "NaN loss", "NaN or Inf", "nan or inf", "is not finite", "contains NaN", "'loss': nan", "train_loss=nan", "FloatingPointError", "encountered in the gradients"),
        "The loss or a value became NaN or infinite.",
        NAN_ADVICE,
        "FloatingPointError: Minimum loss scale reached (0.0001). Loss is nan, stopping training",
        r"(?i)nan|inf\b|finite|Minimum loss scale|invalid values",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "nan",
        ("oss nan", "oss NaN", "oss: NaN", "oss=NaN", "oss = nan", "oss = NaN", "oss inf", "oss: inf", "oss=inf", "oss = inf", "oss': inf"),
        "The loss became NaN or infinite.",
        NAN_ADVICE,
        "epoch 3 step 34 train_loss nan lr 0.0003",
        r"(?i)\b\w*loss'?(?:\s*[:=]\s*|\s+)(?:nan|inf)\b",
        confidence=Confidence.POSSIBLE,
        depth=Depth.GENERAL,
    ),
    Rule(
        "nan",
        ("Minimum loss scale reached", "Current loss scale already at minimum", "loss scale to 0.0", "Loss scale is too small"),
        "The gradient scaler of fp16 found no scale without overflow: the values are NaN or infinite.",
        ("use bf16, or lower the learning rate and clip gradients",),
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ),
    Rule(
        "loader-worker",
        ("DataLoader worker (pid", "Pin memory thread exited unexpectedly", "DataLoader timed out after", "Caught ", "DataLoader worker exited unexpectedly"),
        "A worker of the data loader died[: {text}].",
        ("the cause is in the worker: run with num_workers=0 to see its own error",),
        "RuntimeError: DataLoader worker (pid(s) 4242) exited unexpectedly",
        r"DataLoader worker \(pid\S*(?: [\d, ]+\))? ?exited unexpectedly|(?:worker|thread) exited unexpectedly|DataLoader timed out|Caught (?P<text>\w+) in DataLoader worker process",
        confidence=Confidence.LIKELY,
        depth=Depth.CONSEQUENCE,
    ),
    Rule(
        "empty-data",
        ("num_samples should be a positive integer value", "but got num_samples=0", "Found 0 files", "Found 0 images", "Found no valid file for the classes", "No data found", "contains no samples", "Dataset is empty", "dataset is empty", "Couldn't find any class folder", "The dataset is empty", "No images found", "No labels found", "n_samples=0", "EmptyDataError", "train set will be empty"),
        "The data set is empty.",
        ("check the path of the data, and filters on it",),
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "batch-norm",
        ("Expected more than 1 value per channel when training",),
        "Batch normalisation got a batch of one sample.",
        ("use drop_last=True, or a larger batch per GPU",),
        "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 512])",
    ),
    Rule(
        "label-range",
        ("Target ",),
        "A label is larger than the number of classes.",
        ("labels go from 0 to classes − 1: check the data set and the last layer",),
        "IndexError: Target 10 is out of bounds.",
        r"Target -?\d+ is out of bounds",
    ),
    Rule(
        "graph-twice",
        ("Trying to backward through the graph a second time", "has been modified by an inplace operation", "a leaf Variable that requires grad", "does not require grad and does not have a grad_fn"),
        "Autograd cannot compute the gradients: the graph is gone, changed in place, or missing.",
        ("detach values kept from an earlier step, replace in-place operations, check requires_grad",),
        "RuntimeError: Trying to backward through the graph a second time",
    ),
)  # fmt: skip
