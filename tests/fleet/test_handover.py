# SPDX-License-Identifier: Apache-2.0
"""What is handed over is well-formed: shell that parses, requests that the services' published models accept."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess

import pytest

from trnlab.fleet import Question, plan
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.planning.launch_files import write
from trnlab.fleet.search.layout import pinned

KUBERNETES = "1.33"  # a release that EKS runs

SMALL = Model("Small 1.5", 256, ((2, Block(256, Attention(4, 2, 64, 64), Dense(512))),), 128, 512)


@pytest.fixture(scope="module")
def found():
    return plan(Question(SMALL, 1e12, ("trn2.48xlarge",), (2, 2), batch=64, fixed=pinned("tp=2,mb=1,pp=2,vp=1")))


@pytest.fixture(scope="module")
def folder(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("handover")
    assert {file.name for file in write(found, folder)} == {file.name for file in folder.iterdir()}
    return folder


@pytest.mark.parametrize("name", ["launch.sh", "job.sbatch"])
def test_scripts_parse(name, folder):
    shell = shutil.which("bash")
    assert shell is not None
    assert subprocess.run([shell, "-n", folder / name], capture_output=True, text=True).stderr == ""


def test_the_launch_has_the_ranks_of_the_plan_and_explains_each_line(found, folder):
    lines = (folder / "launch.sh").read_text().splitlines()
    per = found.chosen.cluster.ranks // found.chosen.cluster.instances
    assert any(f"--nnodes=2 --nproc_per_node={per}" in line for line in lines)
    exports = [i for i, line in enumerate(lines) if line.startswith("export")]
    assert len(exports) > 12
    assert all(lines[i - 1].startswith("# ") for i in exports)
    assert "export PLAN_TENSOR=2" in lines


def test_the_cluster_job_has_a_pod_for_each_instance(folder):
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((folder / "job.yaml").read_text())
    assert service["metadata"]["name"] == job["metadata"]["name"] == "train-small-1-5"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    asked = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert asked == {"aws.amazon.com/neuron": 16, "vpc.amazonaws.com/efa": 16}


@pytest.mark.parametrize("spoilt", [None, "spec.parallelisms", "spec.template.spec.containers.0.images"])
def test_the_cluster_job_is_valid_kubernetes(spoilt, folder):
    """Against the OpenAPI of Kubernetes, strictly: a field that there is not is an error, as a control shows."""
    yaml, published = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    service, job = yaml.safe_load_all((folder / "job.yaml").read_text())
    if spoilt is None:
        for part in (service, job):
            published.validate(part, KUBERNETES, strict=True)
        return
    *path, last = spoilt.split(".")
    at = job
    for name in path:
        at = at[int(name) if name.isdigit() else name]
    at[last] = 2
    with pytest.raises(published.ValidationError):
        published.validate(job, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("service", "operation", "name"),
    [("sagemaker", "CreateTrainingJob", "sagemaker.json"), ("budgets", "CreateBudget", "budget.json")],
)
def test_requests_are_those_of_the_published_models(service, operation, name, folder):
    """Names, types and least lengths; also that the instance type is one of the service's."""
    pytest.importorskip("botocore")
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    shape = get_session().get_service_model(service).operation_model(operation).input_shape
    request = json.loads((folder / name).read_text())
    assert ParamValidator().validate(request, shape).generate_report() == ""
    if service == "sagemaker":
        kinds = shape.members["ResourceConfig"].members["InstanceType"].enum
        assert request["ResourceConfig"]["InstanceType"] in kinds


HOSTILE = "x\ntouch ran #'\"`touch ran`$(touch ran)\r\x1b[2J\u2028&;|é"


def test_no_name_is_more_than_a_name(found, tmp_path):
    """A model's folder may be called anything: no shell acts on it, and no service refuses it."""
    model = dataclasses.replace(found.question.model, name=HOSTILE)
    hostile = dataclasses.replace(found, question=dataclasses.replace(found.question, model=model))
    write(hostile, tmp_path)
    kinds = {line.split()[0] for line in (tmp_path / "launch.sh").read_text().split("\n") if line}
    assert kinds <= {
        "#!/bin/bash",
        "#",
        "set",
        "HEAD=${HEAD:?address",
        "NODE=${NODE:?number",
        "export",
        "exec",
        '--master_addr="$HEAD"',
    }
    stub = tmp_path / "bin"
    stub.mkdir()
    (stub / "torchrun").write_text("#!/bin/sh\nexit 0\n")
    (stub / "torchrun").chmod(0o755)
    shell = shutil.which("bash")
    told = {"PATH": f"{stub}:/usr/bin:/bin", "HEAD": "here", "NODE": "0"}
    subprocess.run([shell, "launch.sh"], cwd=tmp_path, env=told, check=True)
    assert not (tmp_path / "ran").exists()
    yaml = pytest.importorskip("yaml")
    service, _ = yaml.safe_load_all((tmp_path / "job.yaml").read_text())
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", service["metadata"]["name"])
