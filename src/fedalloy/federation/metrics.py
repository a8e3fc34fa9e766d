"""The table of all metrics.

`METRICS` is the only place that defines a metric: its column, unit, direction and meaning. Records, tables, plots, the
report and the docs all read it from there. The functions are in `across` (over clients), `classification`, `regression`
and `intervals`; `tally` says which of them each task has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedalloy.base.text import TIMES, human_bytes, human_seconds, number, plus_minus
from fedalloy.data.samples import Task

Unit = Literal["percent", "thousandths", "number", "power", "count", "client", "bytes", "seconds"]
FACTORS: dict[Unit, float] = {"percent": 100.0, "thousandths": 1000.0}  # factor for a value when written


@dataclass(frozen=True)
class Metric:
    """One metric: where it comes from, how it is written, and which direction is better.

    >>> METRICS["amp"].write(0.8407, 0.0012), METRICS["bytes_total"].write(1500.0)
    ('84.07 ± 0.12', '1.50 kB')
    """

    name: str  # its key in records, rows and `table.json`
    heading: str
    unit: Unit
    better: Literal["high", "low", ""]
    meaning: str
    source: Literal["view", "curve", "run"] = "view"  # recorded for each view; of a view's curve; of the whole run
    path: tuple[str, ...] = ()  # where a round's record has it, if it is summed over all rounds
    plus: tuple[str, ...] = ()  # where the record has a second part of it
    per: tuple[str, ...] = ()  # where the record has what it is divided by; it is then that of the last round
    table: Literal["comparison", "decisions", "mixtures", "costs", ""] = ""  # the table that shows it
    tasks: tuple[Task, ...] = ()  # those that have it, if not all

    @property
    def factor(self) -> float:
        """What a value is multiplied by when it is written or plotted."""
        return FACTORS.get(self.unit, 1.0)

    @property
    def title(self) -> str:
        """The heading of a plot."""
        return f"{self.heading}, lower is better" if self.better == "low" else self.heading

    def write(self, mean: float | None, std: float | None = None) -> str:
        """A value as text; scores are followed by their standard deviation over seeds, if there is one."""
        if self.unit == "bytes":
            return human_bytes(mean)
        if self.unit == "seconds":
            return human_seconds(mean)
        if self.unit in ("count", "client"):
            return number(mean, 0)
        if self.unit == "power":
            return number(mean) if mean is None else f"{mean:.3g}"
        mean, std = (None if value is None else value * self.factor for value in (mean, std))
        return plus_minus(mean, std)


# In the order of the columns of a table.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "amp", "AMP %", "percent", "high", table="comparison",
            meaning="Average model performance: correct predictions over all clients' test samples. A client counts "
            "by the size of its test set, or of its training data with `amp_weights = \"train\"`.",
        ),
        Metric(
            "fm", f"FM {TIMES}10³", "thousandths", "low", table="comparison",
            meaning="Fairness: the variance of accuracy across clients, each counted once.",
        ),
        Metric(
            "wlp", "WLP %", "percent", "high", table="comparison",
            meaning="Worst local performance: the accuracy of the worst client. No mixture of the clients' test sets "
            "has a lower accuracy.",
        ),
        Metric(
            "worst_client", "Worst", "client", "", table="comparison",
            meaning="The id of the client with the lowest accuracy; a mean over several rounds has none.",
        ),
        Metric(
            "bottom10", "Low 10 %", "percent", "high", table="comparison",
            meaning="The mean accuracy of the worst 10 % of the clients.",
        ),
        Metric(
            "balanced", "Balanced %", "percent", "high", table="comparison",
            meaning="Balanced accuracy: the mean recall over the classes, pooled over all clients' test samples. With "
            "several labels, the mean over labels, each a problem of two classes.",
        ),
        Metric(
            "macro_f1", "Macro-F1 %", "percent", "high", table="comparison",
            meaning="The mean F1 score over the classes, pooled over all clients' test samples.",
        ),
        Metric(
            "auc", "AUC %", "percent", "high", table="decisions", tasks=("classes", "labels"),
            meaning="The area under the ROC curve: how often a positive sample gets a higher score than a negative "
            "one. Of two classes the last is the positive one; otherwise the mean over classes or labels, each against "
            "the rest, of those with both kinds of samples. Mean over clients by the size of their test sets.",
        ),
        Metric(
            "sensitivity", "Sensitivity %", "percent", "high", table="decisions", tasks=("classes", "labels"),
            meaning="The share of positive samples that are found at `threshold`; with more than two classes, the "
            "mean over classes of those predicted right. Pooled over all clients' test samples.",
        ),
        Metric(
            "specificity", "Specificity %", "percent", "high", table="decisions", tasks=("classes", "labels"),
            meaning="The share of negative samples that are not taken for positive at `threshold`; with more than two "
            "classes, the mean over classes. Pooled over all clients' test samples.",
        ),
        Metric(
            "ece", "ECE %", "percent", "low", table="decisions", tasks=("classes",),
            meaning="Expected calibration error: how far the probability of the predicted class is from how often it "
            "is right, in 15 bins. Mean over clients by the size of their test sets.",
        ),
        Metric(
            "subset", "All labels %", "percent", "high", table="decisions", tasks=("labels",),
            meaning="Subset accuracy: the share of test samples whose labels are all predicted right.",
        ),
        Metric(
            "mae", "MAE", "power", "low", table="decisions", tasks=("numbers",),
            meaning="The mean absolute error over all clients' test samples, in the units of the numbers.",
        ),
        Metric(
            "rmse", "RMSE", "power", "low", table="decisions", tasks=("numbers",),
            meaning="The root of the mean squared error over all clients' test samples, in the units of the numbers.",
        ),
        Metric(
            "test", "Test %", "percent", "high", table="comparison",
            meaning="The accuracy on a common test set, if there is one.",
        ),
        Metric(
            "gap", "Gap %", "percent", "low", source="curve", table="comparison",
            meaning="The accuracy that local training loses after distillation: AMP of the distilled view minus AMP "
            "of the personal view.",
        ),
        Metric(
            "bytes_total", "Bytes", "bytes", "low", source="run", path=("bytes",), table="comparison",
            meaning="Bytes sent in all rounds, to the clients and back.",
        ),
        Metric(
            "seconds", "Time", "seconds", "low", source="run", path=("seconds", "total"), table="comparison",
            meaning="Wall-clock time of all rounds, including evaluation.",
        ),
        Metric(
            "round", "Round", "count", "", source="curve", table="comparison",
            meaning="The round that the scores are taken from; a mean over several has none.",
        ),
        Metric(
            "mixture_min", "Lowest %", "percent", "high", table="mixtures",
            meaning="The lowest accuracy on 100 random mixtures of the clients' test sets.",
        ),
        Metric(
            "mixture_mean", "Mean %", "percent", "high", table="mixtures",
            meaning="The mean accuracy on these mixtures.",
        ),
        Metric(
            "mixture_var", f"Variance {TIMES}10³", "thousandths", "low", table="mixtures",
            meaning="The variance of accuracy across these mixtures.",
        ),
        Metric(
            "alma", "ALMA %", "percent", "high",
            meaning="Average local model accuracy: the mean accuracy over clients, each counted once.",
        ),
        Metric(
            "validation", "Validation %", "percent", "high",
            meaning="The accuracy on the clients' validation data, pooled, if any was set aside.",
        ),
        Metric("loss", "Loss", "number", "low",
            meaning="The mean loss per test sample: cross-entropy, or the squared error of numbers, in the square of "
            "their units.",
        ),
        Metric(
            "stability", "Stability %", "percent", "low", source="curve",
            meaning="The standard deviation of AMP over the last 20 evaluated rounds.",
        ),
        Metric("rounds", "Rounds", "count", "", source="run", meaning="The number of the last round."),
        Metric(
            "bytes_up", "Bytes up", "bytes", "low", source="run", path=("bytes", "up"),
            meaning="Bytes sent from the clients in all rounds.",
        ),
        Metric(
            "bytes_down", "Bytes down", "bytes", "low", source="run", path=("bytes", "down"),
            meaning="Bytes sent to the clients in all rounds.",
        ),
        Metric(
            "flops", "FLOPs", "power", "low", source="run", path=("flops", "clients"), plus=("flops", "server"),
            table="costs", meaning="Floating-point operations of all networks in all rounds, clients and server.",
        ),
        Metric(
            "client_flops", "Client FLOPs", "power", "low", source="run", path=("flops", "clients"), table="costs",
            meaning="The clients' part of them.",
        ),
        *(
            Metric(
                name, heading, "number", "low", source="run", path=("passes", "clients", name),
                per=("passes", "clients", "steps"), table="costs",
                meaning=f"{passes} of a client's step, as in FedKF's Table IX, in the last round.",
            )
            for name, heading, passes in (
                ("forward", "Forward", "Forward passes through classifiers"),
                ("backward", "Backward", "Backward passes through classifiers"),
                ("generator_forward", "Generator forward", "Forward passes through generators"),
                ("generator_backward", "Generator backward", "Backward passes through generators"),
            )
        ),
        Metric(
            "training_seconds", "Training", "seconds", "low", source="run", path=("seconds", "client"),
            plus=("seconds", "server"), table="costs",
            meaning="Wall-clock time of all rounds without evaluation and checkpoints, clients and server.",
        ),
    )
}  # fmt: skip

# What texts call a client's score, and AMP, the mean of all scores.
SCORES: dict[Task, str] = {"classes": "accuracy", "labels": "label accuracy", "numbers": "R2"}
BALANCED = "balanced accuracy"  # the score of data on which a model that always gives one answer is mostly right
AVERAGES: dict[Task, str] = {"classes": "AMP", "labels": "label accuracy", "numbers": "R2"}
HEADINGS: dict[Task, dict[str, str]] = {
    "classes": {},
    "labels": {"amp": "Label accuracy %", "wlp": "Worst %"},
    "numbers": {"amp": "R2 %", "wlp": "Worst R2 %", "test": "Test R2 %", "validation": "Validation R2 %"},
}
MEANINGS: dict[Task, str] = {
    "labels": "Label accuracy, or Hamming accuracy: the share of right answers about labels, over all clients' test "
    "samples.",
    "numbers": "R2, the share of the targets' variance that is explained: mean over clients by the size of their test "
    "sets. Below zero, a client's mean would be a better guess.",
}


def heading_of(name: str, task: Task = "classes") -> str:
    """The heading of a metric's column, which in other tasks than classes says what the score is.

    >>> heading_of("amp"), heading_of("amp", "numbers")
    ('AMP %', 'R2 %')
    """
    return HEADINGS[task].get(name, METRICS[name].heading)


def meaning_of(name: str, task: Task = "classes") -> str:
    """What a metric means in a task: those of clients' accuracies are of their scores in that task.

    >>> meaning_of("fm", "numbers")
    'Fairness: the variance of R2 across clients, each counted once.'
    """
    if name == "amp" and task != "classes":
        return MEANINGS[task]
    meaning = METRICS[name].meaning
    return meaning if METRICS[name].tasks else meaning.replace("accuracy", SCORES[task])


AmpWeights = Literal["test", "train"]

# The choices of an experiment's `stop.metric` and of the metrics of a `[[published]]` table.
StopMetric = Literal["amp", "wlp", "alma", "test", "validation"]
PublishedMetric = Literal["amp", "alma", "fm", "wlp", "test"]
