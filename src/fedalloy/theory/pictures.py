"""A picture for every finding about the papers' theorems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedalloy.report.canvas import INK, QUIET, styled
from fedalloy.report.series import HUES, Floats
from fedalloy.theory.dafkd import EXAMPLE, best_generator, best_scores, divergence, outlier, problems, searched_scores
from fedalloy.theory.dafkd_bound import KINDS, TEN, TWO, bound, ensemble, memorised_loss, rare_kind, tried
from fedalloy.theory.fedkf import CLIENTS, ONE_WEAK, accuracy, all_shares, lowest_of, mixture
from fedalloy.theory.kdia import MODELS, MU, STRENGTHS, decrease, needed, simulate
from fedalloy.theory.kdia_toy import LARGEST, constants, expected_loss, gradients, loss, pulled
from fedalloy.theory.panels import DASHED, level, logarithmic, panels

BLUE, ORANGE, GREEN = HUES[:3]
DOTS: dict[str, Any] = {"markersize": 2.6, "alpha": 0.7}


@styled
def fedkf_lemma1() -> Figure:
    """The accuracy on each mixture over the share of the worst client in it, and on a domain that is no mixture.

    >>> len(fedkf_lemma1().axes)
    1
    """
    figure, (axes,) = panels(1, "Accuracy of a model on all mixtures of three clients")
    shares = list(all_shares(len(CLIENTS)))
    reached = [float(accuracy(mixture(share))) for share in shares]
    axes.plot([float(share[0]) for share in shares], reached, "o", color=BLUE, markersize=3.2, alpha=0.8)
    axes.plot([0], [0], "X", color=ORANGE, markersize=7, clip_on=False)
    axes.annotate("a domain of samples that are all classified wrongly", (0, 0), (8, 2), textcoords="offset points")
    level(axes, float(accuracy(CLIENTS[0])), "worst client (WLP)", "left")
    axes.set(xlabel="Share of the worst client in the mixture", ylabel="Accuracy", ylim=(-0.04, 0.9))
    return figure


@styled
def fedkf_bound() -> Figure:
    """The worst of so many random domains, and the bound, for three clients and for twenty with a weak one.

    >>> [axes.get_title(loc="left") for axes in fedkf_bound().axes]
    ['3 clients', '20 clients, one of them weak']
    """
    figure, both = panels(2, "Worst accuracy on Q random mixtures of the clients (mean, and 90 % of the draws)")
    cases = {
        "3 clients": [float(accuracy(client)) for client in CLIENTS],
        "20 clients, one of them weak": list(ONE_WEAK),
    }
    for axes, (name, clients) in zip(both, cases.items(), strict=True):
        lowest, domains = lowest_of(clients, 1000), np.unique(np.geomspace(1, 1000, 40).astype(int))
        shown = lowest[:, domains - 1]
        axes.fill_between(domains, *np.quantile(shown, (0.05, 0.95), axis=0), color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(domains, shown.mean(0), color=BLUE)
        level(axes, min(clients), "worst client (WLP)", "left")
        spread = max(clients) - min(clients)
        axes.set(xlabel="Domains Q", ylabel="Accuracy", title=name)
        logarithmic(axes, "x")
        axes.set_ylim(min(clients) - 0.17 * spread, max(clients) + 0.03 * spread)
    return figure


@styled
def kdia_theorem1() -> Figure:
    """Where the inequality is broken, by student and teacher, and by how much it holds or fails in the rounds of a run.

    >>> len(kdia_theorem1().axes)
    2
    """
    figure, (left, right) = panels(2, "Does a round lower the loss as much as Theorem 1 says?")
    grid = np.linspace(-LARGEST, LARGEST, 81)
    known = constants()
    asked = loss(grid) - known.rho(MU) * np.array([gradients(student).mean() for student in grid]) ** 2
    margin = np.array([asked - expected_loss(pulled(teacher, known.strength(MU))) for teacher in grid])
    left.contourf(grid, grid, margin, levels=[margin.min(), 0], colors=[ORANGE], alpha=0.25)
    left.plot(grid, grid, color=INK, linewidth=1, linestyle=DASHED)
    left.text(0.3, -1.4, "the loss falls\ntoo little, or rises", color=ORANGE, va="center", ha="center")
    left.text(-1.95, -0.45, "teacher = student")
    left.set(xlabel="Student", ylabel="Teacher", title="Every student with every teacher", xlim=(-2, 2), ylim=(-2, 2))
    run = simulate()
    rounds = np.arange(1, len(run.slack) + 1)
    broken = run.slack < 0
    right.axhline(0, color=INK, linewidth=1)
    right.plot(rounds[~broken], 1e3 * run.slack[~broken], "o", color=BLUE, markersize=2.6)
    right.plot(rounds[broken], 1e3 * run.slack[broken], "o", color=ORANGE, markersize=3.4)
    right.set(xlabel="Round", ylabel="Margin x 1000", title="A run: the inequality is broken below 0")
    return figure


@styled
def kdia_theorem1_proof() -> Figure:
    """The decrease over the squared gradient from every model, for three strengths, against rho.

    >>> len(kdia_theorem1_proof().axes)
    1
    """
    figure, (axes,) = panels(1, "Decrease of the loss over the squared gradient, and rho")
    for mu, hue in zip((1.0, MU, 5.0), (BLUE, ORANGE, GREEN), strict=True):
        found = [decrease(theta, theta, mu) for theta in MODELS]
        axes.plot(MODELS, found, color=hue)
        axes.annotate(f"mu = {mu:g}", (MODELS[0], found[0]), (2, 4), textcoords="offset points", color=hue, va="bottom")
        axes.axhline(constants().rho(mu), color=hue, linewidth=1.2, linestyle=DASHED)
    axes.text(LARGEST, 0.0033, "rho (dashed)", ha="right", va="top")
    axes.set(xlabel="Model = teacher", ylabel="Decrease / gradient²")
    logarithmic(axes, "y")
    axes.set_ylim(0.001, 0.2)
    return figure


@styled
def kdia_assumption2() -> Figure:
    """The gamma that KDIA's local solutions need and that the theorem allows, over mu.

    >>> len(kdia_assumption2().axes)
    1
    """
    figure, (axes,) = panels(1, "The inexactness gamma that is needed and that is allowed")
    need, allowed = [needed(mu) for mu in STRENGTHS], [constants().allowed(mu) for mu in STRENGTHS]
    axes.plot(STRENGTHS, need, color=ORANGE)
    axes.text(1, 4, "needed by KDIA's local solutions", color=ORANGE)
    axes.plot(STRENGTHS, allowed, color=BLUE)
    axes.text(2.2, 0.035, "allowed by rho > 0", color=BLUE)
    level(axes, 1, "largest gamma in Assumption 2", "right")
    axes.set(xlabel="mu (strength of distillation)", ylabel="gamma")
    logarithmic(axes, "both")
    axes.set_ylim(0.01, 100)
    return figure


@styled
def dafkd_theorem1_f() -> Figure:
    """The scores with the least loss over the formula's: with any generator, and with p in place of its optimum.

    >>> [axes.get_xlabel() for axes in dafkd_theorem1_f().axes]
    ['p_k / (p_k + p_g)', 'p_k / (p_k + p)']
    """
    figure, (left, right) = panels(2, "Discriminators' scores: with the least loss, and by the formula")
    clients = problems(12)
    generators, optima = np.roll(clients, 1, axis=0)[:, 0], best_generator(clients)
    searched = np.array([searched_scores(*pair) for pair in zip(clients, generators, strict=True)])
    left.plot(best_scores(clients, generators[:, None]).ravel(), searched.ravel(), "o", color=BLUE, **DOTS)
    at_optimum = best_scores(clients, optima[:, None]).ravel()
    right.plot(best_scores(clients, clients.mean(1, keepdims=True)).ravel(), at_optimum, "o", color=ORANGE, **DOTS)
    left.set(xlabel="p_k / (p_k + p_g)", ylabel="Score with the least loss", title="Any generator")
    right.set(xlabel="p_k / (p_k + p)", ylabel="Score at the optimum", title="The generator's optimum")
    for axes in (left, right):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=DASHED)
    return figure


@styled
def dafkd_theorem1_pg() -> Figure:
    """The divergence over all generators in the counterexample, and the share of one deviating client's samples.

    >>> len(dafkd_theorem1_pg().axes)
    2
    """
    figure, (left, right) = panels(2, "The best generator is not the mean of the clients")
    shares = np.linspace(0.4, 0.98, 200)
    values = [divergence(EXAMPLE, [share, 1 - share]) for share in shares]
    left.plot(shares, values, color=QUIET)
    points = {
        "p_g = p": (2 / 3, BLUE, (-6, -6), "right"),
        "optimum": (float(best_generator(EXAMPLE)[0]), ORANGE, (0, -6), "left"),
    }
    for name, (share, hue, shift, side) in points.items():
        at = (share, divergence(EXAMPLE, [share, 1 - share]))
        left.plot(*at, "o", color=hue, markersize=5)
        left.annotate(name, at, shift, textcoords="offset points", color=hue, ha=side, va="top")
    left.set(xlabel="Generator's share of the first kind", ylabel="Mean divergence (nats)", ylim=(0.175, 0.26))
    left.set_title("Clients (1, 0), (1, 0), (0, 1)")
    counts = np.arange(2, 21, 2)
    right.plot(counts, 1 / counts, color=BLUE, marker="o", markersize=3)
    right.plot(counts, [best_generator(outlier(int(k)))[1] for k in counts], color=ORANGE, marker="o", markersize=3)
    right.annotate("p_g = p: 1 / K", (12, 1 / 12), (0, 5), textcoords="offset points", color=BLUE)
    right.annotate("optimum", (8, 0.008), (5, 0), textcoords="offset points", color=ORANGE)
    right.set(xlabel="Clients K", title="Share of a kind that one of K clients has")
    right.set_xticks(counts)
    logarithmic(right, "y")
    return figure


@styled
def dafkd_theorem2() -> Figure:
    """The two counterexamples: models that memorise, over samples, and a rare kind, over its share.

    >>> len(dafkd_theorem2().axes)
    2
    """
    figure, (left, right) = panels(2, "Theorem 2: the ensemble's loss and its bound")
    samples = np.unique(np.geomspace(20, 10_000, 60).astype(int))
    left.plot(samples, [memorised_loss(TWO, int(m), KINDS) for m in samples], color=ORANGE)
    left.plot(samples, [bound(0.0, TWO, int(m)) for m in samples], color=INK, linestyle=DASHED)
    left.text(400, 0.52, "loss, at least", color=ORANGE)
    left.text(65, 0.62, "bound")
    left.set(xlabel="Samples of each client", ylabel="Loss", ylim=(0, 1), title="Models that memorise")
    logarithmic(left, "x")
    shares = np.geomspace(1e-4, 0.03, 25)
    found = [rare_kind(float(share)) for share in shares]
    optima = best_generator([clients for clients, _ in found])
    actual = [ensemble(*problem, g) for problem, g in zip(found, optima, strict=True)]
    assumed = [ensemble(*problem, problem[0].mean(0)) for problem in found]
    right.plot(shares, [one.ensemble for one in actual], color=ORANGE)
    right.plot(shares, [one.ensemble for one in assumed], color=BLUE)
    right.plot(shares, [bound(one.best, TEN) for one in actual], color=INK, linestyle=DASHED)
    right.text(1.1e-4, 0.09, "p_g at its optimum", color=ORANGE)
    right.text(0.008, 0.03, "p_g = p", color=BLUE, va="top")
    right.text(0.007, 0.25, "bound", ha="right")
    right.set(xlabel="Share of the rare kind at 9 of 10 clients", ylabel="Loss")
    logarithmic(right, "both")
    right.set_title("Unlimited data")
    return figure


@styled
def dafkd_theorem2_limit() -> Figure:
    """How much of the bound the ensemble's loss takes up in random problems with p_g = p.

    >>> len(dafkd_theorem2_limit().axes)
    1
    """
    figure, (axes,) = panels(1, "Ensemble's loss as a share of the bound (p_g = p)")
    outcomes = [(k, one.ensemble / bound(one.best, k)) for k, one in tried() if one.best > 0]
    clients: Floats = np.array([k for k, _ in outcomes], dtype=np.float64)
    across = clients + np.linspace(-0.3, 0.3, 7)[np.arange(len(clients)) % 7]
    axes.plot(across, [share for _, share in outcomes], "o", color=BLUE, markersize=1.8, alpha=0.5)
    level(axes, 1, "bound", "right")
    axes.set(xlabel="Clients K", ylabel="Loss / bound", ylim=(0, 1.08), xticks=range(2, 11))
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    draw.__name__: draw
    for draw in (
        fedkf_lemma1,
        fedkf_bound,
        kdia_theorem1,
        kdia_theorem1_proof,
        kdia_assumption2,
        dafkd_theorem1_f,
        dafkd_theorem1_pg,
        dafkd_theorem2,
        dafkd_theorem2_limit,
    )
}
