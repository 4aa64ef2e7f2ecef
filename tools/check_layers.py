"""Checks that every #include between rooms goes upwards in the table of docs/design.md.

The table is read, not repeated here: each row `| `room` | … | may use |` under the heading "The rooms". A room may include itself, the rooms that its
last column names, and whatever those may include. Prints one line a fault; exit status 1 if there is any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_table(design: str) -> dict[str, set[str]]:
    """The rooms of the table in its order, each with all rooms it may include (closed under "may use")."""
    section = design.split("## The rooms", 1)[1].split("\n## ", 1)[0]
    allowed: dict[str, set[str]] = {}
    for room, uses in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", section, re.MULTILINE):
        direct = set(re.findall(r"\w+", uses)) if uses.strip() not in ("–", "-") else set()
        if "rooms" in direct:  # "the torch-free rooms": all that stand above
            direct = set(allowed)
        unknown = direct - set(allowed)
        if unknown:
            raise SystemExit(f"docs/design.md: room {room} uses {unknown}, not above it")
        allowed[room] = set().union({room}, direct, *(allowed[use] for use in direct))
    return allowed


def faults(source: Path, allowed: dict[str, set[str]]) -> list[str]:
    found = []
    for file in sorted(source.rglob("*")):
        if file.suffix not in (".h", ".cc"):
            continue
        room = file.relative_to(source).parts[0]
        if room not in allowed:
            found.append(f"{file}: folder {room} is not a room of docs/design.md")
            continue
        for line, text in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'#include "(\w+)/', text)
            if match and match[1] not in allowed[room]:
                found.append(f"{file}:{line}: {room} must not include {match[1]}")
    return found


def main() -> int:
    allowed = read_table((ROOT / "docs/design.md").read_text())
    found = faults(ROOT / "src", allowed)
    print("\n".join(found) if found else f"layers hold: {len(allowed)} rooms")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
