"""How much accuracy methods keep when some clients attack, with and without options that limit an attacker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.files import write_json
from fedalloy.base.registry import suggest
from fedalloy.base.text import MISSING, number
from fedalloy.check.attacks import ATTACKS, Attack, Attacked, choose_attackers
from fedalloy.config.build import build, tried
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import for_method, make_method
from fedalloy.config.overrides import override, read_toml
from fedalloy.config.sections import Choice, Experiment
from fedalloy.engine.choose import engine_for
from fedalloy.engine.malloc import tune_malloc
from fedalloy.errors import UsageError
from fedalloy.federation import across
from fedalloy.federation.core import Method, run
from fedalloy.report.progress import Display
from fedalloy.run.comparison import Begin, chosen, trained_alike
from fedalloy.storage.results import VIEWS
from fedalloy.storage.store import Say
from fedalloy.train.fit import one_thread

# Attackers can only spoil what an exchange gains, so it must gain something: everyone is tested on all classes,
# and FedMD digests in many steps; with one step per round, or local tests, it looks immune. `local` is the baseline.
# Mild skew: if clients hold few classes, honest ones look like outliers, and trimming alone costs accuracy.
DEFAULT: Mapping[str, Any] = {
    "rounds": 20,
    "data": {"name": "fashion-mini"},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 1.0, "test": "global"},
    "model": {"name": "mlp"},
    "training": {"work": "fixed_steps", "steps": 8, "batch": 32, "lr": 0.02, "momentum": 0.9},
    "public": {"data": "own", "samples": 200, "labelled": True},
    "methods": {
        "local": {},
        "fedavg": {},
        "fedmd": {"pretrain_public": 3, "pretrain_private": 3, "digest_epochs": 5, "digest_batch": 32},
        "knfu": {},
        "ds-fl": {},
        "dafkd-scores": {  # clients report their own influence; a small configuration
            "noise": 16,
            "generator_width": 8,
            "distil_samples": 256,
            "distil_steps": 40,
        },
    },
}
NONE = "none"  # no defence, or no attack
LOGITS_WITHIN = 10.0
EQUAL_SHARES = 2.0  # factor by which one client's share may exceed an equal one
WELL = 0.9  # results that keep less of their accuracy are shown in red


@dataclass(frozen=True)
class Score:
    """What honest clients reach with a method, a defence and an attack.

    `accuracy` is the AMP of their test samples after the last round, with the model that they would use: their own if
    the method gives them one, else the server's. `kept` is this accuracy as a share of what the same method and defence
    reach without attackers. Both are None if the method sends nothing that the attack could change.
    """

    method: str
    defence: str
    attack: str
    seed: int
    view: str
    accuracy: float | None
    kept: float | None


def bounds(attackers: int, clients: int) -> dict[str, dict[str, Any]]:
    """The options that limit attackers, by the name of the defence.

    Trimming drops as many of the largest and smallest values as there are attackers, Krum as many clients.

    >>> bounds(3, 10)["krum"]
    {'combine': 'krum', 'trim': 0.3}
    """
    share = math.ceil(1000 * attackers / clients) / 1000
    return {
        "trimmed mean": {"combine": "trimmed", "trim": share},
        "median": {"combine": "median"},
        "krum": {"combine": "krum", "trim": share},
        "clipped": {"clip": "median"},
        "clipped logits": {"clip_logits": LOGITS_WITHIN},
        "capped shares": {"max_share": min(1.0, EQUAL_SHARES / clients)},
    }


RULE = frozenset(f.name for f in fields(Aggregation))


def defences(choice: Choice, attackers: int, clients: int, exp: Experiment | None = None) -> dict[str, Method]:
    """A method as configured in an experiment, and with each of `bounds` that it supports.

    Options that a method refuses, because its server would bypass them, are left out; a method may support none.

    >>> found = defences(Choice(name="fedavg"), 3, 10)
    >>> list(found), found["trimmed mean"].aggregation.trim
    (['none', 'trimmed mean', 'median', 'krum', 'clipped'], 0.3)
    """
    exp = exp or Experiment()
    found = {NONE: make_method(exp, choice)}
    for name, given in bounds(attackers, clients).items():
        rule = {key: value for key, value in given.items() if key in RULE}
        own = {key: value for key, value in given.items() if key not in RULE}
        if "combine" in rule:  # a given share belongs to the `combine` that was given with it
            rule = {"trim": Aggregation().trim, **rule}
        with suppress(UsageError):  # the method does not support this defence
            options, rule = {**choice.options, **own}, {**choice.aggregation, **rule}
            found[name] = make_method(exp, replace(choice, options=options, aggregation=rule))
    return found


def bench_attacks(
    exp: Experiment | Mapping[str, Any] = DEFAULT,
    methods: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    fraction: float = 0.3,
    *,
    seeds: Sequence[int] | None = None,
    begin: Begin | None = None,
    say: Say = lambda _: None,
) -> list[Score]:
    """Run each method with each of its defences, once without attackers and once under each attack.

    The same clients attack in all runs of a seed. If only some clients take part in a round, the attackers among them
    may be more than a trimmed mean drops. `begin` is called with the name of each line and returns a watcher of its
    runs, which sees each attack as one "round".

    >>> quick = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 4, "alpha": 1.0}}
    >>> scores = bench_attacks(quick, ["fedavg"], ["rank-flip"], fraction=0.25)
    >>> [(s.defence, s.attack, s.kept) for s in scores[:2]]  # FedAvg's clients send no answers
    [('none', 'none', 1.0), ('none', 'rank-flip', None)]
    """
    exp = exp if isinstance(exp, Experiment) else experiment(exp)
    plans = [_attack(name) for name in (ATTACKS if attacks is None else attacks)]
    scores: list[Score] = []
    tune_malloc()
    with one_thread():
        for seed in seeds if seeds is not None else [exp.seed]:
            choices = chosen(exp, methods)
            for keys in trained_alike(exp, choices):
                some = {key: choices[key] for key in keys}
                scores += _bench(replace(exp, seed=seed), some, plans, fraction, begin, say)
    return scores


def _attack(name: str) -> Attack:
    if name not in ATTACKS:
        raise UsageError(f"there is no attack '{name}'; {suggest(name, ATTACKS)}")
    return ATTACKS[name]


def _bench(
    exp: Experiment,
    choices: Mapping[str, Choice],
    plans: Sequence[Attack],
    fraction: float,
    begin: Begin | None,
    say: Say,
) -> list[Score]:
    """All lines of the table for one seed, of methods that train alike."""
    setting = build(for_method(exp, next(iter(choices.values())))).setting
    tried(setting)
    hostile = choose_attackers(len(setting.sites), fraction, setting.seed)
    lines = [
        (method.label if key == choice.name else key, defence, method)
        for key, choice in choices.items()
        for defence, method in defences(choice, len(hostile), len(setting.sites), exp).items()
    ]
    for _, _, method in lines:
        setting.check(method)
    work = [method for _, _, method in lines] * (1 + len(plans))
    scores = []
    with ExitStack() as stack:
        # An engine carries one setting, so poisoned data needs a separate engine.
        settings = [setting, *(plan.poison(setting, hostile) for plan in plans if plan.poison is not None)]
        engines = [
            stack.enter_context(engine_for(work, each, exp.rounds, exp.engine, exp.workers, say)) for each in settings
        ]
        for label, defence, method in lines:
            watch = begin(f"{label}, {defence}", setting.seed) if begin is not None else lambda _: None
            clean = Attacked(engines[0])
            view, best = _reached(method, clean, exp.rounds, hostile)
            scores.append(Score(label, defence, NONE, setting.seed, view, best, 1.0))
            poisoned = iter(engines[1:])
            for number_done, plan in enumerate(plans, start=1):
                watch({"round": number_done, "views": {}})
                engine = engines[0] if plan.poison is None else next(poisoned)
                accuracy = kept = None
                if "data" in plan.on or clean.kinds.intersection(plan.on):
                    _, accuracy = _reached(method, Attacked(engine, plan.forge, hostile), exp.rounds, hostile)
                    kept = accuracy / best if best > 0 else None
                scores.append(Score(label, defence, plan.name, setting.seed, view, accuracy, kept))
            watch({"round": 1 + len(plans), "views": {}})
    return scores


def _reached(method: Method, engine: Attacked, rounds: int, hostile: Sequence[int]) -> tuple[str, float]:
    """The view that clients would use, and its AMP over the honest clients after the last round."""
    engine.begin(None)
    state = run(method, engine, rounds)
    views = engine.evaluate(method, state)
    view = next((name for name in VIEWS if name in views), next(iter(views)))
    found = views[view]["clients"]
    honest = np.setdiff1d(engine.setting.ids, hostile)
    accuracy = np.array([math.nan if a is None else a for a in found["accuracy"]])
    weights = np.where(np.isnan(accuracy), 0, engine.setting.counted_by(found["size"]))
    return view, across.amp(accuracy[honest], weights[honest])


def attack_table(scores: Iterable[Score], attackers: str = "") -> Table:
    """One line for each method and defence, one column for each attack: the accuracy, and the share that is kept.

    Several seeds are averaged.

    >>> table = attack_table([Score("FedAvg", "median", "none", 0, "aca", 0.8, 1.0)])
    >>> [column.header for column in table.columns], table.row_count
    (['Method', 'Defence', 'No\\nattack'], 1)
    """
    scores = list(scores)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0, caption_justify="left")
    columns = list(dict.fromkeys(score.attack for score in scores))
    table.add_column("Method", no_wrap=True)
    table.add_column("Defence", no_wrap=True)
    for attack in columns:
        name = "No attack" if attack == NONE else attack
        lines = name.replace("-", "\n").replace(" ", "\n")  # so that eight columns fit into a width of 100
        table.add_column(lines, justify="right", overflow="fold")
    last = ""
    for method, defence in dict.fromkeys((score.method, score.defence) for score in scores):
        line = [score for score in scores if (score.method, score.defence) == (method, defence)]
        cells = [_cell([score for score in line if score.attack == attack]) for attack in columns]
        table.add_row(Text(method if method != last else ""), Text(defence), *cells)
        last = method
    table.caption = Text(
        f"AMP % of the honest clients after the last round, and how much of that line's own accuracy without an attack "
        f"is kept{attackers}. nan is what it costs to lose the attackers altogether; {MISSING}: the method sends "
        "nothing that the attack could change. A method that is no better than local training has little to lose.",
        style="dim",
    )
    return table


def _cell(scores: Sequence[Score]) -> Text:
    found = [(score.accuracy, score.kept) for score in scores]
    known = [(accuracy, kept) for accuracy, kept in found if accuracy is not None and kept is not None]
    if not known or len(known) < len(found):
        return Text(MISSING)
    accuracy, kept = (fmean(part) for part in zip(*known, strict=True))
    shown = number(100 * accuracy, 1)
    if scores[0].attack == NONE:
        return Text(shown)
    return Text(f"{shown} {number(100 * kept, 0)}%", style="red" if kept < WELL else "")


def bench_experiment(file: str | None, overrides: Sequence[str]) -> Experiment:
    """The experiment from a file, or the default one, with overrides.

    >>> bench_experiment(None, ["rounds=3", "model=mlp"]).rounds
    3
    """
    return experiment(override(read_toml(file) if file else DEFAULT, overrides))


def report_attacks(
    exp: Experiment,
    methods: Sequence[str] | None,
    attacks: Sequence[str] | None,
    fraction: float,
    seeds: Sequence[int],
    out: Path | None,
    console: Console,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the benchmark with a live display, print its table, and return its figures, or also write them."""
    lines = sum(len(defences(choice, 1, 10, exp)) for choice in chosen(exp, methods).values())
    columns = 1 + len(ATTACKS if attacks is None else attacks)
    with Display(lines * len(seeds), columns, console) as display:
        scores = bench_attacks(exp, methods, attacks, fraction, seeds=seeds, begin=display.begin, say=say)
    console.print()
    console.print(attack_table(scores, f"; {fraction:.0%} of the clients attack"))
    found = {"fraction": fraction, "experiment": exp.to_dict(), "scores": [asdict(score) for score in scores]}
    if out is not None:
        write_json(out, found)
        say(f"written: {out}")
    return found
