# SPDX-License-Identifier: Apache-2.0
"""What one needs to start a plan on AWS: files that say line by line what they set. None is sent anywhere.

launch.sh       one instance's ranks by torchrun, with the environment of the Neuron runtime and of EFA
job.sbatch      Slurm (ParallelCluster): launch.sh on every instance
job.yaml        Kubernetes (EKS): an indexed Job with a pod for each instance, and the service that they meet at
sagemaker.json  the request of CreateTrainingJob
budget.json     the request of CreateBudget: alarms at 50, 80 and 100 % of the plan's cost
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trnlab.chips.prices import latest
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.files import write_atomic
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.search.layout import SHORT
from trnlab.quoting import shell_comment, shell_value
from trnlab.units import SECONDS_PER_DAY

PORT = 44000  # reserved for collectives by the vendor's guides
SPARE = 1.25  # of the planned time, after which a job is ended
_CACHE, _HEAD = "${CACHE:-/var/tmp/neuron-compile-cache}", f"$HEAD:{PORT}"  # that the shell fills in
ROLE = "arn:aws:iam::000000000000:role/REPLACE-ME"
IMAGE = "000000000000.dkr.ecr.us-east-1.amazonaws.com/replace-me:latest"
ALARMS = (50.0, 80.0, 100.0)


def write(plan: Plan, folder: Path) -> list[Path]:
    """Write all files; returns them. Raises UsageError as `Plan.chosen`, OSError."""
    c = plan.chosen
    contents = {
        "launch.sh": launch(plan, c),
        "job.sbatch": slurm(plan, c),
        "job.yaml": kubernetes(plan, c),
        "sagemaker.json": json.dumps(sagemaker(plan, c), indent=2) + "\n",
        "budget.json": json.dumps(budget(plan, c), indent=2) + "\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        write_atomic(folder / name, text.encode())
    (folder / "launch.sh").chmod(0o755)
    return [folder / name for name in contents]


def name_of(plan: Plan) -> str:
    """Name of the job, as all services take it."""
    name = plan.question.model.name.lower()
    return f"train-{''.join(x if x.isascii() and x.isalnum() else '-' for x in name)}"[:50].rstrip("-")


def _value(value: str) -> str:
    """A value; `$` is the shell's in those that this module wrote."""
    return f'"{value}"' if value in (_CACHE, _HEAD) else shell_value(value)


def environment(plan: Plan, c: Candidate) -> list[tuple[str, str, str]]:
    """Names, values, and what they are for."""
    joined = CORES_PER_RANK.get(c.cluster.target.chip.name, 1)
    found = [
        ("NEURON_LOGICAL_NC_CONFIG", str(joined), f"a rank is a logical core of {joined} NeuronCore(s)"),
        ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "0", "round to nearest, as the plan's numbers do"),
        ("NEURON_COMPILE_CACHE_URL", _CACHE, "programs; s3://... shares them"),
        ("NEURON_RT_ROOT_COMM_ID", _HEAD, "where ranks find each other for collectives"),
        ("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "3", "the host runs ahead of the chip by so many programs"),
        ("MALLOC_ARENA_MAX", "128", "the host's memory allocator: fewer arenas, less memory"),
    ]
    if c.cluster.interconnect.cards and c.cluster.instances > 1:
        found += [
            ("FI_PROVIDER", "efa", "libfabric sends over the EFA cards"),
            ("FI_EFA_USE_DEVICE_RDMA", "1", "straight between the chips' memories"),
            ("FI_EFA_FORK_SAFE", "1", "needed by kernels before 5.15, harmless after"),
        ]
    found += [
        (f"PLAN_{name.upper()}", str(value), f"of the plan: {SHORT[short]}") for short, name, value in _layout(c)
    ]
    asked = plan.question
    steps = math.ceil(asked.tokens / asked.training.tokens)
    found += [
        ("PLAN_GLOBAL_BATCH", str(asked.batch), "sequences in a step"),
        ("PLAN_SEQUENCE", str(asked.training.sequence), f"{asked.model.counted} of a sequence"),
        ("PLAN_STEPS", str(steps), f"until the {asked.model.counted} are seen"),
    ]
    return found


def _layout(c: Candidate) -> list[tuple[str, str, object]]:
    pairs = (part.split("=") for part in c.step.layout.spelled().split(","))
    return [(short, SHORT[short], value) for short, value in pairs]


def launch(plan: Plan, c: Candidate) -> str:
    """The script that starts the ranks of one instance."""
    per = c.cluster.target.chips * c.cluster.ranks_per_chip
    lines = [
        "#!/bin/bash",
        shell_comment(f"{plan.question.model.name} on {c.cluster.name}: {c.step.layout}"),
        f"# planned: {c.step.total:.3g} s a step, {c.bill.days:.3g} days",
        "# usage: HEAD=address-of-the-first NODE=0 launch.sh train.py ...   on every instance, NODE counting up",
        "set -euo pipefail",
        "HEAD=${HEAD:?address of the first instance}",
        "NODE=${NODE:?number of this instance}",
        "",
    ]
    for name, value, why in environment(plan, c):
        lines += [shell_comment(why), f"export {name}={_value(value)}"]
    lines += [
        "",
        f"# {per} ranks on each of {c.cluster.instances} instances; they meet at $HEAD",
        f'exec torchrun --nnodes={c.cluster.instances} --nproc_per_node={per} --node_rank="$NODE" \\',
        f'  --master_addr="$HEAD" --master_port={PORT + 1} "$@"',
        "",
    ]
    return "\n".join(lines)


def slurm(plan: Plan, c: Candidate) -> str:
    """The batch script: one task an instance."""
    hours = math.ceil(c.bill.days * SPARE * 24)
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={name_of(plan)}",
            f"#SBATCH --nodes={c.cluster.instances}",
            "#SBATCH --ntasks-per-node=1   # torchrun starts the ranks",
            "#SBATCH --exclusive",
            f"#SBATCH --constraint={c.cluster.target.name}",
            f"#SBATCH --time={hours // 24}-{hours % 24:02d}:00:00   # {SPARE:g} times the plan",
            "#SBATCH --requeue   # after a failed instance, from the last checkpoint",
            "set -euo pipefail",
            'export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            'srun --kill-on-bad-exit=1 bash -c \'NODE=$SLURM_NODEID ./launch.sh "$@"\' launch "${@:-train.py}"',
            "",
        ]
    )


def kubernetes(plan: Plan, c: Candidate) -> str:
    """The Job and its service, in YAML (which JSON is)."""
    name, cards = name_of(plan), int(c.cluster.interconnect.cards) if c.cluster.instances > 1 else 0
    devices: dict[str, Any] = {"aws.amazon.com/neuron": c.cluster.target.chips}
    devices |= {"vpc.amazonaws.com/efa": cards} if cards else {}
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": c.cluster.target.name},
        "containers": [
            {
                "name": "train",
                "image": IMAGE,
                "command": ["bash", "-c", f"HEAD={name}-0.{name} NODE=$JOB_COMPLETION_INDEX ./launch.sh train.py"],
                "resources": {"requests": devices, "limits": devices},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    number = c.cluster.instances
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": number,
            "parallelism": number,
            "backoffLimit": 100,
            "activeDeadlineSeconds": math.ceil(c.bill.days * SPARE * SECONDS_PER_DAY),
            "template": {"spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": name}},
    }
    return "\n---\n".join(json.dumps(part, indent=2) for part in (service, job)) + "\n"


def sagemaker(plan: Plan, c: Candidate) -> dict[str, Any]:
    """The request of CreateTrainingJob; role, image and bucket are to be filled in. A job runs 28 days at most: a
    longer plan goes on from its checkpoints."""
    seconds = min(math.ceil(c.bill.days * SPARE * SECONDS_PER_DAY), round(28 * SECONDS_PER_DAY))
    return {
        "TrainingJobName": name_of(plan),
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "FastFile",
            "ContainerEntrypoint": ["bash", "-c", "HEAD=algo-1 NODE=${HOSTNAME#algo-} ./launch.sh train.py"],
        },
        "ResourceConfig": {
            "InstanceType": f"ml.{c.cluster.target.name}",
            "InstanceCount": c.cluster.instances,
            "VolumeSizeInGB": 500,
        },
        "OutputDataConfig": {"S3OutputPath": "s3://replace-me/output"},
        "CheckpointConfig": {"S3Uri": "s3://replace-me/checkpoints"},
        "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
        "Environment": {name: value for name, value, _ in environment(plan, c) if "$" not in value},
    }


def budget(plan: Plan, c: Candidate) -> dict[str, Any]:
    """The request of CreateBudget: the plan's cost at the dearest kind of price that is known, a month's share of
    it where it takes longer."""
    hours = c.bill.device_hours / c.cluster.target.chips
    dearest = max((price.high for price in latest(c.cluster.target.name).values()), default=0.0)
    month = hours * dearest * min(30 / max(c.bill.days, 1e-9), 1.0)
    alarms = [
        {
            "Notification": {
                "NotificationType": "ACTUAL",
                "ComparisonOperator": "GREATER_THAN",
                "Threshold": share,
                "ThresholdType": "PERCENTAGE",
            },
            "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "replace-me@example.com"}],
        }
        for share in ALARMS
    ]
    return {
        "AccountId": "000000000000",
        "Budget": {
            "BudgetName": name_of(plan),
            "BudgetType": "COST",
            "TimeUnit": "MONTHLY",
            "BudgetLimit": {"Amount": f"{max(month, 1.0):.2f}", "Unit": "USD"},
        },
        "NotificationsWithSubscribers": alarms,
    }
