"""Run an experiment on this machine: rounds, evaluation, records, checkpoints, and when to stop."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy
import torch

import fedalloy
from fedalloy.base import tree
from fedalloy.base.layout import resolve
from fedalloy.base.plugins import fingerprints
from fedalloy.base.tree import Tree
from fedalloy.config.build import Built, build, network_name
from fedalloy.config.build import differing as own_networks
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method, naming, with_sections
from fedalloy.config.sections import Choice, Experiment, Stop
from fedalloy.data.samples import Dataset
from fedalloy.data.statistics import preparation_text
from fedalloy.engine.base import REFERENCE, Round
from fedalloy.engine.choose import engine_for
from fedalloy.engine.malloc import tune_malloc
from fedalloy.engine.serial import Serial
from fedalloy.errors import CheckpointError, DataError, UsageError
from fedalloy.federation.core import Federation, Method, Network, State, run
from fedalloy.federation.engine import Engine
from fedalloy.federation.quorum import QuorumError
from fedalloy.federation.setting import Setting
from fedalloy.knowledge.coverage import collapsed, in_words
from fedalloy.nets.models import parameter_count
from fedalloy.run.observer import Audience, Observer, attended, refuse_others
from fedalloy.run.opened import open_run
from fedalloy.storage.differences import differing
from fedalloy.storage.results import FORMAT, Run, read
from fedalloy.storage.spill import Spill, parse_size
from fedalloy.storage.store import Say, Store
from fedalloy.train.costs import forward_flops, peak_memory
from fedalloy.train.fit import one_thread, params
from fedalloy.train.privacy import LEDGER, figures

MEMORIES = "memories"  # in a run's folder: the memories of simulated clients

Watch = Callable[[Mapping[str, Any]], None]


def simulate(
    exp: Experiment | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    method: Method | None = None,
    label: str | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    built: Built | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
    observers: Sequence[Observer] = (),
    say: Say = lambda _: None,
) -> Run:
    """Run an experiment and return its records; with a folder, they are saved there, with a checkpoint per round.

    A method, data set or network of your own replaces the one that the experiment names. `built` and `engine` share a
    setting and its workers among several methods. `watch` is called with the record of each round. `observers` are told
    what happens (`Observer`), such as to hand it to a tracker.

    >>> run = simulate({"data": "tiny", "model": "mlp", "rounds": 2, "partition": {"clients": 4, "alpha": 1.0}})
    >>> run.views, len(run.rounds)
    (('aca', 'oca'), 2)
    """
    refuse_others(observers)
    exp = exp if isinstance(exp, Experiment) else experiment(exp)
    if method is not None and method.name != exp.method.name:  # [method] is not used, nor its keys of [training]
        exp = dataclasses.replace(exp, method=Choice(name=method.name))
    method = make_method(exp) if method is None else with_sections(method, exp)
    _refuse_own(exp, dataset, network)
    with one_thread():
        if built is None:
            built = build(exp, dataset, network)
            for sentence in built.dataset.said:
                say(sentence)
        built.setting.check(method)
        exp = settled(exp, built, method)
        meta = describe(exp, built, label or method.label)
        store = Store(Path(folder)) if folder is not None else None
        records: list[dict[str, Any]] = []
        with store.locked() if store is not None else nullcontext():
            if store is not None:
                store.create(meta)
            try:
                with (
                    _carried(engine, exp, built, method, say, store) as carrier,
                    attended(observers, meta, records, folder) as audience,
                ):
                    return _go_on(exp, method, meta, store, carrier, _spill(exp), [], records, watch, audience, say)
            except Exception:
                if store is not None and not records:
                    shutil.rmtree(store.folder / MEMORIES, ignore_errors=True)
                    store.remove()
                raise


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    built: Built | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
    observers: Sequence[Observer] = (),
    say: Say = lambda _: None,
) -> Run:
    """Resume a run from its last checkpoint, to the same bits as if it had never stopped; `rounds` may extend it.

    Pass the data set or network again if the run had its own. It is an error if anything has changed since.
    """
    refuse_others(observers)
    store = open_run(folder).store  # a folder without a run is not locked
    with store.locked(), one_thread():
        old = open_run(folder, say)  # again, since another process may have written to it before
        exp, method = old.experiment, old.method
        if rounds is not None:
            exp = dataclasses.replace(exp, rounds=rounds)
        _refuse_own(exp, dataset, network)
        built = build(exp, dataset, network) if built is None else built
        exp = settled(exp, built, method)
        meta = describe(exp, built, old.meta["label"])
        _refuse_changes(old.meta, meta)
        meta["experiment"] = {**old.meta["experiment"], "rounds": exp.rounds}  # as recorded: checkpoints refer to it
        state, memories = store.restore(say) or (None, {})
        if state is not None:
            state = State(state.round, tree.to_device(state.body, built.setting.device))
            memories = {k: tree.to_device(m, built.setting.device) for k, m in memories.items()}
        done = state.round if state is not None else 0
        if old.meta.get("last", {}).get("round") == done:
            meta["last"] = old.meta["last"]
        if done > exp.rounds:
            raise UsageError(f"'{folder}' has completed {done} rounds; write rounds = {done} or more")
        records = store.rewind(say)
        with (
            _carried(engine, exp, built, method, say, store) as carrier,
            attended(observers, meta, records, folder) as audience,
        ):
            _refuse_elsewhere(memories, carrier)
            carrier.memories = memories
            spill = _spill(exp)
            start = [spill.hold(state, memories)] if state is not None else []
            carrier.trusted = store.trusted(start[0], memories) if start else None
            del state  # and a list, to be emptied: only the loop may keep references to what its rounds replace
            spill.relax()
            return _go_on(exp, method, meta, store, carrier, spill, start, records, watch, audience, say)


def refuse_unfit(method: Method, setting: Setting) -> None:
    """Refuse a method that does not work in this setting, according to its card or to a trial of its `init`."""
    setting.check(method)
    run(method, Serial(setting), 0)


@contextmanager
def _carried(
    engine: Engine | None, exp: Experiment, built: Built, method: Method, say: Say, store: Store | None
) -> Iterator[Engine]:
    tune_malloc()
    with (
        engine_for([method], built.setting, exp.rounds, exp.engine, exp.workers, say, exp)
        if engine is None
        else nullcontext(engine)
    ) as carrier:
        carrier.begin(None if store is None else store.folder / MEMORIES)
        yield carrier


def _refuse_own(exp: Experiment, dataset: Dataset | None, network: Network | None) -> None:
    if exp.engine == "flower" and not (dataset is None and network is None):
        raise UsageError(
            "engine = 'flower' cannot send a data set or network of your own to its clients, which know names only; "
            "register it in a plug-in, or write engine = 'auto'"
        )


def _refuse_elsewhere(memories: Mapping[int, Tree], engine: Engine) -> None:
    """Refuse memories that this engine cannot read."""
    if not engine.remote and any(REFERENCE in memory for memory in memories.values()):
        raise UsageError("the clients of this run have their memories; resume it with engine = 'flower'")
    if engine.remote and any(memory.keys() - {REFERENCE, LEDGER} for memory in memories.values()):
        raise UsageError("the memories of this run are in its checkpoint; resume it with engine = 'auto'")


def _spill(exp: Experiment) -> Spill:
    return Spill(None if exp.memory is None else parse_size(exp.memory))


def settled(exp: Experiment, built: Built, method: Method) -> Experiment:
    """The experiment with the data, model and method that are actually used, and all defaults filled in."""
    return dataclasses.replace(naming(exp, method), data=built.data, model=built.model)


def _go_on(
    exp: Experiment,
    method: Method,
    meta: dict[str, Any],
    store: Store | None,
    engine: Engine,
    spill: Spill,
    start: list[State],
    records: list[dict[str, Any]],
    watch: Watch | None,
    audience: Audience,
    say: Say,
) -> Run:
    clock = {"start": time.perf_counter(), "checkpoint": 0.0}
    stopped_by = _stopped_by(exp, method, records)
    label = engine.setting.label

    def settle(state: State) -> State:
        return spill.hold(state, engine.memories, engine.trusted)

    def after(state: State, fed: Federation) -> bool:
        nonlocal stopped_by
        assert isinstance(fed, Round)
        trained = time.perf_counter()
        due = state.round % exp.evaluate_every == 0 or state.round == exp.rounds or method.card.once
        views, details = _apart(engine.evaluate(method, state)) if due else ({}, {})
        meta.pop("last", None)
        meta.update(_last(state.round, details))
        evaluated = time.perf_counter()
        seconds = {
            "client": fed.ledger.client_seconds,
            "idle": fed.ledger.client_seconds - fed.ledger.busy_seconds / engine.workers,  # mean over workers
            "server": trained - clock["start"] - fed.ledger.client_seconds,
            "evaluation": evaluated - trained,
            "checkpoint": clock["checkpoint"],  # of the round before, since a round's record precedes its checkpoint
            "total": evaluated - clock["start"] + clock["checkpoint"],
        }
        record = round_record(state, fed, seconds, views)
        for bad in fed.quarantined:
            say(f"round {state.round}: the reply of {label(bad['client'])} was rejected: {bad['reason']}")
        if fed.back_to is not None:
            back = f"the run rolled back to that of round {fed.back_to}"
            say(f"round {state.round}: clients could not train the model that they received; {back}")
        if collapsed(record, fed.classes) and not any(collapsed(before, fed.classes) for before in records):
            told = f"in the teachers' eyes, pseudo-samples {in_words(record, fed.classes)}"
            say(f"round {state.round}: {told}; look at them before you rely on this run (fedalloy draw)")
        records.append(record)
        if store is not None:
            store.record(record)
            store.commit(state, engine.memories, engine.trusted)
        spill.relax()  # evaluation has read all entries
        clock["checkpoint"] = time.perf_counter() - evaluated
        audience.round(record)
        if watch is not None:
            watch(record)
        clock["start"] = time.perf_counter()
        _give_up(exp, records)
        stopped_by = _stopped_by(exp, method, records)
        return stopped_by != "rounds"

    if stopped_by == "rounds" and len(records) < exp.rounds:
        meta.pop("last", None)
        if store is not None:
            store.describe(meta)
        run(method, engine, exp.rounds, start.pop() if start else None, after, settle)
    _give_up(exp, records)  # a run that gave up in its last round does so again
    if start and records[-1]["views"] and "last" not in meta:  # it was interrupted just before its end was written
        meta |= _last(start[0].round, _apart(engine.evaluate(method, start[0]))[1])
    meta |= {"status": "done", "stopped_by": stopped_by}
    if store is not None:
        store.describe(meta)
    return Run(meta, tuple(records), store.folder if store is not None else None)


def _apart(views: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Views without their details, and the details, of which only those of a run's last round are kept."""
    rest = {name: {key: part for key, part in view.items() if key != "details"} for name, view in views.items()}
    return rest, {name: view["details"] for name, view in views.items() if view["details"]}


def _last(round: int, details: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a run's last round, if anything."""
    return {"last": {"round": round, "views": dict(details)}} if details else {}


def round_record(state: State, fed: Round, seconds: Mapping[str, float], views: Mapping[str, Any]) -> dict[str, Any]:
    """One line of `rounds.jsonl`."""
    setting = fed.engine.setting
    return {
        "round": state.round,
        "active": sorted(fed.active),
        "lost": sorted(fed.lost),
        **({"stragglers": sorted(fed.late)} if fed.late else {}),
        **({"forgot": sorted(fed.forgot)} if fed.forgot else {}),
        **({"quarantined": fed.quarantined} if fed.quarantined else {}),
        **({"skipped": fed.skipped} if fed.skipped else {}),
        **({"back_to": fed.back_to} if fed.back_to is not None else {}),
        **({"notes": dict(fed.notes)} if fed.notes else {}),
        **figures(setting.privacy, fed.engine.memories, len(fed.sizes), secret=setting.secret_noise),
        **({"spent": sorted(fed.spent)} if fed.spent else {}),
        "seconds": dict(seconds),
        "bytes": _bytes(state.round, fed),
        "passes": fed.ledger.passes(),
        "flops": fed.ledger.flops(),
        "memory": peak_memory(),
        "views": dict(views),
    }


def _bytes(round: int, fed: Round) -> dict[str, dict[str, int]]:
    """A round's bytes by what was sent; those of the clients' statistics, sent before, count as the first round's."""
    before = fed.engine.setting.statistics if round == 1 else {}
    ways = {"down": fed.ledger.down, "up": fed.ledger.up}
    return {way: {**before.get(way, {}), **sent} for way, sent in ways.items()}


def _give_up(exp: Experiment, records: Sequence[Mapping[str, Any]]) -> None:
    """End a run if too many rounds in a row lacked a quorum, or all of its rounds did; it can be resumed.

    A round after which the run rolled back is not one of them: the next one starts from another state. A run whose
    privacy budget is spent before any round counted cannot be resumed.
    """
    none_counted = bool(records) and all(record.get("skipped") for record in records)
    if exp.privacy is not None and none_counted and should_stop(exp.stop, records) == "privacy":
        budget = f"privacy.budget = {exp.privacy.budget} is too small for one round"
        raise QuorumError(f"no round counted: {budget}; raise it, or privacy.noise_multiplier")
    needed = min(exp.quorum.skips, exp.rounds)
    last = [record.get("skipped") if "back_to" not in record else None for record in records[-needed:]]
    if len(last) == needed and all(last):
        rounds = f"{len(last)} rounds in a row were" if len(last) > 1 else "a round was"
        none = "" if len(last) < len(records) else "no round counted: "
        more = " with more rounds" if len(records) == exp.rounds else ""
        raise QuorumError(f"{none}{rounds} skipped: {last[-1]}; the run can be resumed{more}{_remedy(records[-1])}")


def _remedy(record: Mapping[str, Any]) -> str:
    """What else may help a run whose last round was skipped; if the server overflowed, the reason says so itself."""
    if any("not finite" in bad["reason"] for bad in record.get("quarantined", ())):
        return "; the clients' replies were not finite, so lower training.lr"
    return ", or needs a lower quorum.fraction" if "clients answered" in record["skipped"] else ""


def _stopped_by(exp: Experiment, method: Method, records: Sequence[Mapping[str, Any]]) -> str:
    """What ends a run after these records; "rounds" if nothing has ended it yet."""
    if method.card.once and any(not record.get("skipped") for record in records):
        return "method"
    return should_stop(exp.stop, records) or "rounds"


def should_stop(stop: Stop, records: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a run should end now, or None: a function of its records, so that a resumed run stops in the same round.

    The metric is that of the method's best view.

    >>> curve = [{"round": t, "views": {"aca": {"amp": amp}}} for t, amp in enumerate((0.5, 0.7, 0.6, 0.7), start=1)]
    >>> [should_stop(Stop(patience=2), curve[:t]) for t in (2, 3, 4)]
    [None, None, 'patience']
    """
    curve = {
        r["round"]: max(values)
        for r in records
        if (values := [v[stop.metric] for v in r["views"].values() if v.get(stop.metric) is not None])
    }
    if curve:
        now, best = max(curve), max(curve, key=lambda t: curve[t])  # the earliest of equals
        if stop.target is not None and curve[now] >= stop.target:
            return "target"
        if stop.patience is not None and now - best >= stop.patience:
            return "patience"
    if stop.bytes is not None and sum(sum(d.values()) for r in records for d in r["bytes"].values()) >= stop.bytes:
        return "bytes"
    if stop.seconds is not None and sum(r["seconds"]["total"] for r in records) >= stop.seconds:
        return "seconds"
    spent = {client for r in records for client in r.get("spent", ())}  # whose privacy budget
    return "privacy" if spent and len(spent) == len(records[-1]["epsilons"]) else None


def describe(exp: Experiment, built: Built, label: str) -> dict[str, Any]:
    """The content of `run.json`: everything needed to repeat the run."""
    setting = built.setting
    net = built.network
    example = setting.sites[0].train.take([0])[0]
    return {
        "format": FORMAT,
        "name": exp.method.name,
        "label": label,
        "seed": exp.seed,
        "experiment": exp.to_dict(),
        "clients": {
            "train_sizes": setting.sizes,
            "test_sizes": [len(site.test) for site in setting.sites],
            "class_counts": _class_counts(setting),
            "label_names": list(built.dataset.label_names),
            **({"names": list(setting.names)} if setting.names else {}),
        },
        "data": {
            "name": built.dataset.name,
            "note": built.dataset.note,
            "rows": len(built.dataset.y),
            "mean": list(setting.scale.mean),
            "std": list(setting.scale.std),
            **_statistics(built),
        },
        "partition": built.card.to_json(),
        "model": {
            "name": exp.model.name,
            "parameters": parameter_count(net),
            "input": list(example.shape[1:]),
            "classes": setting.classes,
            "outputs": setting.outputs,
            "flops_per_sample": forward_flops(net, example),
            "layout": resolve(net, exp.layout),
        },
        "models": _client_models(setting) if own_networks(exp) else [],
        "versions": versions(private=exp.privacy is not None),
        "digests": {**built.digests, "initial model": tree.digest(params(net))},
        "status": "running",
    }


def _statistics(built: Built) -> dict[str, Any]:
    """How the clients' rows were prepared and what it cost to agree on it, if they had to be."""
    if built.statistics is None:
        return {}
    found = built.statistics
    ready, inputs = json.loads(preparation_text(found.preparation)), len(found.preparation.columns)
    targets = {"targets": ready[inputs:]} if found.preparation.targets else {}
    return {"columns": ready[:inputs], **targets, "statistics": {"up": found.up, "down": found.down}}


def versions(*, private: bool) -> dict[str, str]:
    """The versions that must not change for a run to be resumed, with opacus if training is private, and the plug-ins.

    >>> sorted(versions(private=False))
    ['fedalloy', 'machine', 'numpy', 'python', 'torch']
    """
    return {
        "fedalloy": fedalloy.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **({"opacus": _version("opacus")} if private else {}),
        **{f"plug-in {file}": content for file, content in fingerprints().items()},
    }


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _client_models(setting: Setting) -> list[dict[str, Any]]:
    """The clients' networks, if they differ: the size and the clients of each."""
    return [
        {
            "name": network_name(setting.network(ids[0])),
            "parameters": parameter_count(setting.build(ids[0])),
            "clients": ids,
        }
        for ids in setting.groups
    ]


def _class_counts(setting: Setting) -> list[list[int]]:
    if setting.task == "numbers":
        return [[size] for size in setting.sizes]
    return [site.train.counts(setting.classes).tolist() for site in setting.sites]


def _refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = [
        f"{key} has changed: the run was made {_made(old[part].get(key))}, now it is {_short(value)}"
        for part in ("digests", "versions")
        for key, value in new[part].items()
        if old[part].get(key) != value
    ]
    if changed:
        raise CheckpointError(f"{'; '.join(changed)}; the run cannot be resumed, so start a new one")


def refuse_other(exp: Experiment, folder: str | Path) -> None:
    """Refuse to resume the run in a folder if its experiment is different, and list the keys that differ."""
    both = [e.to_dict() for e in (open_run(folder).experiment, exp)]
    lines = [f"  {key}: {old!s:.60} -> {new!s:.60}" for key, (old, new) in sorted(differing(both).items())]
    if lines:
        more = [f"  and {len(lines) - 9} more"] if len(lines) > 10 else []
        listing = "\n".join([*lines[: 10 - len(more)], *more])
        raise CheckpointError(f"'{folder}' holds a run of a different experiment; choose another folder:\n{listing}")


def completed(folder: str | Path) -> int:
    """How many rounds a run has completed; 0 if its records are damaged (`resume` has a second copy)."""
    try:
        return len(read(folder).rounds)
    except DataError:
        return 0


def is_whole(folder: str | Path) -> bool:
    """Whether the newest checkpoint of a run is intact and belongs to the last recorded round."""
    store = Store(Path(folder))
    saved = store.restore()
    newest = max((int(path.stem) for path in store.manifests()), default=0)
    return saved is not None and saved[0].round >= max(newest, completed(folder))


def refuse_shorter(rounds: int, folder: str | Path) -> None:
    """Refuse to resume the run in a folder up to a round that it has already passed."""
    done = completed(folder)
    if done > rounds:
        raise UsageError(
            f"'{folder}' has completed {done} rounds; write rounds = {done} or more, or choose another folder"
        )


def _made(value: Any) -> str:
    return "without it" if value is None else f"with {_short(value)}"


def _short(value: Any) -> str:
    return str(value)[:12]
