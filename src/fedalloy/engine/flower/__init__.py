"""The Flower engine: the same methods, their messages carried by Flower's Grid to its ClientApps.

`codec` turns trees into Flower's records, `memory` keeps what a client remembers in files of its own, `client` is what
runs at a client, `carrier` the server's side with `roster` (who is there) and `claims` (what a client says of itself,
checked), `simulation` both on one machine or a Ray cluster. Nothing else in the library imports flwr.
"""

from __future__ import annotations

import os

from fedalloy.errors import UsageError

# Flower and Ray read these when they are imported; they would otherwise report each run to their makers, look for
# updates, and advertise future versions in the user's terminal.
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
    raise UsageError('engine = "flower" needs Flower; pip install "fedalloy[flower]"') from error
