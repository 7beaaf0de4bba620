"""The edges of a site are the benchmarks' processes; `benchmarks/` is no part of the wheel: it is beside `tests/`."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)
