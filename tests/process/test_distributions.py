"""Two distributions: the wheel of the product holds no line of the proof, and the product works without it."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points, metadata, requires
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.process.release import ReleaseError, build, check_metadata, try_wheel

ROOT = Path(__file__).parents[2]
PROOF = ("bench", "chaos", "conformance", "evidence", "lab", "power-cuts", "sim")
DEPENDENCIES = ("cronsim", "google_crc32c", "msgspec", "tzdata")


BESIDE = {
    "": set(),
    "django": {"asgiref", "django", "django-stubs-ext", "django-tasks", "sqlparse", "typing-extensions"},
    "postgres": {"psycopg", "psycopg-binary", "typing-extensions"},
    "redis": {"hiredis", "redis"},
    "blobs": {"fsspec"},
    "jwt": {"cffi", "cryptography", "pycparser", "pyjwt", "typing-extensions"},
    "vault": {"cffi", "cryptography", "pycparser", "typing-extensions"},
    "server": {
        *("annotated-doc", "annotated-types", "anyio", "click", "fastapi", "h11", "httptools", "idna", "jinja2"),
        *("markupsafe", "opentelemetry-api", "prometheus-client", "pydantic", "pydantic-core", "starlette"),
        *("typing-extensions", "typing-inspection", "uvicorn", "uvloop"),
    },
    "tracing": {"opentelemetry-api", "typing-extensions"},
}
"""All that an extra may bring along on any Python. Python 3.12 and newer need fewer."""


def wheel(project: Path, target: Path) -> ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=120)
    return ZipFile(next(target.glob("*.whl")))


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product's wheel, unpacked, beside what it depends on and nothing else."""
    folder = tmp_path_factory.mktemp("product")
    with wheel(ROOT, tmp_path_factory.mktemp("wheel")) as packed:
        packed.extractall(folder)
    for name in DEPENDENCIES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin)
        package = package.parent if package.stem == "__init__" else package
        (folder / package.name).symlink_to(package)
    return folder


def run(product: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`forebay` with the unpacked wheel alone on the path: -S leaves out every installed package."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(product), "COLUMNS": "100"}
    command = [sys.executable, "-S", "-m", "forebay", *words]
    return subprocess.run(
        command, cwd=product, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_wheel_of_the_product_holds_no_line_of_the_proof(product: Path) -> None:
    files = [path for path in product.rglob("*") if path.is_file() and not path.is_symlink()]
    tops = {path.relative_to(product).parts[0] for path in files} - set(DEPENDENCIES)
    assert {top.partition("-")[0] for top in tops} == {"forebay"}
    moved = {path.name for path in (ROOT / "proof" / "src" / "forebay_proof").iterdir() if path.is_dir()} - {"cli"}
    assert not [name for name in moved for room in ("", "testing") if (product / "forebay" / room / name).exists()]
    sources = [path for path in (product / "forebay").rglob("*") if path.suffix in (".py", ".sql", ".lua", ".html")]
    assert len(sources) > 100
    assert not [
        path
        for path in sources
        if "import forebay_proof" in path.read_text() or "from forebay_proof" in path.read_text()
    ]


def test_the_wheel_of_the_product_holds_what_deploys_it(product: Path) -> None:
    files = [path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    assert {Path("prometheus/alerts.yml"), Path("grafana/forebay.json"), Path("Containerfile")} <= set(files)
    for path in files:
        assert (product / "forebay" / "deploy" / path).read_bytes() == (ROOT / "deploy" / path).read_bytes()


def test_what_the_image_copies_builds_the_whole_wheel(product: Path, tmp_path: Path) -> None:
    """The build stage of the Containerfile, without pip's dependencies."""
    recipe = (ROOT / "deploy" / "Containerfile").read_text()
    build_stage = recipe.partition("\nRUN /venv/bin/pip install")[0]
    context = tmp_path / "context"
    context.mkdir()
    for *sources, target in (line.split()[1:] for line in build_stage.splitlines() if line.startswith("COPY ")):
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, context / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, context / target)
    with wheel(context, tmp_path / "wheel") as packed:
        copied = {name for name in packed.namelist() if name.startswith("forebay/")}
    whole = product / "forebay"
    assert copied == {str(path.relative_to(product)) for path in whole.rglob("*") if path.is_file()}


def test_the_wheel_of_the_proof_holds_its_plans_and_nothing_of_the_product(tmp_path: Path) -> None:
    with wheel(ROOT / "proof", tmp_path) as packed:
        names = packed.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"forebay_proof"}
    assert {"forebay_proof/lab/plans/f01.toml", "forebay_proof/py.typed"} <= set(names)


@pytest.mark.parametrize("extra", BESIDE)
def test_an_extra_stays_small(extra: str) -> None:
    found: set[str] = set()
    left = [Requirement(f"forebay[{extra}]")]
    while left:
        wanted = left.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found and name != "forebay":
            continue
        found.add(name)
        for text in requires(name) or ():
            each = Requirement(text)
            if each.marker is None or any(each.marker.evaluate({"extra": chosen}) for chosen in wanted.extras or {""}):
                left.append(each)
    assert found >= {"forebay", *(name.replace("_", "-") for name in DEPENDENCIES)}
    assert found - {"forebay", *(name.replace("_", "-") for name in DEPENDENCIES)} <= BESIDE[extra]


def test_the_server_starts_without_jwt_and_names_the_extra_that_has_it(tmp_path: Path) -> None:
    without = "sys.modules.update(jwt=None, cryptography=None)"
    serve = "main(['serve', '--store', 'memory://', '--port', '0', '--jwt', 'rules.json'])"
    command = [sys.executable, "-c", f"import sys; {without}; from forebay.cli import main; sys.exit({serve})"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == "forebay: --jwt: jwt is not installed; pip install 'forebay[jwt]'\n"
    assert done.returncode == 2


@pytest.mark.parametrize("command", PROOF)
def test_without_the_proof_its_commands_name_its_package(product: Path, command: str) -> None:
    answer = run(product, command, "--help")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == (
        f"forebay: `{command}` is in the package forebay-proof, which is not installed; pip install forebay-proof\n"
    )


def test_without_the_proof_the_product_works(product: Path) -> None:
    assert run(product, "enqueue", "email", "{}").returncode == 0
    assert "email" in run(product, "ls").stdout
    listed = run(product, "--help")
    assert listed.returncode == 0
    assert not [name for name in PROOF if f"\n    {name} " in listed.stdout]


def test_an_unknown_command_is_still_unknown(product: Path) -> None:
    answer = run(product, "nonsense")
    assert answer.returncode == 2
    assert answer.stderr == "forebay: 'nonsense' is not a command; see forebay --help\n"


def test_the_proof_adds_its_commands_by_entry_point() -> None:
    (found,) = [point for point in entry_points(group="forebay.commands") if point.name == "proof"]
    assert sorted(command.name for command in found.load()) == sorted(PROOF)


def test_both_have_one_version() -> None:
    version = metadata("forebay")["version"]
    assert metadata("forebay-proof")["version"] == version
    assert f"forebay=={version}" in (metadata("forebay-proof").get_all("Requires-Dist") or [])


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


def test_a_release_is_built_and_checked(released: list[Path]) -> None:
    assert check_metadata(released, "## [Unreleased]\n") == metadata("forebay")["version"]
    with pytest.raises(ReleaseError, match="no section"):
        check_metadata(released, "## [0.0.1]\n")
    with pytest.raises(ReleaseError, match="expected wheels of"):
        check_metadata(released[:1], "## [Unreleased]\n")


@pytest.mark.parametrize(
    ("readme", "error"),
    [
        ("", "has no readme"),
        ("# Forebay\n[Compare](docs/compare.md)", "docs/compare.md"),
        ('# Forebay\n<img alt="x" src="docs/img/x.png">', "docs/img/x.png"),
    ],
)
def test_a_readme_that_a_package_index_cannot_show_is_refused(
    readme: str, error: str, released: list[Path], tmp_path: Path
) -> None:
    changed = tmp_path / released[0].name
    with ZipFile(released[0]) as packed, ZipFile(changed, "w") as copy:
        for name in packed.namelist():
            text = packed.read(name)
            copy.writestr(name, text.partition(b"\n\n")[0] + f"\n\n{readme}".encode() if "METADATA" in name else text)
    with pytest.raises(ReleaseError, match=error):
        check_metadata([changed, released[1]], "## [Unreleased]\n")


@pytest.mark.nightly
def test_the_wheel_installs_into_a_clean_environment_and_runs_the_readme(released: list[Path]) -> None:
    (product,) = [each for each in released if each.name.startswith("forebay-")]
    assert try_wheel(sys.executable, product).startswith("Python 3.")
