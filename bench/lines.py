"""Lines of Python, SQL and Lua by room, and of the product's heart together: `make lines`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
HEART = ("core", "engine", "store", "work", "client.py")
"""What a plain job passes from enqueue to the ledger."""


def lines(place: Path) -> int:
    files = (
        [place] if place.is_file() else [each for each in place.rglob("*") if each.suffix in (".py", ".sql", ".lua")]
    )
    return sum(len(each.read_text().splitlines()) for each in files)


def main() -> None:
    product = ROOT / "src" / "forebay"
    for place in sorted(product.iterdir()):
        if place.suffix == ".py" or (place.is_dir() and place.name != "__pycache__"):
            print(f"{place.name:16} {lines(place):8,}")
    heart = sum(lines(product / name) for name in HEART if (product / name).exists())
    print(f"{'together':16} {heart:8,}  {' + '.join(HEART)}")
    for name in ("tests", "bench"):
        print(f"{name:16} {lines(ROOT / name):8,}")


if __name__ == "__main__":
    main()
