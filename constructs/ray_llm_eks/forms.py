"""The forms that AWS and Kubernetes ask of names and addresses: one check for settings and constructs alike.

Every function returns what it was given, or raises ``ConfigurationError`` with what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, collapse_addresses
from typing import NoReturn

from .errors import ConfigurationError

ZONE_NAME = re.compile(r"[a-z]{2}(-[a-z]+)+-\d[a-z]", re.ASCII)
ZONE_ID = re.compile(r"[a-z]{2,}\d-az\d", re.ASCII)

ANYWHERE = IPv4Network("0.0.0.0/0")
UNUSABLE = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")))
"""What no VPC may have."""
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))

MAX_SERVICE_NAME = 47
"""KubeRay 1.7 MaxRayServiceNameLength: Service names made from it would be longer than 63 characters."""
FOREIGN_NAMESPACES = ("default", "kuberay-system")


def matching(text: str, pattern: str, wanted: str) -> str:
    """A text of a form, in ASCII."""
    if not re.fullmatch(pattern, text, re.ASCII):
        _refuse(text, f"is not {wanted}")
    return text


def _refuse(given: object, reason: str) -> NoReturn:
    shown = repr(str(given))
    raise ConfigurationError(f"{shown if len(shown) <= 80 else shown[:79] + '…'} {reason}")


def dns_label(name: str, longest: int = 50) -> str:
    """A name that may become a part of a host name."""
    return matching(
        name,
        rf"(?=.{{1,{longest}}}$)[a-z]([-a-z0-9]*[a-z0-9])?",
        f"a name of at most {longest} lower-case letters, digits and hyphens that begins with a letter",
    )


def namespace(name: str) -> str:
    """A Kubernetes namespace that is made, and deleted with all in it."""
    if name.startswith("kube-") or name in FOREIGN_NAMESPACES:
        _refuse(name, "is a namespace that others use, and this one is deleted with the stack: take one of its own")
    return dns_label(name)


def service_name(name: str) -> str:
    """A RayService's name."""
    return dns_label(name, MAX_SERVICE_NAME)


def zone(name: str) -> str:
    """One availability zone."""
    if not (ZONE_NAME.fullmatch(name) or ZONE_ID.fullmatch(name)):
        _refuse(
            name,
            "is neither one zone name (us-west-2b) nor one zone id (usw2-az2); "
            "EFA cannot cross zones, so give exactly one",
        )
    return name


def vpc_zones(private: Sequence[str], gpu: str) -> None:
    """The zones of an existing VPC's subnets. Names and ids cannot be compared, and a VPC lies in one region."""
    if len(set(private)) < 2:
        raise ConfigurationError("private_subnets must lie in at least two zones: EKS asks for that")
    names = [name for name in (*private, gpu) if ZONE_NAME.fullmatch(name)]
    ids = [name for name in (*private, gpu) if ZONE_ID.fullmatch(name)]
    if names and ids:
        raise ConfigurationError(f"write all zones as names or all as ids, not {names[0]} and {ids[0]}")
    regions = {name[:-1] for name in names} | {name.partition("-")[0] for name in ids}
    if len(regions) > 1:
        raise ConfigurationError(f"the subnets of a VPC are in one region, not {', '.join(sorted(regions))}")


def pinned_image(image: str) -> str:
    """A container image with a version tag or a digest."""
    name, _, digest = image.partition("@")
    if digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        _refuse(digest, "is not an image digest (sha256: and 64 hex digits)")
    matching(
        name,
        r"(?=.{1,400}$)([\w.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?",
        "an image such as public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0",
    )
    if not digest and name.rsplit("/", 1)[-1].partition(":")[2] in ("", "latest"):
        raise ConfigurationError("pin the image by a version tag or a digest; 'latest' changes under a running service")
    return image


def secret(name: str) -> str:
    """Name or full ARN of a Secrets Manager secret."""
    if re.match(r"hf_[A-Za-z0-9]{20}", name):
        raise ConfigurationError(
            "this is a Hugging Face token, not the name of a secret: put the token into Secrets Manager, revoke it if "
            "this file was shared, and write the secret's name here"
        )
    return matching(
        name,
        r"[\w/+=.@-]{1,512}|arn:aws[\w-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[\w/+=.@-]+-[A-Za-z0-9]{6}",
        "the name or full ARN of a Secrets Manager secret",
    )


def s3_prefix(uri: str) -> str:
    """An S3 prefix. No wildcards, which would widen the permission to read it, and no empty folders."""
    return matching(
        uri,
        r"s3://(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.'()=+@,:;&~-]+)+/?",
        "an S3 prefix such as s3://your-bucket/models/qwen3.5-9b",
    )


def vpc_range(cidr: IPv4Network) -> IPv4Network:
    """The address range of a new VPC."""
    if not 16 <= cidr.prefixlen <= 20:
        raise ConfigurationError(f"{cidr} is a /{cidr.prefixlen}; the VPC takes /16 to /20")
    if any(cidr.overlaps(block) for block in UNUSABLE):
        raise ConfigurationError(f"no VPC may have {cidr}; take a private range such as 10.0.0.0/16")
    return cidr


def public_access(cidrs: Sequence[IPv4Network], *, from_anywhere: bool) -> None:
    """Who may reach the public API endpoint."""
    # Two halves are the whole as well.
    if ANYWHERE in collapse_addresses(cidrs) and not from_anywhere:
        raise ConfigurationError(
            f"public_access_cidrs contains {ANYWHERE}: name your own addresses (for example 203.0.113.7/32), "
            "or say allow_public_access_from_anywhere: true"
        )
    for cidr in cidrs:
        if any(cidr.subnet_of(block) for block in (*UNUSABLE, *PRIVATE)):
            raise ConfigurationError(
                f"public_access_cidrs contains {cidr}, which no address on the internet has, and EKS refuses it: name "
                "the public address that your requests come from"
            )
