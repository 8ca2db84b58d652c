"""``ray-llm synth``: runs the CDK command line and tells what came out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ray_llm_eks.assembly import Assembly, Stack
from ray_llm_eks.errors import ConfigurationError

NEXT = """\
Next, with AWS credentials:
  cdk bootstrap          once in an account and region
  cdk deploy --all       builds all of it, about half an hour
  cdk destroy --all      removes all of it again"""


def synthesize(folder: Path, context: Sequence[str]) -> None:
    """Runs ``cdk synth`` in a folder and prints a summary of the cloud assembly.

    Raises:
        ConfigurationError: no app in the folder, or no CDK command line beside this Python or on the PATH.
        SystemExit: with the CDK's own status if it fails; it has said why.
    """
    if not (folder / "cdk.json").exists():
        raise ConfigurationError(
            f"{folder.resolve()} has no cdk.json: run this in the app's folder, or name it with --app"
        )
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    cdk = shutil.which("cdk", path=path)
    if cdk is None:
        raise ConfigurationError("there is no cdk command: `make setup` installs one into .venv")
    options = [argument for pair in context for argument in ("--context", pair)]
    command = [cdk, "synth", "--quiet", "--no-notices", *options]
    environment = {**os.environ, "PATH": path}
    status = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False).returncode
    if status:
        raise SystemExit(status)
    report(Assembly.load(folder / "cdk.out"), Console())


def report(assembly: Assembly, console: Console) -> None:
    """Prints stacks, templates, what a deployment creates and what to type next."""
    table = Table("stack", "resources", "template", box=None, pad_edge=False, header_style="bold")
    for stack in assembly.stacks:
        table.add_row(stack.name, str(len(stack.resources)), os.path.relpath(stack.template_file))
    console.print(table)
    console.print("\n[bold]cdk deploy --all[/] would create:")
    for stack in assembly.stacks:
        for line in _contents(stack):
            console.print(f"  {line}", highlight=False)
    if not _public_endpoint(assembly):
        console.print(
            "\nThe cluster's API endpoint is private. To reach it from here, let your own address in with\n"
            '  -c ray-llm=\'{"cluster": {"public_access_cidrs": ["YOUR.ADDRESS/32"]}}\'\n'
            "or go through a system node: docs/reach-the-cluster.md",
            highlight=False,
            markup=False,
        )
    console.print(f"\n{NEXT}", highlight=False)


def _contents(stack: Stack) -> Iterator[str]:
    for properties in stack.of_type("AWS::EC2::VPC"):
        yield f"VPC {properties['CidrBlock']}, {len(stack.of_type('AWS::EC2::NatGateway'))} NAT gateway(s)"
    for properties in stack.of_type("AWS::EKS::Cluster"):
        yield f"EKS cluster {properties['Name']}, Kubernetes {properties['Version']}"
    templates = {name: r for name, r in stack.resources.items() if r["Type"] == "AWS::EC2::LaunchTemplate"}
    for properties in stack.of_type("AWS::EKS::Nodegroup"):
        data = templates[properties["LaunchTemplate"]["Id"]["Ref"]]["Properties"]["LaunchTemplateData"]
        instance_type = (properties.get("InstanceTypes") or [data.get("InstanceType")])[0]
        efa = sum("efa" in i["InterfaceType"] for i in data.get("NetworkInterfaces", ()))
        with_efa = f", {efa} EFA interface{'s' if efa > 1 else ''} each, one zone" if efa else ""
        yield f"{properties['ScalingConfig']['DesiredSize']} x {instance_type}{with_efa}"
    for properties in stack.of_type("AWS::FSx::FileSystem"):
        yield f"model cache: FSx for Lustre, {properties['StorageCapacity']} GiB"
    for _ in stack.of_type("AWS::EFS::FileSystem"):
        yield "model cache: EFS"
    for manifest in stack.manifests():
        if manifest["kind"] == "RayService":
            groups = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
            workers = ", ".join(f"{group['replicas']} {group['groupName']}" for group in groups)
            yield f"RayService {manifest['metadata']['namespace']}/{manifest['metadata']['name']}: head, {workers}"


def _public_endpoint(assembly: Assembly) -> bool:
    return any(
        properties["ResourcesVpcConfig"].get("EndpointPublicAccess")
        for stack in assembly.stacks
        for properties in stack.of_type("AWS::EKS::Cluster")
    )
