"""The programs of `chaos/` with small counts, and that each of them can fail."""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedalloy.base.files import append_line
from fedalloy.engine import arena, base
from fedalloy.errors import CheckpointError, DataError, StorageError
from fedalloy.federation.gate import refusal, whole
from fedalloy.methods import FedAvg
from fedalloy.report.export import export_model
from fedalloy.storage.results import copy_of, read

CHAOS = Path(__file__).parents[1] / "chaos"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about strange tensors made on purpose


@pytest.fixture(scope="module")
def chaos() -> Iterator[Any]:
    sys.path.insert(0, str(CHAOS))  # as `python chaos/replies.py` has it

    def program(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield program
    sys.path.pop(0)


# --- a curious server -------------------------------------------------------------------------------------------------


def test_a_server_learns_no_more_from_a_private_site_than_from_fresh_noise(chaos: Any) -> None:
    """Its control, sites that draw a rehearsal's noise, shows that the attack finds what it can."""
    pytest.importorskip("flwr")
    pytest.importorskip("opacus")
    (report,) = chaos("curious_server").main(16, 0).values()
    assert report["failures"] == 0
    assert report["largest"] < 0.3
    assert report["control"] > 0.999


# --- replies ----------------------------------------------------------------------------------------------------------


def test_no_malformed_reply_leaves_a_trace_in_any_method(chaos: Any) -> None:
    replies, dice = chaos("replies"), random.Random(0)
    assert len(replies.KINDS) >= 40
    with chaos("harness").little_memory():
        for role in range(len(replies.methods)):
            at = replies.scene(role, role % 2, 1)
            for place in at.places()[:2]:
                honest = at.overheard(place)
                fitting = [(name, body) for name, kind in replies.KINDS.items() if _fits(body := kind(honest, dice))]
                for name, body in dice.sample(fitting, 3):
                    assert replies.spoiled(at, place, name, body) == "set aside"


def test_no_kind_of_malformed_reply_leaves_a_trace_in_feddisco(chaos: Any) -> None:
    replies = chaos("replies")
    at = replies.scene(list(replies.methods).index("feddisco"), 1, 2)
    with chaos("harness").little_memory():
        for place in at.places():
            for name, kind in replies.every_kind():
                if _fits(body := kind(at.overheard(place), random.Random(0))):
                    replies.spoiled(at, place, name, body)


def _fits(body: Any) -> bool:
    return body is not sys.modules["spoil"].NO_PLACE


def test_without_the_gate_malformed_replies_are_noticed(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = chaos("replies")
    at = replies.scene(list(replies.methods).index("fedavg"), 0, 1)
    place = at.places()[0]
    monkeypatch.setattr(base, "refusal", lambda body, contract: None)
    for name in ("one NaN", "a scalar instead", "a name missing", "n is huge", "None", "another client's reply"):
        with pytest.raises(chaos("harness").FaultError):
            replies.spoiled(at, place, name, replies.KINDS[name](at.overheard(place), random.Random(0)))


@pytest.mark.parametrize("kind", ["all as large as can be", "times 1e30"])
def test_numbers_beyond_all_measure_do_not_end_a_round_and_leave_a_finite_state(chaos: Any, kind: str) -> None:
    replies = chaos("replies")
    for name in ("fedavg", "fedavgm", "dafkd", "fedmd", "kdia"):
        at = replies.scene(list(replies.methods).index(name), 1, 2)
        for place in at.places():
            if _fits(body := replies.PLAUSIBLE[kind](at.overheard(place), random.Random(0))):
                assert replies.spoiled(at, place, kind, body) in ("set aside", "possible", replies.OTHERS)


def test_a_state_that_is_not_finite_is_a_failure(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies, kind = chaos("replies"), "all as large as can be"
    at = replies.scene(list(replies.methods).index("fedavg"), 0, 1)
    place = at.places()[0]
    spoilt = replies.State(1, {"model": {"w": torch.tensor([math.nan])}})
    monkeypatch.setattr(replies, "absent", lambda *_: "")
    monkeypatch.setattr(replies, "run", lambda *_: spoilt)
    with pytest.raises(chaos("harness").FaultError, match="finite"):
        replies.spoiled(at, place, kind, replies.PLAUSIBLE[kind](at.overheard(place), random.Random(0)))


def test_the_gate_answers_whatever_it_is_handed(chaos: Any) -> None:
    report = chaos("harness").trials("gate", 1500, 0, chaos("replies").gate_trial)
    assert report["failures"] == 0, report["examples"]
    assert min(report["endings"].values()) > 50


@pytest.mark.parametrize("kind", ["introductions", "ledgers", "meters", "evaluations"])
def test_no_hostile_site_ends_the_server_s_run(chaos: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("dp_accounting")
    sites = chaos("sites")
    for module, name in ((sites.app, "PATIENCE"), (sites.roster, "AGAIN"), (sites.roster, "PAUSE")):
        monkeypatch.setattr(module, name, getattr(module, name))  # a trial changes them
    report = chaos("harness").trials(f"site-{kind}", 60, 0, sites.TRIALS[kind])
    assert report["failures"] == 0
    assert set(report["endings"]) == {"set aside", "taken"}


@pytest.mark.parametrize(
    ("kind", "where", "name", "instead"),
    [
        ("introductions", "fedalloy.engine.flower.roster.Roster", "_fault", lambda *_: None),
        ("meters", "fedalloy.engine.flower.claims", "refusal", lambda *_: None),
        ("evaluations", "fedalloy.engine.flower.carrier", "miscounted", lambda *_: None),
    ],
)
def test_without_its_checks_the_server_is_at_the_mercy_of_a_site(
    chaos: Any, kind: str, where: str, name: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    sites = chaos("sites")
    for module, constant in ((sites.app, "PATIENCE"), (sites.roster, "AGAIN"), (sites.roster, "PAUSE")):
        monkeypatch.setattr(module, constant, getattr(module, constant))
    monkeypatch.setattr(f"{where}.{name}", instead)
    assert chaos("harness").trials(f"site-{kind}", 60, 0, sites.TRIALS[kind])["failures"] > 0


def test_replies_that_are_delivered_wrongly_change_nothing(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = chaos("replies")
    monkeypatch.setattr(replies, "asking", lambda: [list(replies.methods).index("fedavg")])
    assert chaos("harness").trials("deliveries", 20, 0, replies.delivery_trial)["failures"] == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "it is a NoneType, not a table"),
        ({3: 1, "n": 2}, "it has the unexpected key '3'"),
        ({"n": 2, "\x1b[2J\n": 1}, "it has the unexpected key '?[2J?'"),
        ({"n": 10**5000}, f"n is a number of 16610 bits, above {2**63 - 1}"),
    ],
)
def test_reasons_are_one_short_line(body: Any, reason: str) -> None:
    assert refusal(body, {"n": whole(1)}) == reason


def test_what_passes_without_a_contract_can_be_counted_and_kept() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    large = torch.ones(1).expand(1 << 40)  # takes no room, until somebody looks at all of it
    for body in (deep, {"n": 10**5000}, {"w": large}, {"w": torch.ones(1, requires_grad=True)}, {"a": [1]}):
        assert refusal(body, None) is not None
    assert refusal({"w": torch.ones(1).expand(9), "n": 3}, None) is None


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trial", "count"), [("table_trial", 1000), ("file_trial", 300)])
def test_a_wrong_experiment_is_refused_in_a_sentence(chaos: Any, trial: str, count: int) -> None:
    configs, harness = chaos("configs"), chaos("harness")
    with configs.read_once(), harness.little_memory():
        report = harness.trials(trial, count, 0, getattr(configs, trial))
    assert report["failures"] == 0, report["examples"]
    assert report["endings"]["refused"] < report["trials"]  # something is right


def test_a_right_experiment_runs(chaos: Any) -> None:
    configs = chaos("configs")
    with configs.read_once():
        report = configs.runs(20, 0)
    assert report["examples"] == []
    assert not report["too_many_refused"]
    assert report["endings"]["ran"] >= 12


def test_every_option_and_privacy_are_drawn(chaos: Any) -> None:
    valid = chaos("valid")
    drawn = [valid.an_experiment(random.Random(f"{i}")) for i in range(3000)]
    assert {values["rounds"] for values in drawn} == {1, 2}
    assert {values["engine"] for values in drawn} == {"serial", "threads"}
    private = {values["method"]["name"] for values in drawn if "privacy" in values}
    assert private == {name for name, cls in valid.methods.items() if cls.card.private}
    seen: dict[tuple[str, str, str], set[Any]] = {}
    for values in drawn:
        table = values["method"]
        parts = {name: {**values.get(name, {}), **table.get(name, {})} for name in valid.SECTIONS}
        parts[""] = {key: value for key, value in table.items() if key not in parts}
        for part, options in parts.items():
            for option, value in options.items():
                seen.setdefault((table["name"], part, option), set()).add(value)

    def never(part: str, cls: type[Any], name: str, quick: dict[str, Any]) -> set[str]:
        usual = {option.name: quick.get(option.name, option.default) for option in valid.options_of(cls)}
        return {option for option, value in usual.items() if not seen.get((name, part, option), set()) - {value}}

    fixed = {  # options that a method has from another one, and in which it leaves no choice
        "dafkd-features": {"generator_width", "shared_layers", "pseudo_samples"},
        "dafkd-no-correlation": {"max_share"},
        "dafkd-predictions": {"common_head", "ensemble", "max_share"},
        "dafkd-scores": {"common_head"},
        "fedkf-server": {"adversarial", "order"},
    }
    disco = {"disco_a", "disco_b", "disco_metric", "disco_normalise"}
    with_key = {"weights": {"weights"}, "weights=disco": disco, "combine": {"combine", "trim"}, "clip": {"clip"}}
    for name, cls in valid.methods.items():
        assert never("", cls, name, cls.card.quick) == fixed.get(name, set()), name
        taken = cls.takes | {use.split("=")[0] for use in cls.takes}
        taken |= {"weights=disco"} if "weights" in cls.takes else set()
        idle = {option for key, options in with_key.items() if key not in taken for option in options}
        rare = {"combine", "trim"} if name == "feddisco" else set()  # they exclude its usual weights
        assert idle <= never("aggregation", valid.Aggregation, name, {}) <= idle | rare, name
        if "cache" in valid.sections_of(cls):
            assert never("cache", valid.Cache, name, {}) == set(), name


def test_too_few_runs_are_a_failure(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = chaos("configs")
    report = {"endings": {"ran": 4, "refused": 1, "without a quorum": 5}, "trials": 10}
    assert configs.counted(report) == {"ran": 4, "refused": 0.1, "too_many_refused": False, "too_few_ran": True}
    monkeypatch.setattr(sys, "argv", ["configs.py"])
    for wrong in ("too_few_ran", "too_many_refused"):
        report = {"failures": 0, wrong: True}
        with pytest.raises(SystemExit) as left:
            chaos("harness").run_from_command_line(lambda *_, report=report, **__: {"x": report}, 1)
        assert left.value.code == 1


def test_a_run_that_fails_is_a_failure(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = chaos("configs")
    right = {"rounds": 1, "data": "tiny", "model": "mlp", "partition": {"name": "iid", "clients": 2}}
    monkeypatch.setattr(configs, "an_experiment", lambda dice: right)
    monkeypatch.setattr(FedAvg, "train", lambda self, me, msg: 1 / 0)
    FedAvg.train.is_action = True  # type: ignore[attr-defined]
    assert configs.runs(1, 0)["failures"] == 1


# --- exactness, and the gate's price ----------------------------------------------------------------------------------


def test_the_order_of_arrival_does_not_matter_and_is_another_one(chaos: Any) -> None:
    exactness = chaos("exactness")
    found = exactness.cells(["fedavg", "knfu"], 0, engines=("serial", "threads"))
    assert [len(cells) for cells in found.values()] == [4, 4]
    assert all(len(set(cells.values())) == 1 for cells in found.values())
    setting = replace(chaos("replies").small_settings()[0])
    method = FedAvg()
    shuffled = exactness.Shuffled(exactness.Serial(setting), 0)
    body = method.init(shuffled.open(method, 0))
    messages = [exactness.Message("train", k, body) for k in setting.ids]
    assert [a.client for a in shuffled.carry(method, 1, messages)] != setting.ids


def test_another_seed_is_another_digest(chaos: Any) -> None:
    exactness = chaos("exactness")
    settings = [replace(exactness.small_settings()[1], seed=seed) for seed in (1, 2)]
    assert len({exactness.digest(FedAvg(), exactness.Serial(setting)) for setting in settings}) == 2


def test_the_gate_costs_little(chaos: Any) -> None:
    report = chaos("gate_price").main(2, 0, images=64)["gate-price"]
    medians = [found["median"] for found in report["methods"].values()]
    assert list(report["methods"]) == ["FedAvg", "FedMD", "DaFKD (scores)"]
    assert all(0 < median < 0.2 for median in medians)  # small rounds, a busy machine; the program's own limit is 3 %
    assert report["median"] == max(medians)
    assert report["failures"] == sum(median > report["limit"] for median in medians)


# --- kills and damage -------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_to_the_same_bits() -> None:
    command = [sys.executable, str(CHAOS / "kills.py"), "--kills", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # one report, one line
    assert json.loads(line).items() >= {"what": "kills", "trials": 2, "failures": 0, "seed": 0}.items()
    assert json.loads(line)["kills"] >= 2


@pytest.fixture
def stopped(chaos: Any, tmp_path: Path) -> Iterator[Any]:
    """The folder of a run that was stopped after two rounds, with how it would have ended."""
    checkpoints = chaos("checkpoints")
    with checkpoints.prepared(tmp_path):
        yield checkpoints.stopped("fedavg", 2)


def test_a_kill_that_costs_more_than_a_round_is_noticed(chaos: Any, stopped: Any) -> None:
    kills, folder = chaos("kills"), stopped.folder
    assert not kills.in_a_commit(folder)
    line = (folder / "rounds.jsonl").read_bytes().splitlines()[-1] + b"\n"
    with (folder / "rounds.jsonl").open("ab") as log:
        log.write(line)
    assert kills.in_a_commit(folder)
    with (folder / "rounds.jsonl").open("ab") as log:
        log.write(line)
    with pytest.raises(chaos("harness").FaultError, match="of 4 recorded rounds, 2 have a checkpoint"):
        kills.in_a_commit(folder)


def test_every_part_of_an_ending_is_compared(chaos: Any, stopped: Any, tmp_path: Path) -> None:
    whole, other = (chaos("kills").ending(tmp_path / f"fedavg-{which}") for which in ("whole", "other"))
    assert {part for part in whole if whole[part] != other[part]} == {"run.json", "records", "bits"}  # another seed
    (tmp_path / "fedavg-whole" / "checkpoints" / ".000001.json.part").touch()
    (tmp_path / "fedavg-whole" / "run.lock").touch()
    assert chaos("kills").ending(tmp_path / "fedavg-whole")["leftovers"] == {".000001.json.part", "run.lock"}


def test_the_tally_adds_up(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    endings = {"a: 1 kills, 0 in a commit, 1 workers": 3, "a: 2 kills, 1 in a commit, 0 workers": 1, "failed": 1}
    endings["b: 1 kills, 1 in a commit, 0 workers"] = 2
    monkeypatch.setattr(chaos("kills"), "cast", lambda: {"a": (), "b": ()})
    found = chaos("kills").tally({"endings": endings})
    assert found == {"kills": 7, "in_a_commit": 3, "workers_killed": 3, "least": 2}
    monkeypatch.setattr(chaos("kills"), "cast", lambda: {"a": (), "b": (), "c": ()})
    assert chaos("kills").tally({"endings": endings})["least"] == 0  # of one that was never killed


def test_shared_memory_that_a_kill_leaves_is_noticed(
    chaos: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(arena, "_MEMORY", tmp_path)
    chaos("zygote").nothing_shared()
    monkeypatch.setattr(arena, "_nameless", lambda: False)  # as where files need names
    kept = arena.shared((3,))
    with pytest.raises(chaos("harness").FaultError, match=r"\b1 files .*shared memory.*\bfedalloy-"):
        chaos("zygote").nothing_shared()
    del kept


def test_a_fault_point_of_the_commit_path_loses_nothing(chaos: Any) -> None:
    commits, names = chaos("commits"), ("fedavg", "local")
    report = commits.main(40, 0, names=names)["commits"]
    assert report["examples"] == []
    assert report["trials"] == 40
    assert len(report["endings"]) == 2 * 4  # runs and resumptions; killed, torn, error, full
    assert report["points"] > 2 * 2 * 150  # of two methods, runs and resumptions


def test_without_atomic_files_a_fault_point_is_noticed(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(path: Path, data: bytes, mode: int = 0o666) -> None:
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
        try:
            os.write(handle, data)
        except OSError as error:
            raise StorageError(f"'{path}' cannot be written") from error
        finally:
            os.close(handle)

    monkeypatch.setattr("fedalloy.storage.checkpoints.write_atomically", in_place)
    monkeypatch.setattr(chaos("commits"), "FAULTS", ("torn",))
    report = chaos("commits").main(10, 0, names=("fedavg",))["commits"]
    assert report["failures"] > 0


def test_damaged_checkpoints_are_refused_or_passed_over(chaos: Any, tmp_path: Path) -> None:
    checkpoints, harness = chaos("checkpoints"), chaos("harness")
    with checkpoints.prepared(tmp_path), harness.little_memory():
        report = harness.trials("checkpoints", 60, 0, checkpoints.damage_trial)
    assert report["examples"] == []
    assert report["endings"].keys() >= {"mended or no harm", "passed over", "refused with code 5"}


@pytest.mark.parametrize("kind", ["a pipe", "a file of 1 TB", "a link to an endless file", "a folder in its place"])
def test_what_is_no_file_is_damage_like_any_other(chaos: Any, stopped: Any, kind: str) -> None:
    checkpoints = chaos("checkpoints")
    folder, dice = stopped.folder, random.Random(0)
    newest = folder / "checkpoints" / "000002.safetensors"
    damage = chaos("damage")
    site = damage.Site(folder, folder, dice)
    with pytest.MonkeyPatch.context() as patch, chaos("harness").little_memory():
        patch.setattr(damage.Site, "file", lambda self, *_: newest)
        damage.DAMAGE[kind](site)
        said: list[str] = []
        assert checkpoints.gone_on_with(folder, stopped, kind, said) is None
    assert said[0].startswith("the checkpoint of round 2 cannot be used: ")
    assert chaos("kills").ending(folder)["bits"] == stopped.wanted["bits"]


def test_a_pipe_in_the_place_of_the_records_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rounds.jsonl")
    with pytest.raises(StorageError, match="cannot be written"):
        append_line(tmp_path / "rounds.jsonl", "{}")


@pytest.mark.parametrize(
    ("resume", "fault"),
    [
        (lambda *_, **__: None, "it was accepted, but"),
        (lambda *_, **__: {}["nothing"], "KeyError: 'nothing'"),
        (lambda *_, **__: _refuse("two\nlines"), "the refusal is not one line"),
        (lambda folder, **_: ((folder / "more").touch(), _refuse("no")), "but something was written"),
    ],
)
def test_a_wrong_answer_to_damage_is_a_failure(
    chaos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: Any, fault: str
) -> None:
    checkpoints = chaos("checkpoints")
    with checkpoints.prepared(tmp_path):
        checkpoints.stopped("fedavg", 1)
        monkeypatch.setattr(checkpoints, "METHODS", ("fedavg",))
        monkeypatch.setattr(checkpoints, "STOPPED", (1,))
        monkeypatch.setattr(checkpoints, "resume", resume)
        report = chaos("harness").trials("checkpoints", 1, 0, checkpoints.damage_trial)
    assert fault in report["examples"][0]["what"]


def _refuse(sentence: str) -> None:
    raise CheckpointError(sentence)


# --- files and command lines ------------------------------------------------------------------------------------------


def test_damaged_files_are_refused_or_sound(chaos: Any, tmp_path: Path) -> None:
    files, harness = chaos("files"), chaos("harness")
    with chaos("checkpoints").prepared(tmp_path), harness.little_memory():
        assert files.whole() == {which: f"{which}: used" for which in files.KINDS}
        report = harness.trials("files", 150, 0, files.file_trial)
    assert report["examples"] == []


def test_a_file_that_breaks_its_reader_is_a_failure(chaos: Any, tmp_path: Path) -> None:
    files = chaos("files")
    with pytest.raises(chaos("harness").FaultError, match="npz: KeyError: 'x'"):
        files.outcome("npz", lambda _: {}["x"], tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run.json", {"seed": [1]}),
        ("run.json", {"label": None}),
        ("run.json", {"digests": 0.5}),
        ("run.json", {"model": {"input": 3}}),
        ("rounds.jsonl", {"round": "one"}),
        ("rounds.jsonl", {"views": {"aca": {"amp": [0.5]}}}),
        ("rounds.jsonl", {"views": {"aca": 1.0}}),
        ("rounds.jsonl", {"bytes": {"up": "much"}}),
        ("rounds.jsonl", {"seconds": {"a": {"b": {"c": {"d": 1}}}}}),
        ("rounds.jsonl", {"flops": 10**400}),
    ],
)
def test_what_a_stranger_wrote_of_a_run_is_a_sentence(
    chaos: Any, stopped: Any, name: str, change: dict[str, Any]
) -> None:
    file = stopped.folder / name
    first, *rest = file.read_text().splitlines() if name == "rounds.jsonl" else [file.read_text()]
    file.write_text("\n".join([json.dumps({**json.loads(first), **change}), *rest]) + "\n")
    copy_of(stopped.folder / "run.json").unlink()  # which would take its place
    use = export_model if change.keys() & {"digests", "model"} else read
    with pytest.raises(DataError):
        use(stopped.folder)


def test_sites_files_of_every_kind_are_refused_in_one_line_or_sound(chaos: Any) -> None:
    sites, harness = chaos("site_files"), chaos("harness")
    with harness.little_memory():
        report = harness.trials("site-files", 400, 0, sites.file_trial)
    assert report["examples"] == []
    assert {*report["endings"]} == {f"{kind}: {how}" for kind in sites.KINDS for how in ("read", "refused")}


def test_run_folders_with_something_else_in_them_are_refused_or_reported(chaos: Any) -> None:
    assert chaos("run_folders").main(12, 0)["run-folders"]["failures"] == 0


def test_a_site_file_that_breaks_its_reader_is_a_failure(
    chaos: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sites, harness = chaos("site_files"), chaos("harness")
    monkeypatch.setattr(sites, "read_site_data", lambda *_, **__: {}["x"])
    with pytest.raises(harness.FaultError, match="csv: KeyError: 'x'"):
        sites.outcome("csv", tmp_path / "a.csv", harness.Dice(0, "site-files", 1))


def test_wrong_command_lines_end_in_one_line(chaos: Any, tmp_path: Path) -> None:
    commands, harness = chaos("commands"), chaos("harness")
    with chaos("checkpoints").prepared(tmp_path), commands.quick():
        report = harness.trials("commands", 60, 0, commands.command_trial)
    assert report["examples"] == []
    assert report["endings"]["code 2"] > 20


@pytest.mark.parametrize(
    ("said", "fine"),
    [
        ("fedalloy: no\n", True),
        ("fedalloy: these differ:\n  seed: 0 -> 1\n", True),
        ("no\n", False),
        ("fedalloy: no\nand more\n", False),
        ("", False),
    ],
)
def test_what_one_line_is(chaos: Any, said: str, fine: bool) -> None:
    assert chaos("commands").is_one_line(said) == fine


def test_a_command_that_breaks_is_a_failure(chaos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = chaos("commands")
    monkeypatch.setattr(commands, "a_command_line", lambda *_: ["list"])
    monkeypatch.setattr("fedalloy.report.listing.listing", lambda *_, **__: 1 / 0)
    with chaos("checkpoints").prepared(tmp_path), commands.quick():
        report = chaos("harness").trials("commands", 1, 0, commands.command_trial)
    what = report["examples"][0]["what"]
    assert "'list' exited with status 1" in what
    assert "ZeroDivisionError" in what


def test_hostile_evaluations_stay_within_the_limits(chaos: Any) -> None:
    pytest.importorskip("flwr")
    oracle = chaos("oracle")
    with oracle.targets() as made:
        report = chaos("harness").trials("oracle", 8, 0, partial(oracle.oracle_trial, made))
    assert report["examples"] == []
    assert len(report["endings"]) > 2


@pytest.mark.parametrize("guard", ["evaluated._fault", "client.unfit"])
def test_an_evaluation_beyond_the_limits_is_a_failure(chaos: Any, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    oracle = chaos("oracle")
    monkeypatch.setattr(f"fedalloy.engine.flower.{guard}", lambda *_: None)
    with oracle.targets() as made:
        plain = {name: at for name, at in made.items() if name == "without [privacy]"}
        report = chaos("harness").trials("oracle", 3, 0, partial(oracle.oracle_trial, plain))
    assert report["examples"]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_up_to_date(chaos: Any) -> None:
    page = chaos("page")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run `python chaos/page.py`"


def test_every_report_has_its_promise(chaos: Any) -> None:
    assert {file.stem for file in (CHAOS / "results").glob("*.json")} <= chaos("page").PROMISES.keys()


def test_no_figure_of_the_page_is_typed_by_hand(chaos: Any) -> None:
    page, faults = chaos("page"), chaos("faults")
    told = [fault.what for group in faults.FAULTS.values() for fault in group]
    assert not [text for text in (*page.PROMISES.values(), *told, *faults.LIMITS) if re.search(r"\d", text)]


def test_what_the_page_refers_to_is_there(chaos: Any) -> None:
    for fault in (fault for group in chaos("faults").FAULTS.values() for fault in group):
        for place in fault.seen:
            file, _, name = place.partition("::")
            text = (CHAOS.parent / file).read_text()
            assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), place


def test_the_page_shows_what_the_reports_say(chaos: Any, tmp_path: Path) -> None:
    machine = {"cores": 2, "system": "Linux", "python": "3.11", "torch": "2.13"}
    about = {"seconds": 150.0, "seed": 7, "command": "python chaos/x.py", "code": "1234567890", "machine": machine}
    good = {"trials": 1000, "failures": 0, "endings": {"refused": 1000}, **about}
    shares = {"FedAvg": {"median": 0.01, "largest": 0.02}, "FedMD": {"median": 0.001, "largest": 0.04}}
    bad = {"trials": 20, "failures": 3, "methods": shares, "limit": 0.03, **about}
    for name, report in (("config-files", good), ("gate-price", bad)):
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    score = {"method": "FedAvg", "defence": "none", "attack": "none", "seed": 0, "accuracy": 0.8, "kept": 1.0}
    scores = [score, {**score, "attack": "nan", "accuracy": 0.4, "kept": 0.5}, {**score, "attack": "x", "kept": None}]
    exp = {"partition": {"clients": 10}, "data": {"name": "tiny"}, "rounds": 4}
    (tmp_path / "attacks.json").write_text(json.dumps({"fraction": 0.3, "experiment": exp, "scores": scores}))
    text = chaos("page").page(tmp_path, tmp_path / "attacks.json")
    row = "| 1,000 | 0 | 0.3 % | 2 min | 7 | A | `python chaos/x.py` |"
    assert f"| A damaged experiment file is refused in one line {row}" in text
    assert "| 20 | 3 |  | 2 min | 7 | A |" in text  # where something failed, nothing is concluded
    assert re.search(r"\*\*gate-price\*\*: .*FedAvg 1\.00%, FedMD 0\.10%.* 4\.00%", text)
    assert "Machine A is 2 cores, Linux, Python 3.11, torch 2.13." in text
    assert "| FedAvg | none | 80.0 | 40.0 (50%) |  |" in text
    assert "30% of 10 clients attack, tiny, 4 rounds, seed 0.\n" in text


def test_the_page_says_what_was_not_run_and_of_which_code_the_rest_is(chaos: Any, tmp_path: Path) -> None:
    page, machine = chaos("page"), {"cores": 2, "system": "Linux", "python": "3.11", "torch": "2.13"}
    good = {"trials": 9, "failures": 0, "endings": {"refused": 9}, "seconds": 1.0, "seed": 0, "command": "x"}
    for name, code in (("gate", "1234567890abcdef"), ("deliveries", "1234567890abcdef")):
        (tmp_path / f"{name}.json").write_text(json.dumps({**good, "code": code, "machine": machine}))
    text = page.page(tmp_path, tmp_path / "attacks.json")
    assert f"| {page.PROMISES['kills']} | not yet run |" in text
    assert text.count("| not yet run |") == len(page.PROMISES) - 2
    assert "the same code, `12345678`." in text
    (tmp_path / "gate.json").write_text(json.dumps({**good, "code": "fedcba0987654321", "machine": machine}))
    text = page.page(tmp_path, tmp_path / "attacks.json")
    assert "the same code: `12345678` (deliveries), `fedcba09` (gate)." in text


def test_the_page_recommends_what_keeps_most_under_the_worst_attack(chaos: Any, tmp_path: Path) -> None:
    def scores(
        method: str, defence: str, clean: float, seed: int = 0, **kept: float | None
    ) -> Iterator[dict[str, Any]]:
        about = {"method": method, "defence": defence, "seed": seed}
        yield {**about, "attack": "none", "accuracy": clean, "kept": 1.0}
        for attack, share in kept.items():
            accuracy = None if share is None else share * clean
            yield {**about, "attack": attack, "accuracy": accuracy, "kept": share}

    found = [
        *scores("FedAvg", "none", 0.8, flip=0.1, nan=1.0, idle=None),
        *scores("FedAvg", "krum", 0.7, flip=0.97, nan=0.96, idle=None),
        *scores("FedAvg", "median", 0.75, flip=0.99, nan=0.9, idle=None),
        *scores("KnFu", "none", 0.5, flip=0.4, nan=1.0, idle=0.9),
        *scores("Local", "none", 0.5, flip=None, nan=None, idle=None),
        *scores("DS-FL", "none", 0.5, flip=1.0, nan=1.0, idle=1.0),
        *scores("DS-FL", "none", 0.5, seed=1, flip=0.97, nan=0.92, idle=1.0),
    ]
    exp = {"partition": {"clients": 10}, "data": {"name": "tiny"}, "rounds": 4}
    (tmp_path / "attacks.json").write_text(json.dumps({"fraction": 0.3, "experiment": exp, "scores": found}))
    text = chaos("page").page(tmp_path, tmp_path / "attacks.json")
    krum = r'\(`combine = "krum"`, `trim = 0\.3`\)'
    assert re.search(rf"\* \*\*FedAvg\*\*: krum {krum} .*\b96%.* nan: .*\b95%.*\b70\.0\b.*\b80\.0\b", text)
    assert re.search(r"\* \*\*KnFu\*\*: without a defence .*\b40%.* flip: less than 95%\.\n", text)
    assert re.search(r"\* \*\*Local\*\*: nothing ", text)
    assert re.search(r" nan: at least 95%.* 92% \(nan\)\.\n", text)


# --- the harness itself -----------------------------------------------------------------------------------------------


def test_a_campaign_goes_on_where_it_was_stopped(chaos: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    harness = chaos("harness")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    seen: list[float] = []

    def trial(dice: random.Random) -> str:
        seen.append(dice.random())
        if len(seen) == 3:
            raise ValueError("it broke")
        return "done"

    first = harness.trials("some", 4, 7, trial, save=True)
    whole = harness.trials("some", 6, 7, trial, save=True)
    assert (first["trials"], first["failures"], whole["trials"], whole["failures"]) == (4, 1, 6, 1)
    assert len(seen) == len(set(seen)) == 6  # none was repeated
    assert whole["examples"][0]["trial"] == 2
    assert whole["endings"] == {"done": 5, "failed": 1}
    again: list[float] = []
    harness.trials("some", 6, 7, lambda dice: again.append(dice.random()) or "done")
    assert again == seen  # a trial follows from the seed and its number


def test_a_smaller_count_leaves_a_larger_campaign_with_its_command(
    chaos: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    harness = chaos("harness")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def ran(count: int) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["x.py", "--count", str(count), "--save"])
        harness.trials("some", count, 7, lambda dice: "done", save=True)
        report = json.loads((tmp_path / "some.json").read_text())
        return report["trials"], report["command"]

    assert ran(5) == (5, "python chaos/x.py --count 5 --save")
    assert ran(3) == (5, "python chaos/x.py --count 5 --save")  # these made the five
    assert ran(8) == (8, "python chaos/x.py --count 8 --save")
