"""A site's own page: what it says, that it escapes everything, and that its comparison is the library's own."""

from __future__ import annotations

import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid, which is no test

from sites_grid import grid_of

import fedalloy
from fedalloy.cli.main import main
from fedalloy.deploy import app
from fedalloy.deploy.alone import trained_alone
from fedalloy.deploy.audit import audited, site_log
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.site_report import PAGE, render, write_pages
from fedalloy.deploy.site_scores import difference, gain, last_scores, over_rounds
from fedalloy.errors import UsageError
from fedalloy.federation.intervals import wilson
from fedalloy.storage.audit import LOG, AuditLog, verify
from fedalloy.storage.results import read

TINY: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 2, "alpha": 1.0},
    "training": {"batch": 16},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = init(TINY, tmp_path_factory.mktemp("report") / "lab", 2)
    app.conducted(grid_of(made), made, lambda _: None)
    return made


@pytest.fixture
def site(ran: Deployment, tmp_path: Path) -> Path:
    """A copy of site 1 that stands alone: no server, no other site."""
    return Path(shutil.copytree(ran.site(1), tmp_path / "site-1"))


def _page(site: Path, **more: Any) -> str:
    ((folder, client), log), *_ = audited(site).items()
    return render(folder, client, log, folder.name, **more)


class _Text(HTMLParser):
    """The text of a page, and every address in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [str(value) for key, value in attrs if key in ("src", "href", "action", "srcset")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_tells_what_the_log_says_and_needs_no_network(ran: Deployment, site: Path) -> None:
    page = _page(site)
    seen, (log,) = _Text(page), audited(site).values()
    text = " ".join(seen.words)
    for expected in (ran.address, log.entries[0]["authority"], log.entries[0]["experiment"], log.head):
        assert expected in text
    assert "model weights" in text  # from the method's card
    assert "confusion matrix" in text
    assert "training rows of each class" not in text  # FedAvg does not tell that
    assert f"intact, {len(log.entries)} lines" in text
    assert "Nothing was refused" in text
    assert not [a for a in seen.addresses if not a.startswith("#")]
    assert seen.tags.count("script") == 1
    assert not re.search(r"@import|url\((?!#)", page)
    assert page == _page(site)


def test_the_scores_are_those_that_the_server_has_recorded_with_intervals(ran: Deployment, site: Path) -> None:
    (log,) = audited(site).values()
    curves, run = over_rounds(log.entries), read(ran.run)
    for round in (1, 2):
        mine = curves["aca"][round]
        recorded = run.view("aca", round)["clients"]
        assert mine["accuracy"] == recorded["accuracy"][1]
        assert mine["rows"] == recorded["size"][1]
        assert mine["auc"] == recorded["auc"][1]
        assert mine["accuracy_95"] == pytest.approx(wilson(mine["accuracy"], mine["rows"]), abs=1e-5)
    text = " ".join(_Text(_page(site)).words)
    assert f"{100 * last_scores(curves)['aca']['accuracy']:.1f} [" in text


def test_training_alone_is_the_method_local_converged(ran: Deployment, site: Path, tmp_path: Path) -> None:
    run = fedalloy.simulate({**TINY, "method": "local-converged"})
    alone = trained_alone(site, 1)
    assert alone["accuracy"] == run.view("personal", 1)["clients"]["accuracy"][1]
    (log,) = audited(site).values()
    last = last_scores(over_rounds(log.entries))
    points = 100 * (last["aca"]["accuracy"] - alone["accuracy"])
    (line,) = (line for line in gain(last, alone).body if line[0] == "ACA")
    assert float(line[4]) == pytest.approx(points, abs=0.051)
    assert "against training alone" in _page(site, alone=alone)
    assert not (set(site.rglob("*")) - {site / p.relative_to(ran.site(1)) for p in ran.site(1).rglob("*")})


@pytest.mark.parametrize(("ends", "clear"), [((0.78, 0.82), True), ((0.5, 0.95), False)])
def test_a_gain_within_its_interval_is_not_clear(ends: tuple[float, float], clear: bool) -> None:
    found = gain({"aca": {"accuracy": 0.8, "accuracy_95": ends}}, {"accuracy": 0.7, "accuracy_95": (0.68, 0.72)})
    assert (found.body[0][1] == "gain") is clear
    assert difference((0.5, None), (0.4, (0.3, 0.5))) is None


def test_a_hostile_server_writes_nothing_into_the_page(site: Path) -> None:
    log = site_log(site, 1)
    evil = "<script>alert(1)</script>\x1b[2J\u202e"
    log.append("asked", {"kind": "train.act", "action": evil, "round": 3, "in": {"bytes": 5}})
    log.append("refused", {"kind": "train.act", "action": evil, "round": 3, "why": evil * 9, "out": {"bytes": "x"}})
    scores = {evil: {"accuracy": 0.5, "rows": 4}, "b": "no table", "c": {"accuracy": "x"}, "$x^$": {"accuracy": 1e400}}
    log.append("answered", {"kind": "evaluate.views", "round": 3, "scores": scores, "kinds": {evil: 3, "x": []}})
    log.append("answered", {"kind": "evaluate.views", "round": [3], "scores": [], "kinds": 7, "action": {"a": 1}})
    page = _page(site)
    assert _Text(page).tags.count("script") == page.count("<script") == 1
    assert "alert(1)" in page
    assert not {"\x1b", "\u202e"} & {*page}


def test_a_broken_log_is_said_first(site: Path) -> None:
    file = site / "memory" / "1" / LOG
    file.write_bytes(file.read_bytes().replace(b'"round": 2', b'"round": 7', 1))
    text = " ".join(_Text(_page(site)).words)
    assert "The audit log is not intact: line" in text
    (site / "experiment.toml").write_text("nonsense = [")
    assert "cannot be read" in " ".join(_Text(_page(site)).words)


def test_a_long_log_gives_a_page_of_bounded_size(tmp_path: Path, site: Path) -> None:
    entries = verify(site / "memory" / "1").entries
    many = [
        {**entry, "round": round, "why": "no"}
        for round in range(2000)
        for entry in (*entries[-2:], {**entries[-1], "event": "refused"})
    ]
    ((folder, client), log), *_ = audited(site).items()
    page = render(folder, client, type(log)(many, None), "x" * 10_000)
    assert len(page) < 1_500_000
    assert "left out" in page


def test_privacy_is_told_from_the_ledger_of_the_site(site: Path) -> None:
    pytest.importorskip("dp_accounting")
    from fedalloy.engine.flower.memory import Memory

    file = site / "experiment.toml"
    file.write_text(file.read_text() + "\n[privacy]\nnoise_multiplier = 1.0\nbudget = 8.0\n")
    Memory(site / "memory" / "1").charge(lambda _: {"1.0": {"0.1": 30}})
    text = " ".join(_Text(_page(site)).words)
    assert "30 private steps" in text
    assert re.search(r"epsilon [0-9.]+ at delta 1e-05, of a budget of 8", text)


def test_the_command_writes_a_private_page_for_each_site(
    ran: Deployment, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def code(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["deploy", "report", *words])
        return int(ended.value.code or 0)

    assert code(str(site)) == 0
    assert (site / PAGE).stat().st_mode & 0o777 == 0o600
    assert code(str(ran.folder), "--out", str(tmp_path / "pages"), "--alone") == 0
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == ["site-0.html", "site-1.html"]
    assert "training alone" in capsys.readouterr().out
    assert code(str(tmp_path)) == 2
    (tmp_path / "new").mkdir()
    shutil.copy(site / "site.toml", tmp_path / "new")
    with pytest.raises(UsageError, match="audit log"):
        write_pages(tmp_path / "new", "", lambda _: None, alone=False)


def test_numbers_and_labels_have_their_own_scores(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "0", {"client": 0})
    log.append("answered", {"kind": "evaluate.views", "round": 1, "scores": {
        "aca": {"rows": 40, "r2": -0.2, "r2_95": [-0.5, 0.1], "mae": 1.5}}, "kinds": {"evaluation": 9}})  # fmt: skip
    page = render(tmp_path, 0, verify(tmp_path / "0"), "x", {"r2": 0.1, "r2_95": [0.0, 0.2]})
    text = " ".join(_Text(page).words)
    assert "-0.200 [-0.500, 0.100]" in text
    assert "summed squared error" in text
    assert "-30.0" in text


def test_a_site_with_few_positives_is_not_told_that_a_useless_model_is_a_gain(tmp_path: Path) -> None:
    """Of 40 rows two are positive: the federated model finds neither, the site's own finds both with false alarms."""
    log = AuditLog(tmp_path / "0", {"client": 0})
    useless = {"rows": 40, "commonest": 0.95, "accuracy": 0.95, "balanced": 0.5, "balanced_95": [0.45, 0.55]}
    log.append("answered", {"kind": "evaluate.views", "round": 1, "scores": {"aca": useless}})
    curves = over_rounds(verify(tmp_path / "0").entries)
    own = {"rows": 40, "commonest": 0.95, "accuracy": 0.7, "balanced": 0.84, "balanced_95": [0.7, 0.9]}
    (line,) = gain(last_scores(curves), own).body
    assert line[1] == "loss"
    assert line[4] == "-34.0"
    often = {name: {**one, "commonest": 0.6} for name, one in last_scores(curves).items()}
    assert gain(often, {**own, "commonest": 0.6}).body[0][4] == "+25.0"
