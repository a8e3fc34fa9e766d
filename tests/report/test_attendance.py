"""Who took part: what a lost reply counts, and what is said of those who never did."""

from __future__ import annotations

from fedalloy.report.attendance import took_part, unheard
from fedalloy.report.facts import warnings
from fedalloy.storage.results import Run

META = {"label": "FedAvg", "clients": {"class_counts": [[5, 0, 0], [9, 0, 0], [1, 4, 0], [1, 0, 3]]}}


def heard(*clients: int) -> tuple[dict[str, object], ...]:
    return ({"round": 1, "active": list(clients), "lost": []},)


def test_a_lost_reply_is_no_participation():
    records = [{"active": [1, 2], "lost": []}, {"active": [3], "lost": [3]}, {"active": [0, 3], "lost": [0]}]
    assert took_part(records) == [[1, 2], [], [3]]


def test_a_client_that_was_set_aside_did_not_take_part():
    assert took_part([{"active": [1, 2], "lost": [], "quarantined": [{"client": 2}]}]) == [[1]]


def test_a_class_that_is_lost_with_its_clients_is_said():
    told = unheard([Run(META, heard(0, 1))])
    assert len(told) == 1
    assert all(part in told[0] for part in ("Clients 2 and 3", "classes 1 and 2", "[participation]"))


def test_nothing_is_said_where_all_classes_are_heard():
    assert unheard([Run(META, heard(2, 3))]) == []


def test_nothing_is_said_where_nobody_is_asked():
    assert unheard([Run(META, heard())]) == []


def test_a_sentence_names_the_runs_if_not_all_are_meant():
    pooled = Run({**META, "label": "Centralised"}, heard())
    told = unheard([pooled, Run(META, heard(0, 1, 2))])
    assert len(told) == 1
    assert told[0].startswith("FedAvg: client 3 ")
    assert "class 2" in told[0]


def test_it_stands_among_the_warnings():
    assert "Clients 1, 2 and 3" in warnings([Run({**META, "seed": 0}, heard(0))])[-1]
