"""Lines of Python, SQL and Lua by room, and the files that a plain job passes: `make lines`."""

from pathlib import Path

from forebay_proof.bench import plain_job

ROOT = Path(__file__).parents[4]
PRODUCT, PROOF = ROOT / "src" / "forebay", ROOT / "proof" / "src" / "forebay_proof"
HEART = ("core", "engine", "store", "work", "client.py")
"""What a plain job passes from enqueue to the ledger."""


def lines(place: Path) -> int:
    files = (
        [place] if place.is_file() else [each for each in place.rglob("*") if each.suffix in (".py", ".sql", ".lua")]
    )
    return sum(len(each.read_text().splitlines()) for each in files)


def main() -> None:
    for package in PRODUCT, PROOF:
        print(f"{package.name:16} {lines(package):8,}")
        for place in sorted(package.iterdir()):
            if place.suffix == ".py" or (place.is_dir() and place.name != "__pycache__"):
                print(f"  {place.name:16} {lines(place):8,}")
    heart = sum(lines(PRODUCT / name) for name in HEART)
    print(f"{'together':16} {heart:8,}  {' + '.join(HEART)}")
    print(f"{'tests':16} {lines(ROOT / 'tests'):8,}")
    plain_job.main()


if __name__ == "__main__":
    main()
