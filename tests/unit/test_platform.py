"""Network, cluster, add-ons, system nodes, operator: what the templates promise."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk.assertions import Match

from tests.synthesized import assembly, stack, template


def platform(settings: Any = "defaults") -> Any:
    return template("Platform", settings)


def depends_on(logical_id: str, settings: Any = "defaults") -> set[str]:
    """Everything that CloudFormation makes before a resource, through any reference."""
    resources = stack("Platform", settings).resources
    found: set[str] = set()
    todo = [logical_id]
    while todo:
        for target in direct_references(resources[todo.pop()]) & resources.keys() - found:
            found.add(target)
            todo.append(target)
    return found


def direct_references(value: Any) -> set[str]:
    match value:
        case {"Ref": str(name)}:
            return {name}
        case {"Fn::GetAtt": [str(name), *_]}:
            return {name}
        case dict():
            own = value.get("DependsOn", [])  # pyright: ignore
            named: set[str] = {own} if isinstance(own, str) else set(own)  # pyright: ignore
            return named.union(*map(direct_references, value.values()))  # pyright: ignore
        case list():
            return set().union(*map(direct_references, value))  # pyright: ignore
        case _:
            return set()


def ids(resource_type: str, settings: Any = "defaults", **properties: Any) -> list[str]:
    return [
        name
        for name, resource in stack("Platform", settings).resources.items()
        if resource["Type"] == resource_type
        and all(resource["Properties"].get(key) == value for key, value in properties.items())
    ]


class TestNetwork:
    def test_the_gpu_subnet_is_in_the_regions_first_zone_unless_named(self) -> None:
        platform().has_resource_properties(
            "AWS::EC2::Subnet",
            {"CidrBlock": "10.0.240.0/20", "AvailabilityZone": {"Fn::Select": [0, {"Fn::GetAZs": ""}]}},
        )

    @pytest.mark.parametrize(
        ("zone", "expected"),
        [
            ("us-west-2b", {"AvailabilityZone": "us-west-2b", "AvailabilityZoneId": Match.absent()}),
            ("usw2-az2", {"AvailabilityZoneId": "usw2-az2", "AvailabilityZone": Match.absent()}),
        ],
    )
    def test_a_zone_is_a_name_or_an_id(self, zone: str, expected: dict[str, Any]) -> None:
        platform({"gpu": {"zone": zone}}).has_resource_properties(
            "AWS::EC2::Subnet", {"CidrBlock": "10.0.240.0/20", **expected}
        )

    def test_the_control_plane_spans_two_zones(self) -> None:
        cluster = stack("Platform").of_type("AWS::EKS::Cluster")[0]
        subnets = [s["Ref"] for s in cluster["ResourcesVpcConfig"]["SubnetIds"]]
        resources = stack("Platform").resources
        zones = [str(resources[subnet]["Properties"]["AvailabilityZone"]) for subnet in subnets]
        assert len(set(zones)) == 2

    def test_all_private_subnets_reach_s3_without_the_nat_gateway(self) -> None:
        [endpoint] = stack("Platform").of_type("AWS::EC2::VPCEndpoint")
        assert len(endpoint["RouteTableIds"]) == 3

    def test_production_has_interface_endpoints_and_flow_logs(self) -> None:
        production = platform("production")
        production.resource_count_is("AWS::EC2::FlowLog", 1)
        names = {
            str(e["ServiceName"])
            for e in stack("Platform", "production").of_type("AWS::EC2::VPCEndpoint")
            if e["VpcEndpointType"] == "Interface"
        }
        for service in ("ecr.api", "ecr.dkr", "sts", "ec2", "eks", "eks-auth", "logs"):
            assert any(name.rstrip("'\"]}").endswith(f".{service}") for name in names), service
        platform().resource_count_is("AWS::EC2::FlowLog", 0)

    def test_an_imported_vpc_is_used_and_none_is_made(self) -> None:
        imported = platform("imported")
        imported.resource_count_is("AWS::EC2::VPC", 0)
        imported.has_resource_properties(
            "AWS::EKS::Cluster",
            {
                "ResourcesVpcConfig": Match.object_like(
                    {"SubnetIds": ["subnet-0aaaaaaaaaaaaaaa1", "subnet-0aaaaaaaaaaaaaaa2"]}
                )
            },
        )

    def test_nothing_launched_gets_a_public_address(self) -> None:
        assert not any(s.get("MapPublicIpOnLaunch") for s in stack("Platform").of_type("AWS::EC2::Subnet"))


class TestCluster:
    def test_version_and_support(self) -> None:
        platform().has_resource_properties(
            "AWS::EKS::Cluster", {"Version": "1.36", "UpgradePolicy": {"SupportType": "STANDARD"}}
        )

    def test_the_api_endpoint_is_private_by_default(self) -> None:
        platform().has_resource_properties(
            "AWS::EKS::Cluster",
            {"ResourcesVpcConfig": Match.object_like({"EndpointPrivateAccess": True, "EndpointPublicAccess": False})},
        )

    def test_the_public_endpoint_lets_in_the_given_addresses_only(self) -> None:
        platform("production").has_resource_properties(
            "AWS::EKS::Cluster",
            {
                "ResourcesVpcConfig": Match.object_like(
                    {
                        "EndpointPrivateAccess": True,
                        "EndpointPublicAccess": True,
                        "PublicAccessCidrs": ["203.0.113.0/24"],
                    }
                )
            },
        )

    def test_secrets_are_encrypted_and_everything_is_logged(self) -> None:
        platform().has_resource_properties(
            "AWS::EKS::Cluster",
            {
                "EncryptionConfig": [
                    {"Provider": {"KeyArn": Match.any_value()}, "Resources": ["secrets"]},
                ],
                "Logging": {
                    "ClusterLogging": {
                        "EnabledTypes": [
                            {"Type": kind}
                            for kind in ("api", "audit", "authenticator", "controllerManager", "scheduler")
                        ]
                    }
                },
            },
        )
        platform().has_resource_properties("AWS::KMS::Key", {"EnableKeyRotation": True})

    def test_the_log_group_exists_before_eks_would_make_one_that_stays(self) -> None:
        [group] = ids("AWS::Logs::LogGroup", LogGroupName="/aws/eks/ray-llm/cluster")
        [cluster] = ids("AWS::EKS::Cluster")
        assert group in depends_on(cluster)

    def test_a_role_of_the_account_is_admin_by_default(self) -> None:
        entries = stack("Platform").of_type("AWS::EKS::AccessEntry")
        assert any("AdminRole" in str(entry["PrincipalArn"]) for entry in entries)
        outputs = stack("Platform").template["Outputs"]
        assert any("--role-arn" in str(output["Value"]) for output in outputs.values())

    def test_named_admins_replace_it(self) -> None:
        entries = stack("Platform", "production").of_type("AWS::EKS::AccessEntry")
        assert "arn:aws:iam::111122223333:role/PlatformTeam" in [entry["PrincipalArn"] for entry in entries]
        assert not any("AdminRole" in str(entry["PrincipalArn"]) for entry in entries)

    def test_addons(self) -> None:
        names = {a["AddonName"] for a in stack("Platform").of_type("AWS::EKS::Addon")}
        assert names == {
            "vpc-cni",
            "coredns",
            "kube-proxy",
            "eks-pod-identity-agent",
            "metrics-server",
            "eks-node-monitoring-agent",
        }

    def test_an_addon_version_can_be_pinned(self) -> None:
        pinned = platform({"cluster": {"addon_versions": {"coredns": "v1.13.1-eksbuild.1"}}})
        pinned.has_resource_properties(
            "AWS::EKS::Addon", {"AddonName": "coredns", "AddonVersion": "v1.13.1-eksbuild.1"}
        )
        pinned.has_resource_properties("AWS::EKS::Addon", {"AddonName": "vpc-cni", "AddonVersion": Match.absent()})

    def test_addons_with_pods_wait_for_nodes_and_nodes_for_the_network_addon(self) -> None:
        [nodes] = ids("AWS::EKS::Nodegroup")
        for name in ("coredns", "metrics-server", "eks-node-monitoring-agent"):
            [addon] = ids("AWS::EKS::Addon", AddonName=name)
            assert nodes in depends_on(addon)
        for name in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent"):
            [addon] = ids("AWS::EKS::Addon", AddonName=name)
            assert addon in depends_on(nodes)

    def test_kubectls_function_keeps_its_way_out_until_the_end(self) -> None:
        [cluster] = ids("AWS::EKS::Cluster")
        [nat] = ids("AWS::EC2::NatGateway")
        assert nat in depends_on(cluster)
        functions = [f for f in ids("AWS::Lambda::Function") if "KubectlProvider" in f]
        assert functions
        assert all(nat in depends_on(function) for function in functions)


class TestSystemNodes:
    def test_node_group(self) -> None:
        platform().has_resource_properties(
            "AWS::EKS::Nodegroup",
            {
                "AmiType": "AL2023_x86_64_STANDARD",
                "InstanceTypes": ["m7i.xlarge"],
                "Labels": {"ray-llm-eks/node-role": "system"},
                "NodeRepairConfig": {"Enabled": True},
                "Taints": Match.absent(),
            },
        )

    def test_metadata_is_out_of_reach_of_pods_and_the_root_volume_encrypted(self) -> None:
        platform().has_resource_properties(
            "AWS::EC2::LaunchTemplate",
            {
                "LaunchTemplateData": Match.object_like(
                    {
                        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
                        "BlockDeviceMappings": [
                            {
                                "DeviceName": "/dev/xvda",
                                "Ebs": Match.object_like({"Encrypted": True, "VolumeType": "gp3"}),
                            }
                        ],
                    }
                )
            },
        )


def test_the_operator_comes_after_the_nodes_it_runs_on() -> None:
    [operator] = ids("Custom::AWSCDK-EKS-HelmChart", Chart="kuberay-operator")
    [nodes] = ids("AWS::EKS::Nodegroup")
    assert nodes in depends_on(operator)


def test_production_stacks_refuse_deletion() -> None:
    assert all(s.termination_protection for s in assembly("production").stacks)
    assert not any(s.termination_protection for s in assembly().stacks)
