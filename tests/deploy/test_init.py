"""A deployment's folder: what is in it, who may read it, and whether its certificates and scripts hold."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedalloy.cli.deploy import init_command
from fedalloy.deploy.folder import Deployment, read_deployment
from fedalloy.deploy.init import init, with_cap
from fedalloy.errors import FedalloyError, UsageError

pytest.importorskip("flwr")

TINY = {"rounds": 2, "data": {"name": "tiny"}, "model": {"name": "mlp"}, "partition": {"clients": 3}}
AT_SITES = {"rounds": 2, "model": {"name": "mlp"}}
SECRET = {"ca.key", "server.key", "superexec.secret", "node.key"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("deploy")
    plugin = folder / "mine.py"
    plugin.write_text("")
    return init(TINY, folder / "lab", 3, "fl.example.org:8443", [plugin])


def test_it_is_read_back(made: Deployment) -> None:
    assert read_deployment(made.folder) == made


def test_one_site_s_weight_is_capped_unless_the_experiment_says_otherwise(made: Deployment, tmp_path: Path) -> None:
    for folder in (made.app, *(made.site(k) for k in range(3))):
        assert tomllib.loads((folder / "experiment.toml").read_text())["aggregation"] == {"cap": 0.5}
    other = init({**TINY, "aggregation": {"cap": 0.9, "max_distance": 7.0}}, tmp_path / "lab", 3)
    assert tomllib.loads(other.experiment.read_text())["aggregation"] == {"cap": 0.9, "max_distance": 7.0}


def test_only_the_owner_reads_secrets(made: Deployment) -> None:
    files = [file for file in made.folder.rglob("*") if file.is_file()]
    secret = [file for file in files if file.name in SECRET]
    assert len(secret) == 3 + 2 * 3
    assert {file.stat().st_mode & 0o777 for file in secret} == {0o600}
    for file in files:
        if b"PRIVATE KEY" in file.read_bytes():
            assert file in secret
    for folder in (made.folder, made.server, made.state, made.site(0)):
        assert folder.stat().st_mode & 0o077 == 0


def test_a_site_is_handed_nothing_secret_of_others(made: Deployment) -> None:
    own = {k: {file.read_bytes() for file in made.site(k).rglob("*") if file.name in SECRET} for k in range(3)}
    server = {file.read_bytes() for file in made.server.iterdir() if file.name in SECRET}
    for k in range(3):
        everything = b"\n".join(file.read_bytes() for file in made.site(k).rglob("*") if file.is_file())
        for other in [server, *(own[j] for j in range(3) if j != k)]:
            assert all(secret not in everything for secret in other)
        assert sorted(file.name for file in made.site(k).iterdir()) == [
            "ca.crt",
            "experiment.toml",
            f"fedalloy-site-{k}.service",
            "node.key",
            "node.pub",
            "plugins",
            "site.toml",
            "start.sh",
            "superexec.secret",
        ]


def test_the_server_certificate_holds_for_its_names_and_no_other_authority(made: Deployment, tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    load = x509.load_pem_x509_certificate
    server = load((made.server / "server.crt").read_bytes())
    authority = load((made.site(1) / "ca.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    subject = x509.DNSName("fl.example.org")
    PolicyBuilder().store(Store([authority])).build_server_verifier(subject).verify(server, [])
    other = init(TINY, tmp_path / "other", 3)
    stranger = load((other.server / "ca.crt").read_bytes())
    with pytest.raises(VerificationError):
        PolicyBuilder().store(Store([stranger])).build_server_verifier(subject).verify(server, [])
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server / "server.crt", made.server / "server.key")


def test_node_keys_are_openssh_p384_and_fit_what_the_server_registers(made: Deployment) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    for k in range(3):
        private = (made.site(k) / "node.key").read_bytes()
        assert private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        key = serialization.load_ssh_private_key(private, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        registered = serialization.load_ssh_public_key((made.server / "sites" / f"site-{k}.pub").read_bytes())
        assert isinstance(registered, ec.EllipticCurvePublicKey)
        assert registered.public_numbers() == key.public_key().public_numbers()


def _options(script: Path) -> set[str]:
    text = re.sub(r"\\\n", " ", script.read_text())
    (line,) = [line for line in text.split("\n") if line.startswith("exec ")]
    return set(re.findall(r"--[a-z-]+", line))


def test_scripts_ask_for_everything_that_protects(made: Deployment) -> None:
    link, executor, site = made.server / "superlink.sh", made.server / "superexec.sh", made.site(2) / "start.sh"
    assert _options(link) >= {"--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--enable-supernode-auth"}
    assert _options(link) >= {"--database", "--isolation", "--superexec-auth-secret-file"}
    assert _options(executor) >= {"--root-certificates", "--superexec-auth-secret-file"}
    assert _options(site) >= {"--root-certificates", "--auth-supernode-private-key", "--superexec-auth-secret-file"}
    assert "--insecure" not in _options(link) | _options(executor) | _options(site)
    assert "partition-id=2 num-partitions=3" in site.read_text()
    assert "--superlink fl.example.org:8443" in site.read_text()
    for script in (link, executor, site):
        subprocess.run(["/bin/sh", "-n", str(script)], check=True)
        assert script.stat().st_mode & 0o100
        for switch in ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "FLWR_HOME="):
            assert f"export {switch}" in script.read_text()
        assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in script.read_text()


def test_flower_knows_every_option_of_the_scripts(made: Deployment) -> None:
    from flwr.supercore.cli.flower_superexec import _parse_args as superexec
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode

    for script, parser in (
        (made.server / "superlink.sh", superlink()),
        (made.server / "superexec.sh", superexec()),
        (made.site(0) / "start.sh", supernode()),
    ):
        known = {option for action in parser._actions for option in action.option_strings}
        assert _options(script) <= known


def test_nothing_in_it_names_the_folder_it_was_made_in(made: Deployment) -> None:
    place = str(made.folder).encode()
    assert not [file for file in made.folder.rglob("*") if file.is_file() and place in file.read_bytes()]


def test_flower_accepts_the_app(made: Deployment) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import get_fab_config

    content = build_fab_from_disk(made.app)
    app = get_fab_config(content)["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "fedalloy.deploy.app:server", "clientapp": "fedalloy.deploy.app:client"}
    assert tomllib.loads(made.experiment.read_text()) == with_cap(TINY)


def test_plugins_are_handed_over_and_not_shipped(made: Deployment) -> None:
    assert [file.name for file in made.plugins] == ["mine.py"]
    assert (made.site(0) / "plugins" / "mine.py").is_file()
    assert not list(made.app.rglob("*.py"))


@pytest.mark.parametrize(
    ("change", "sites", "sentence"),
    [
        ({"method": "centralised"}, 3, "centralised.*choose another method"),
        ({}, 4, r"\b3 clients.*--sites is 4.*write partition\.clients = 4"),
        ({}, 1, "--sites 1.*at least 2"),
        ({"start": "model.safetensors"}, 3, "^start .*file"),
        ({"public": {"data": "own.npz", "samples": 20}}, 3, r"public\.data = 'own\.npz'"),
        ({"data": {"name": "sites"}}, 3, r"partition\.clients = 3.*--sites"),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_anything_is_written(
    change: dict[str, object], sites: int, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        init({**TINY, **change}, tmp_path / "lab", sites)
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"public": {"data": "own"}}, r"public\.data = 'own'"),
        ({"public": {"data": "mnist", "task_samples": 9}}, r"public\.task_samples = 9"),
        ({"partition": {"test": "global"}}, r"partition\.test = 'global'.*write 'local'"),
    ],
)
def test_what_takes_rows_of_the_sites_is_refused(change: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        init({**AT_SITES, "data": {"name": "sites"}, **change}, tmp_path / "lab", 3)
    assert not (tmp_path / "lab").exists()


COLUMNS = {
    "name": "sites",
    "classes": 2,
    "columns": ["age", "dose", "weight"],
    "mean": [1.0, 2.0, 3.0],
    "std": [1.0, 1.0, 2.0],
}
PICTURES = {"name": "sites", "classes": 10, "channels": 1, "size": 8}


@pytest.mark.parametrize(
    "change",
    [
        {"mean": None},
        {"std": None},
        {"mean": [0.5]},
        {"std": [1.0]},
        {"mean": [0.5] * 4},
        {"std": [1.0, 0.0, 1.0]},
        {"std": [1.0, -1.0, 1.0]},
        {"std": [1.0, 1e-300, 1.0]},
    ],
)
def test_constants_that_do_not_fit_the_columns_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    data = {key: value for key, value in {**COLUMNS, **change}.items() if value is not None}
    with pytest.raises(FedalloyError, match=r"data\.(mean|std)"):
        init({**AT_SITES, "data": data}, tmp_path / "lab", 3)
    assert not (tmp_path / "lab").exists()


def test_as_many_names_as_classes_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.names.*\b3\b.*data\.classes = 2"):
        init({**AT_SITES, "data": {**COLUMNS, "names": ["a", "b", "c"]}}, tmp_path / "lab", 3)
    assert not (tmp_path / "lab").exists()


def test_an_override_is_no_experiment_file(tmp_path: Path) -> None:
    words = ["data=tiny", "model=mlp", "--out", str(tmp_path / "lab"), "--sites", "3"]
    refused = CliRunner().invoke(init_command, words)
    assert isinstance(refused.exception, UsageError)
    assert "'data=tiny'" in str(refused.exception)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"columns": []}, r"data\.columns"),
        ({"channels": 1, "size": 8}, r"data\.columns"),
        ({"columns": None, "channels": 3}, r"data\.size"),
        ({"columns": None, "channels": 1, "size": 8, "impute": "mean"}, r"data\.impute"),
        ({"categorical": ["sex"]}, "'sex'"),
        ({"classes": None}, r"data\.names"),
        ({"classes": 1}, r"data\.names"),
        ({"columns": ["age", "age", "dose"]}, "'age'"),
    ],
)
def test_a_format_that_no_file_can_have_is_refused(change: dict[str, object], key: str, tmp_path: Path) -> None:
    whole = {**COLUMNS, **change}
    if "channels" in change:
        whole |= {"mean": None, "std": None}
    data = {name: value for name, value in whole.items() if value is not None}
    with pytest.raises(UsageError, match=key):
        init({**AT_SITES, "data": data}, tmp_path / "lab", 3)
    assert not (tmp_path / "lab").exists()


ASKED = {key: value for key, value in COLUMNS.items() if key not in ("mean", "std")}


@pytest.mark.parametrize("data", [COLUMNS, ASKED, PICTURES, {**PICTURES, "mean": [0.5], "std": [0.25]}])
def test_columns_and_images_are_accepted_with_constants_and_without(data: dict[str, object], tmp_path: Path) -> None:
    assert init({**AT_SITES, "data": data}, tmp_path / "lab", 3).sites == 3


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"method": {"name": "knfu", "ce_on": "public"}, "public": {"data": "tiny", "samples": 20}}, "public.labelled"),
        ({"method": "knfu"}, r"\[public\]"),
        ({"method": "knfu", "public": {"data": "tiny", "samples": 9999}}, "public.samples"),
        ({"method": "knfu", "public": {"data": "tiny", "samples": 20, "holder": "server"}}, "public.holder"),
        ({"model": "no-such-network"}, "no-such-network"),
    ],
)
def test_what_a_simulation_refuses_is_refused_before_anything_is_written(
    change: dict[str, object], key: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=key):
        init({**AT_SITES, "data": PICTURES, **change}, tmp_path / "lab", 3)
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    "address", ["example.org", "example.org:", ":8443", "a b:8443", "x:99999", "x:80", "$(id):8443"]
)
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="host:port"):
        init(TINY, tmp_path / "lab", 3, address)


def test_keys_are_never_written_over(made: Deployment) -> None:
    with pytest.raises(UsageError, match="is not empty"):
        init(TINY, made.folder, 3)


def test_another_folder_is_no_deployment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a deployment.*`fedalloy deploy init"):
        read_deployment(tmp_path)
    (tmp_path / "deployment.toml").write_text("host = 3")
    with pytest.raises(UsageError, match="cannot be read"):
        read_deployment(tmp_path)


def test_a_handed_over_site_may_be_moved(made: Deployment, tmp_path: Path) -> None:
    moved = shutil.copytree(made.site(0), tmp_path / "elsewhere")
    shown = subprocess.run(
        ["/bin/sh", "-c", f'set -- ; PATH=/nowhere:/usr/bin:/bin . "{moved}/start.sh"'],
        cwd=moved,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 2
    assert "flower-supernode is not on PATH" in shown.stderr
