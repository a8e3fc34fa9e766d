"""What a site reaches without the federation: a model that it trains on its own rows, on its own machine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedalloy.deploy.site import kept_preparation, site_setting
from fedalloy.engine.flower.audited import scores
from fedalloy.federation.core import Message, act
from fedalloy.federation.evaluation import PERSONAL, at_client
from fedalloy.methods.local_converged import LocalConverged
from fedalloy.train.fit import one_thread


def trained_alone(folder: Path, client: int) -> dict[str, Any]:
    """Train the site's network on its own training rows as `local-converged` does; return its scores on its test rows.

    Nothing is sent or stored. Noise is not needed, because the model stays here. If all clients take equally many
    steps, which only the server can compute, the site takes its own epochs instead.
    """
    _, setting = site_setting(folder, _sites(folder, client), kept_preparation(folder, client))
    work = replace(setting.work, work="epochs") if setting.work.work == "equal_steps" else setting.work
    setting, method = replace(setting, privacy=None, work=work), LocalConverged()
    with one_thread():  # as in the site's answers
        answer = act(method, setting.client(client, 1, {}), Message("train", client, {}))
        counted = at_client(setting, method, client, 1, answer.keep or {}, {})
    found: dict[str, Any] = scores(setting, client, counted)[PERSONAL]
    return found


def _sites(folder: Path, client: int) -> int:
    """Return how many sites there are, as the start script says."""
    script = folder / "start.sh"
    found = re.search(r"num-partitions=(\d{1,9})", script.read_text(encoding="utf-8")) if script.is_file() else None
    return int(found[1]) if found else client + 1
