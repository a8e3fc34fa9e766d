"""The Flower engine: the same methods, their messages carried by Flower's Grid to its ClientApps.

`codec` converts trees to Flower's records, `memory` stores a client's memory in files, `client` is the code that runs
at a client, `carrier` is the server's side with `roster` (who is connected) and `claims` (checks of what a client says
about itself), `simulation` runs both on one machine or a Ray cluster. Only this package and `deploy` import flwr.
"""

from __future__ import annotations

import os

from fedalloy.errors import UsageError

# Flower and Ray read these on import; otherwise they would report each run to their makers, look for updates, and
# advertise future versions in the user's terminal.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise UsageError(
        'engine = "flower" needs Flower; install it with `pip install ".[flower]"` in a clone of the repository'
    ) from error
