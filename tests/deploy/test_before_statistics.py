"""A site before and after it knows how all sites prepare their rows: its start, its own report, what both say."""

from __future__ import annotations

import sys
from html import unescape
from pathlib import Path

import pytest

from fedalloy.deploy.alone import trained_alone
from fedalloy.deploy.audit import audited
from fedalloy.deploy.init import init
from fedalloy.deploy.preflight import main as preflight
from fedalloy.deploy.site_report import render
from fedalloy.errors import UsageError
from fedalloy.federation.disclosure import STATISTICS, always

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from test_own_files import deployed, hospitals, values


def test_a_site_starts_before_anybody_was_asked_for_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedalloy.deploy.preflight.refusal", lambda *_: (0, "the server is the right one"))
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "d")
    assert preflight("fl.example.org", "8443", str(made.site(1)), "3") == 0
    assert "32 training samples and 8 test samples" in capsys.readouterr().err


def test_a_site_trains_alone_on_rows_that_are_prepared_as_in_the_run(tmp_path: Path) -> None:
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "d")
    with pytest.raises(UsageError):
        trained_alone(made.site(0), 0)
    deployed(made)
    assert 0 <= trained_alone(made.site(0), 0)["accuracy"] <= 1


def test_what_sites_tell_of_their_columns_is_listed(tmp_path: Path) -> None:
    assert all(text in " ".join(always()) for text in STATISTICS.values())
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "d")
    deployed(made)
    (log,) = audited(made.site(0)).values()
    page = unescape(render(made.site(0), 0, log, "north"))
    assert all(text in page for text in STATISTICS.values())
