"""The rules: a Serve config against the hardware it is deployed on, before anything is asked of AWS.

``check_serve_config`` is the way in; ``ALL_RULES`` lists every rule. Nothing in this package imports the CDK.
"""

from .check import ALL_RULES, check_serve_config, unknown_rules
from .deployment import Deployment, NodePool, one_pool
from .findings import Finding, Note, Report, Severity
from .rule import Problem, Rule

__all__ = [
    "ALL_RULES",
    "Deployment",
    "Finding",
    "NodePool",
    "Note",
    "Problem",
    "Report",
    "Rule",
    "Severity",
    "check_serve_config",
    "one_pool",
    "unknown_rules",
]
