"""`python benchmarks/run.py`: works from any folder and leaves an installed Headwater in front of the tree's own."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: an installed wheel is what is measured
    from benchmarks.__main__ import main

    sys.exit(main())
