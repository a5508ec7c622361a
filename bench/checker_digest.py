"""The SHA-256 of the stand-alone checker (tv-check.pyz) that bundles of this checkout carry.

python bench/checker_digest.py [--out FILE]

A release lists it, so that whoever has a bundle only can compare the checker in it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from certificates.canonical import digest
from orchestrator.standalone import standalone


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="also write the checker to this file")
    out = parser.parse_args().out
    if out is not None:
        out.write_bytes(standalone())
    print(f"{digest(standalone())}  tv-check.pyz")


if __name__ == "__main__":
    main()
