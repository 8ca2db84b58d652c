"""The library as others take it: its public names, and the example in docs/constructs.md."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import aws_cdk as cdk
from aws_cdk.assertions import Template

import ray_llm_eks
from tests.synthesized import ROOT

EXAMPLE = ROOT / "examples" / "existing_cluster" / "app.py"


def test_every_public_name_is_there_and_documented() -> None:
    for name in ray_llm_eks.__all__:
        value = getattr(ray_llm_eks, name)
        assert name == "__version__" or value.__doc__, name
    assert set(ray_llm_eks.__all__) - {"__version__"} == set(vars(ray_llm_eks)["_HOMES"])


def test_importing_the_library_does_not_import_the_cdk() -> None:
    code = "import ray_llm_eks, sys; sys.exit('aws_cdk' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_example_synthesizes(tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert specification
    assert specification.loader
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    template = Template.from_stack(example.build(cdk.App(outdir=str(tmp_path))))
    template.resource_count_is("AWS::EKS::Nodegroup", 1)
    template.resource_count_is("AWS::FSx::FileSystem", 1)
    template.resource_count_is("AWS::EKS::Cluster", 0)


def test_the_docs_show_the_example_as_it_is() -> None:
    assert EXAMPLE.read_text("utf-8").split("def build")[1].split("if __name__")[0].strip() in (
        ROOT / "docs" / "constructs.md"
    ).read_text("utf-8")


def test_the_settings_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tools.settings_reference import *; print(page() == TARGET.read_text('utf-8'))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n", "run python tools/settings_reference.py"
