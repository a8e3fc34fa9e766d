"""Formatting of numbers and names for the terminal, files and HTML pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

MISSING = "\N{EN DASH}"  # shown in a cell when nothing was measured
TIMES = "\N{MULTIPLICATION SIGN}"
LONGEST_NAME = 100  # characters of a client's name


def number(value: float | None, decimals: int = 2) -> str:
    """Format a number with a fixed number of decimals; a missing number is a dash.

    >>> number(84.068), number(None), number(float("nan"))
    ('84.07', '–', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    # Adding zero turns -0.0 into 0.0, so that a tiny negative value is not shown as "-0.00".
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def plus_minus(mean: float | None, std: float | None = None, decimals: int = 2) -> str:
    """Format a mean with its standard deviation over seeds; a single seed has no deviation.

    >>> plus_minus(84.068, 0.123), plus_minus(84.068), plus_minus(None, 0.1)
    ('84.07 ± 0.12', '84.07', '–')
    """
    text = number(mean, decimals)
    if text == MISSING or std is None or not math.isfinite(std):
        return text
    return f"{text} ± {number(std, decimals)}"


def human_bytes(count: float | None) -> str:
    """Format a size in bytes with three significant digits, in steps of 1000.

    >>> human_bytes(0), human_bytes(999), human_bytes(1234), human_bytes(56_700_000), human_bytes(2.5e9)
    ('0 B', '999 B', '1.23 kB', '56.7 MB', '2.50 GB')
    >>> human_bytes(999_999)
    '1.00 MB'
    """
    if count is None or not math.isfinite(count):
        return MISSING
    if count < 999.5:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        for decimals, limit in ((2, 9.995), (1, 99.95), (0, 999.5)):
            if count < limit:
                return f"{count:.{decimals}f} {unit}"
    return f"{count:.0f} TB"


def human_seconds(seconds: float | None) -> str:
    """Format a duration in a readable unit.

    >>> human_seconds(3.21), human_seconds(75), human_seconds(7500), human_seconds(None)
    ('3.2 s', '1.2 min', '2.1 h', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3597 else f"{seconds / 3600:.1f} h"


def view_name(view: str) -> str:
    """Format the name of a view as in the papers: ACA and OCA in capitals, the rest unchanged.

    >>> view_name("oca"), view_name("student")
    ('OCA', 'student')
    """
    return view.upper() if view in ("aca", "oca") else shortened(view, 60)


def series_names(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Name each (label, view); a method with a single, obvious view is named by its label alone.

    >>> list(series_names([("FedAvg", "aca"), ("FedAvg", "oca"), ("Local", "personal")]).values())
    ['FedAvg (ACA)', 'FedAvg (OCA)', 'Local']
    """
    pairs = list(dict.fromkeys(pairs))
    views = Counter(label for label, _ in pairs)
    plain = {(label, view) for label, view in pairs if views[label] == 1 and view in ("personal", "global")}
    return {pair: pair[0] if pair in plain else f"{pair[0]} ({view_name(pair[1])})" for pair in pairs}


def printable(text: str) -> str:
    r"""Replace control and direction characters in text from a file, so that it is safe to print.

    >>> printable("a\x1b[2J\nb")
    'a [2J b'
    """
    return "".join(letter if letter.isprintable() else " " for letter in text)


def shortened(name: str, most: int = 32) -> str:
    """Shorten a name to one line of at most this many characters, by cutting out the middle.

    >>> shortened("FedAvg"), shortened("a label that somebody wrote at length", 20)
    ('FedAvg', 'a label that…length')
    """
    name = " ".join(printable(name).split())
    head = most * 3 // 5
    return name if len(name) <= most else f"{name[:head].rstrip()}…{name[head + 1 - most :].lstrip()}"


def all_shortened(names: Iterable[str]) -> dict[str, str]:
    """Shorten each name, but keep different names different.

    >>> names = [f"FedAvg, training.lr = {lr}, training.batch = 32" for lr in (0.1, 0.01)]
    >>> list(all_shortened(names).values())
    ['FedAvg, training.lr = 0.1,…aining.batch = 32', 'FedAvg, training.lr = 0.01…aining.batch = 32']
    """
    names = list(dict.fromkeys(names))
    most, longest = 32, max(map(len, names), default=0)
    while most < longest and len({shortened(name, most) for name in names}) < len(names):
        most += 4
    return {name: shortened(name, most) for name in names}


def listed(words: Sequence[str]) -> str:
    """Join words as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def client_label(names: Sequence[str], client: int) -> str:
    """A client as sentences speak of it: by its name, or else by its number.

    >>> client_label(["North clinic", "Lakeside"], 1), client_label([], 1)
    ('Lakeside', 'client 1')
    """
    return names[client] if 0 <= client < len(names) else f"client {client}"


def client_labels(names: Sequence[str], clients: Iterable[int]) -> str:
    """Several clients in a sentence, by their names or by their numbers.

    >>> client_labels(["North clinic", "Lakeside"], [0, 1]), client_labels([], [0, 2]), client_labels([], [2])
    ('North clinic and Lakeside', 'clients 0 and 2', 'client 2')
    """
    ids = list(clients)
    if names:
        return listed([client_label(names, k) for k in ids])
    return f"client{'' if len(ids) == 1 else 's'} {listed([str(k) for k in ids])}"


def client_ticks(names: Sequence[str], clients: Iterable[int], most: int = 18) -> list[str]:
    """Each client as a narrow table or picture shows it: its name, shortened, or else its number.

    >>> client_ticks(["North clinic", "The clinic by the long lake"], [0, 1], 16), client_ticks([], [0, 1])
    (['North clinic', 'The clini…g lake'], ['0', '1'])
    """
    return [shortened(names[k], most) if k < len(names) else str(k) for k in clients]


def name_fault(names: Sequence[str]) -> str | None:
    """What is wrong with these clients' names, if anything: they are text of the user, and must tell clients apart.

    >>> name_fault(["North", "South"]), name_fault(["North", "North"])
    (None, "two clients have the name 'North'")
    """
    for name in names:
        if not name.strip() or name != name.strip():
            return f"the name {name[:LONGEST_NAME]!r} is empty, or begins or ends with a space"
        if len(name) > LONGEST_NAME:
            return f"the name {shortened(name)!r} has {len(name)} characters, but {LONGEST_NAME} are the most"
        if not name.isprintable():
            return f"the name {shortened(name)!r} has control characters"
    twice = [name for name, count in Counter(names).items() if count > 1]
    return f"two clients have the name {twice[0]!r}" if twice else None
