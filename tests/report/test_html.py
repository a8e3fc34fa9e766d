import base64
import hashlib
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from fedalloy.errors import DataError, StorageError
from fedalloy.report import facts, html
from fedalloy.report.html import render, write_report
from fedalloy.report.page import script
from fedalloy.run.runner import simulate


class Page(HTMLParser):
    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())

    def all(self, name):
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def text(comparison):
    return render(comparison, title="Toy", command="fedalloy compare toy.toml")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_asks_nothing_of_the_network(text, page):
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert all(value.startswith("#") for value in page.all("href"))
    assert not page.all("src")
    assert "@import" not in text
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", text))
    assert set(re.findall(r"https?://[^\"'\s<]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_one_script_may_run_and_nothing_may_be_requested(text, page):
    policy = next(value for value in page.all("content") if "script-src" in value)
    assert text.count("<script") == text.count(f"<script>{script()}</script>") == 1
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    assert {"default-src 'none'", f"script-src 'sha256-{digest}'"} <= set(policy.split("; "))
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_ids_are_unique_and_every_reference_has_one(page):
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in page.all("href")} <= set(ids)
    assert set(page.all("aria-labelledby")) <= set(ids)
    assert set(page.all("data-table")) <= set(ids)


def test_what_the_page_says_and_in_which_order(text):
    parts = [
        *(
            "<h1>Toy</h1>",
            "No verdict: FedAvg (OCA) was evaluated in 2 rounds",
            "FedAvg (OCA) leads local training by ",
        ),
        "30.0 points of AMP",
        *("Comparison</h2>", "larger than chance", "How the methods learned", "Accuracy of each client"),
        *("Gain of each client</h2>", "How the data was split"),
        *("Communication and time", "Settings</h2>", "What the numbers mean", "How to repeat it"),
        *("fedalloy compare toy.toml", "torch 2.13.0"),
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert '<html lang="en">' in text
    assert 'name="viewport"' in text


def test_pictures_can_be_read_aloud(page):
    # AMP over the rounds, bytes, FLOPs and seconds; WLP, FM, differences, clients, gains, sizes, the split
    assert page.all("role").count("img") == 11
    assert page.tags.count("figure") == page.tags.count("figcaption") == 7
    kinds = ("chart", "plot", "Map")
    assert len([label for label in page.all("aria-label") if any(kind in label for kind in kinds)]) == 11
    assert len(page.all("data-table")) == 7  # each has its numbers in a table
    assert set(page.all("scope")) == {"col", "row"}


def test_the_table_marks_what_is_better_than_noise(make_run, text):
    # In the comparison both seeds agree to the digit, which two coins also do.
    assert 'class="best"' not in text
    assert "paired t-tests" in text
    runs = [
        make_run(name, name, seed, {"oca": [[amp + seed / 100, amp + seed / 100]]})
        for name, amp in (("fedavg", 0.7), ("fedprox", 0.305))
        for seed in range(3)
    ]
    runs[0] = make_run("fedavg", "fedavg", 0, {"oca": [[0.701, 0.701]]})
    page = render(runs, title="Toy")
    assert page.count('class="best"') == 3  # AMP, WLP and the low tenth; there is no unfairness to compare
    assert '<td class="best">71.03 ± 0.95</td>' in page


def test_hostile_words_stay_words(make_run):
    bad = '<script>alert("1")</script>'
    run = make_run(label=bad, versions={bad: bad}, model={"name": bad}, experiment={"data": {"name": bad}, "x": bad})
    run.meta["clients"] |= {"label_names": [bad, "</svg>"], "names": [bad, f'"{bad}']}
    text = render([run], title=bad, command=bad)
    found = Page(text)
    assert found.tags.count("script") == text.count("<script") == 1
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.all("role").count("img") == Page(render([make_run()], title="x")).all("role").count("img")


def test_equal_runs_give_equal_bytes(comparison, text, tmp_path):
    path = write_report(comparison, tmp_path / "new" / "x.html", title="Toy", command="fedalloy compare toy.toml")
    assert path.read_bytes() == text.encode("utf-8")
    assert text.startswith("<!DOCTYPE html>")


def test_the_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "render", lambda *_, **__: "new")
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail)
        with pytest.raises(StorageError, match="No space left"):
            write_report([], path)
    assert path.read_text() == "old"
    assert write_report([], path).read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_nothing_to_report(make_run):
    with pytest.raises(DataError, match="nothing to report"):
        render([make_run(views={})], title="")


def test_an_unfinished_run_is_announced(make_run):
    run = make_run(label="FedAvg", status="running", experiment={"rounds": 30})
    (told,) = facts.unfinished([run])
    assert told.startswith("FedAvg, seed 0, is not finished")
    assert "2 of 30 rounds" in told
    assert told in render([run], title="")


def test_runs_that_are_told_apart_have_no_deviation_over_seeds(make_run):
    def render_runs(*lrs):
        runs = [make_run(seed=seed, experiment={"training": {"lr": lr}}) for seed, lr in enumerate(lrs)]
        return render(runs, title="")

    assert "one standard deviation over 2 seeds" in render_runs(0.1, 0.1)
    text = render_runs(0.1, 0.5)
    assert "one standard deviation" not in text
    assert {"fedavg, training.lr = 0.1", "fedavg, training.lr = 0.5"} <= set(Page(text).words)


def test_why_accuracies_are_unknown_is_said(make_run):
    clients = {"train_sizes": [30, 10], "test_sizes": [0, 0], "class_counts": [[30, 0], [5, 5]]}
    blind = make_run(label="Blind", clients=clients, views={"oca": [[float("nan"), float("nan")]]})
    assert facts.untested([make_run()]) == []
    assert facts.untested([make_run(), blind])[0].startswith("No client of Blind has test samples")
    (told,) = facts.untested([blind])
    assert "partition.test_fraction" in told
    assert told in render([blind], title="")


def test_a_private_deployment_is_not_evaluated_and_cannot_be_repeated(make_run):
    unknown = [[float("nan"), float("nan")]]
    run = make_run(experiment={"privacy": {"budget": 8.0}}, views={"oca": unknown})
    for record in run.rounds:
        record["noise"] = "secret"
        record["views"]["oca"]["clients"]["size"] = [0, 0]
    text = render([run], title="")
    assert '<p class="verdict">The sites evaluated nothing, because [privacy] is on.</p>' in text
    assert "cannot be reproduced bit for bit" in text
    assert "give the same numbers" not in text
    assert "give the same numbers" in render([make_run()], title="")


def test_a_run_that_recorded_little_is_still_shown(make_run):
    run = make_run(clients={}, partition={}, model={}, versions={}, experiment={})
    assert "How the data was split" not in render([run], title="")


def test_what_servers_noted_is_drawn_where_there_is_any(make_run):
    run = make_run()
    noting = replace(run, rounds=tuple({**record, "notes": {"<kept>": 3}} for record in run.rounds))
    assert "the server noted" not in render([run], title="")
    assert "the server noted in each round: &lt;kept&gt;" in " ".join(render([noting], title="").split())


def test_passes_and_flops_are_shown():
    exp = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 2, "alpha": 1.0}}
    run = simulate({**exp, "method": "fedavg"})
    words = Page(render([run], title="Toy", command="")).words
    heading = words.index("Generator forward")
    assert words[words.index("Computation") :].index("Forward") > 0
    assert f"{run.rounds[0]['flops']['clients']:.3g}" in words[heading:]


def test_traffic_by_kind(make_run):
    kinds = {"weights": 1000, "logits": 4000}
    lines = facts.traffic([make_run(kinds=kinds, seed=0), make_run(kinds=kinds, seed=1)])
    assert lines == [
        {"label": "fedavg", "kind": "logits", "down": "8.00 kB", "up": "4.00 kB", "both": "12.0 kB"},
        {"label": "fedavg", "kind": "weights", "down": "2.00 kB", "up": "1.00 kB", "both": "3.00 kB"},
    ]
    assert facts.traffic([make_run(kinds={})])[0]["kind"] == "nothing"


def test_times_and_setting(make_run):
    assert facts.times([make_run()]) == ["fedavg", "2.0 s", "1.0 s", "0.5 s", "0.5 s", "4.0 s"]
    assert facts.setting([make_run(seed=1), make_run(seed=0)]) == [
        *(("Data", "toy"), ("Split", "dirichlet (alpha 0.1)"), ("Clients", "2")),
        *(("Model", "mlp (1,234 parameters)"), ("Rounds", "2"), ("Seeds", "2 (seeds 0 and 1)")),
    ]


def test_skew_of_an_empty_client():
    assert "hold 0 to 4 training samples" in facts.skew(np.array([[0, 0], [2, 2]]))


def test_the_page_says_in_words_what_left_the_clients(tmp_path):
    """With the options that the run had."""
    small = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 3, "alpha": 1.0}}
    runs = [
        simulate({**small, "method": m})
        for m in ({"name": "fedavg", "aggregation": {"weights": "disco"}}, {"name": "local"})
    ]
    page = write_report(runs, tmp_path / "r.html").read_text()
    words = page.partition("What left the clients")[2].partition("Settings")[0]
    assert "model weights, number of samples, once how far its labels are from uniform" in words
    assert "nothing" in words
    assert "the confusion matrix on its test rows" in words
    assert re.search(r"Local, equal rounds</span></th><td[^>]*>nothing</td><td[^>]*>its own</td>", words)


@pytest.mark.parametrize(("task", "score"), [("numbers", "R2"), ("labels", "Label accuracy")])
def test_a_report_on_another_task_does_not_speak_of_classes(make_run, task, score):
    run = make_run()
    for record in run.rounds:
        for view in record["views"].values():
            view["task"] = task
            view["clients"]["error"] = [0.1] * len(view["clients"]["accuracy"])
    page = render([run], title="")
    assert f"{score} on all clients" in page
    assert f"{score} if the clients" in page or "if the clients" not in page
    assert "2 clients hold 10 to 30 training samples each" in page
    assert not re.search("of one class|AMP, the|AMP against|variance of accuracy", page)
