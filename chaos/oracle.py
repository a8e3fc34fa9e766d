"""A server that asks a site to evaluate models of its own choice: it must learn no more than the site's limits allow.

In each trial a site with its own test rows, as created by `fedalloy deploy init`, is sent hostile evaluation messages
between rounds in which it takes part: models designed to find something out, malformed models, rounds that are not due.
Under [privacy] nothing may be answered. Otherwise no more sets of models than the limit may be answered in a round,
only in rounds that can be in progress, only well-formed ones, and each must be in the site's log.

    python chaos/oracle.py --count 1000 --save
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity
from harness import Dice, FaultError, run_from_command_line, show, trials

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.base import tree
from fedalloy.config.experiment import read
from fedalloy.deploy import app
from fedalloy.deploy.init import init
from fedalloy.deploy.settings import Amount, for_server
from fedalloy.engine.flower import evaluated
from fedalloy.engine.flower.client import ACT, VIEWS
from fedalloy.engine.flower.codec import from_records, to_records
from fedalloy.federation.gate import Room
from fedalloy.federation.setting import Setting
from fedalloy.train.fit import params

MESSAGES = 10  # in a trial
ROUNDS = 6
EXPERIMENT: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"name": "sites", "classes": 2, "columns": ["0", "1", "2"], "mean": [0.0] * 3, "std": [1.0] * 3},
    "model": {"name": "mlp", "hidden": 8},
    "method": {"name": "fedavg"},
}
Models = dict[str, Any]


@dataclass
class Target:
    """A site, and what a server needs to send it messages."""

    site: Path
    setting: Setting
    experiment: dict[str, Any]

    @property
    def memory(self) -> Path:
        """The site's memory folder."""
        return self.site / "memory"

    def ask(self, kind: str, body: Models, header: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Send a message and return the site's answer."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        told = {"experiment": json.dumps(self.experiment), "client": 0, "digest": "", **header}
        message = FlowerMessage(to_records(body, told), 1, kind)
        place: dict[str, Any] = {"site": str(self.site), "partition-id": 0, "num-partitions": 2}
        context = Context(run_id=1, node_id=1, node_config=place, state=RecordDict(), run_config={})
        return from_records(app.client(message, context).content, Room(1 << 24, 1 << 20))

    def model(self, dice: Dice) -> dict[str, torch.Tensor]:
        """Return a model that could belong to the run, but is designed to find something out."""
        weights = params(self.setting.build(0))
        name = dice.choice(sorted(weights))
        weights[name] = weights[name] + torch.randn(
            weights[name].shape, generator=torch.Generator().manual_seed(dice.randrange(1 << 30))
        )
        return weights

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the site's log."""
        file = self.memory / "0" / "evaluated.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Run `count` trials against sites with and without [privacy]."""
    logging.disable(logging.CRITICAL)  # a site's log of unreadable messages
    with targets() as made:
        report = trials("oracle", count, seed, partial(oracle_trial, made), save=save, finish=breadth)
    show(report)
    return {"oracle": report}


def breadth(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report the number of messages."""
    return {"messages": MESSAGES * report["trials"], "kinds": len(JUNK)}


@contextmanager
def targets() -> Iterator[dict[str, Target]]:
    """Return a site without [privacy] and one with it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield {
            "without [privacy]": target(folder / "plain", EXPERIMENT),
            "with [privacy]": target(folder / "private", {**EXPERIMENT, "privacy": {"budget": 50.0}}),
        }


def target(folder: Path, values: Mapping[str, Any]) -> Target:
    """Return the first site of a new deployment, with its own data."""
    made = init(values, folder, 2)
    stream = np.random.default_rng(0)
    x, y = stream.normal(size=(40, 3)).astype(np.float32), stream.integers(0, 2, 40)
    np.savez(made.site(0) / "data.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    (made.site(0) / "site.toml").write_text('client = 0\ndata = "data.npz"\n')
    exp = read(made.experiment)
    return Target(made.site(0), for_server(exp, {k: Amount(40, 9) for k in range(2)}).setting, exp.to_dict())


# --- what a hostile server sends --------------------------------------------------------------------------------------


def _each(change: Callable[[torch.Tensor], Any]) -> Callable[[Target, Dice], Models]:
    return lambda at, dice: {"aca": {name: change(w) for name, w in at.model(dice).items()}}


def _announced(models: Models) -> str:
    digests = {view: tree.digest(one if isinstance(one, dict) else {"w": one}) for view, one in models.items()}
    return json.dumps(digests, sort_keys=True)


JUNK: dict[str, Callable[[Target, Dice], Models]] = {
    "no network": lambda *_: {"aca": {"w": torch.zeros(3)}},
    "a number": lambda *_: {"aca": 3},
    "text": lambda *_: {"aca": {"w": "x" * 5000}},
    "a deep table": lambda at, dice: {"aca": {"inner": at.model(dice)}},
    "a name too few": lambda at, dice: {"aca": dict(list(at.model(dice).items())[1:])},
    "a name too many": lambda at, dice: {"aca": {**at.model(dice), "more": torch.zeros(1)}},
    "many": lambda at, dice: {f"view {k}": at.model(dice) for k in range(50)},
    "huge": lambda *_: {"aca": {"w": torch.zeros(5_000_000)}},
    "NaN": _each(lambda w: w * float("nan")),
    "infinite": _each(lambda w: w / 0),
    "doubles": _each(lambda w: w.double()),
    "whole numbers": _each(lambda w: w.int()),
    "other shapes": _each(lambda w: w.reshape(-1)[:1]),
    "a batch of models": _each(lambda w: w.expand(3, *w.shape)),
}
STRANGE: list[dict[str, Any]] = [
    {"round": "one"},
    {"round": 1.9e308},
    {"round": -1},
    {"round": 0},
    {"round": ROUNDS + 1},
    {"round": 10**15},
    {"views": ""},
    {"views": "{}"},
    {"views": 7},
    {"digest": "0" * 64},
    {"digest": "../../data.npz"},
    {"client": 1},
]


def a_message(at: Target, dice: Dice, near: int) -> tuple[bool, Models, dict[str, Any]]:
    """Return whether a message is well-formed, its models and its header."""
    kind = dice.random()
    if kind < 0.3:
        models = JUNK[dice.choice(sorted(JUNK))](at, dice)
        return False, models, {"round": max(1, near), "views": _announced(models)}
    names = dice.sample(("aca", "oca", "group 0", "memory", "models", "round"), dice.randrange(1, 4))
    models = {name: at.model(dice) for name in names}
    header: dict[str, Any] = {"round": max(1, near + dice.randrange(-3, 4)), "views": _announced(models)}
    if kind < 0.5:
        return False, models, {**header, **dice.choice(STRANGE)}
    return True, models, header


def oracle_trial(made: Mapping[str, Target], dice: Dice) -> str:
    """Send hostile messages to a site that also takes part in rounds; return how many were answered."""
    privacy = dice.choice(sorted(made))
    at = made[privacy]
    shutil.rmtree(at.memory, ignore_errors=True)
    near, answered = 0, set[tuple[int, str]]()
    for _ in range(MESSAGES):
        if near < ROUNDS and dice.random() < 0.3 and privacy == "without [privacy]":
            near += 1
            header, _ = at.ask(ACT, {"model": params(at.setting.build(0))}, {"round": near, "action": "train"})
            if "error" in header:
                raise FaultError(f"an honest round was refused: {header['error']}")
        sound, models, told = a_message(at, dice, near)
        header, body = at.ask(VIEWS, models, told)
        if "error" not in header:
            if privacy == "with [privacy]":
                raise FaultError(f"a site under [privacy] evaluated {sorted(body['models'])}")
            if not sound or not near - 1 <= told["round"] <= near + 1:
                raise FaultError(f"a site in round {near} evaluated {sorted(models)} for {told}")
            answered.add((told["round"], told["views"]))
        elif "\n" in header["error"] or not header["error"]:
            raise FaultError(f"the error message is not one line: {header['error']!r}")
    _held(at, answered)
    return f"{privacy}: {len(answered)} of {MESSAGES} messages answered"


def _held(at: Target, answered: set[tuple[int, str]]) -> None:
    """Check that no round had more answers than the limit, and that all are in the log."""
    for round in {round for round, _ in answered}:
        if sum(other == round for other, _ in answered) > LIMIT:
            raise FaultError(f"more than {LIMIT} sets of models were evaluated for round {round}")
    noted = {(line["round"], json.dumps(line["models"], sort_keys=True)) for line in at.log() if "models" in line}
    if noted != answered:
        raise FaultError(f"{len(answered)} sets were answered, but {len(noted)} are in the log")


LIMIT = evaluated.SETS

if __name__ == "__main__":
    run_from_command_line(main, 100)
