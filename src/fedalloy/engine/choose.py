"""Which engine carries a run; all give the same bits, so that the choice is one of time alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from fedalloy.config.experiment import Experiment
from fedalloy.engine.cores import usable_cores
from fedalloy.engine.pool import Pool, can_cross
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method
from fedalloy.federation.engine import Engine
from fedalloy.federation.setting import Setting

Kind = Literal["auto", "pool", "threads", "serial", "flower"]

WORTH_A_POOL = 2e11  # floating-point operations: below, the workers' start takes longer than they save


@contextmanager
def engine_for(
    methods: Sequence[Method],
    setting: Setting,
    rounds: int,
    kind: Kind,
    workers: int | None,
    say: Callable[[str], None],
    exp: Experiment | None = None,
) -> Iterator[Engine]:
    """Open an engine that carries these methods in this setting, and close it in the end.

    Flower's clients build their settings themselves, from the experiment.
    """
    found = kind_for(methods, setting, rounds, kind, workers, exp)
    if found == "flower":
        from fedalloy.engine.flower.simulation import Simulation  # Flower is an extra, and slow to import

        assert exp is not None
        with Simulation(setting, exp, workers=workers, say=say) as simulation:
            yield simulation
    elif found == "pool":
        with Pool(setting, workers=workers) as pool:
            yield pool
    elif found == "threads":
        if kind != "threads":
            say("a method or network defined in a script or notebook cannot leave it: clients run in threads")
        yield Threads(setting, workers=workers)
    else:
        yield Serial(setting)


def kind_for(
    methods: Sequence[Method],
    setting: Setting,
    rounds: int,
    kind: Kind,
    workers: int | None,
    exp: Experiment | None = None,
) -> Kind:
    """Which engine carries these methods in this setting, if the one that is asked for can.

    `auto` is the pool where it is worth its start or there is a deadline, and else the serial engine.
    """
    if kind == "flower":
        if exp is None:
            raise UsageError("engine = 'flower' carries runs of an experiment only; write engine = 'auto' here")
        return kind
    deadline = setting.quorum.deadline
    if deadline is not None and kind == "auto":
        kind = "pool"  # nobody else can end a client that is late
    if deadline is not None and kind != "pool":
        raise UsageError(
            f"quorum.deadline = {deadline:g} needs clients in processes of their own, which can be ended; write "
            "engine = 'pool', or leave the deadline out"
        )
    if setting.device.type != "cpu" and kind == "pool":
        raise UsageError(
            f"the pool shares the CPU's memory, and the data is on '{setting.device}'; write engine = 'auto'"
            + (" and no quorum.deadline" if deadline is not None else "")
        )
    if kind == "auto":
        one_round = sum(setting.flops) / len(setting.sites) * setting.usual_active
        several = (workers or usable_cores()) > 1 and setting.device.type == "cpu"
        kind = "pool" if several and one_round * rounds * len(methods) > WORTH_A_POOL else "serial"
    if kind == "pool" and not all(can_cross(m, setting) for m in methods):
        if deadline is not None:
            raise UsageError(
                f"quorum.deadline = {deadline:g} needs the pool, and a method or network defined in a script or "
                "notebook cannot be sent there; put it into a file of its own, or leave the deadline out"
            )
        return "threads"
    return kind
