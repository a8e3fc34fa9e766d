"""Choice of the engine for a run; all give the same bits, so the choice only affects speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from fedalloy.config.sections import Experiment
from fedalloy.engine.cores import usable_cores
from fedalloy.engine.pool import Pool, can_cross
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method
from fedalloy.federation.engine import Engine
from fedalloy.federation.setting import Setting

Kind = Literal["auto", "pool", "threads", "serial", "flower"]

WORTH_A_POOL = 2e11  # floating-point operations: below this, starting workers takes longer than they save


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
    """Open an engine for these methods in this setting, and close it at the end.

    Flower's clients build their settings themselves from the experiment.
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
            say(
                "a method or network defined in a script or notebook cannot be sent to another process; clients run "
                "in threads"
            )
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
    """Return the engine for these methods in this setting; refuse a requested engine that cannot run them.

    `auto` is the pool if it is worth its start-up time or there is a deadline, and otherwise the serial engine.
    """
    if kind == "flower":
        if exp is None:
            raise UsageError("engine = 'flower' can only run an experiment; write engine = 'auto' here")
        return kind
    deadline = setting.quorum.deadline
    if deadline is not None and kind == "auto":
        kind = "pool"  # no other engine can stop a client that is late
    if deadline is not None and kind != "pool":
        raise UsageError(
            f"quorum.deadline = {deadline:g} needs clients in separate processes, which can be stopped; write "
            "engine = 'pool', or remove the deadline"
        )
    if setting.device.type != "cpu" and kind == "pool":
        raise UsageError(
            f"the pool uses CPU memory, but the data is on '{setting.device}'; write engine = 'auto'"
            + (" and no quorum.deadline" if deadline is not None else "")
        )
    if kind == "auto":
        one_round = sum(setting.flops) / len(setting.sites) * setting.usual_active
        several = (workers or usable_cores()) > 1 and setting.device.type == "cpu"
        kind = "pool" if several and one_round * rounds * len(methods) > WORTH_A_POOL else "serial"
    if kind == "pool" and not all(can_cross(m, setting) for m in methods):
        if deadline is not None:
            raise UsageError(
                f"quorum.deadline = {deadline:g} needs the pool, but a method or network defined in a script or "
                "notebook cannot be sent to it; put it into a separate file, or remove the deadline"
            )
        return "threads"
    return kind
