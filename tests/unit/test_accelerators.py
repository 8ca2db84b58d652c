"""GPU nodes, EFA, model cache: what the templates promise."""

from __future__ import annotations

import email
import json
from typing import Any

import pytest
from aws_cdk.assertions import Match

from ray_llm_eks.efa_node_group import efa_interfaces
from ray_llm_eks.instances import efa_gpu_instance_names, instance_facts
from tests.synthesized import manifest, stack, template

EFS = {"cache": {"kind": "efs"}}


def launch_template(settings: Any = "defaults") -> dict[str, Any]:
    [found] = stack("Accelerators", settings).of_type("AWS::EC2::LaunchTemplate")
    return found["LaunchTemplateData"]


def security_group(part: str, settings: Any = "defaults") -> str:
    [found] = [
        name
        for name, resource in stack("Accelerators", settings).resources.items()
        if resource["Type"] == "AWS::EC2::SecurityGroup" and part in name
    ]
    return found


def rules(direction: str, group: str, settings: Any = "defaults") -> set[tuple[str, str, int | None, int | None]]:
    """(peer, protocol, first port, last port) of the rules of a security group."""
    peer = {"Ingress": "SourceSecurityGroupId", "Egress": "DestinationSecurityGroupId"}[direction]
    return {
        (r[peer]["Fn::GetAtt"][0], r["IpProtocol"], r.get("FromPort"), r.get("ToPort"))
        for r in stack("Accelerators", settings).of_type(f"AWS::EC2::SecurityGroup{direction}")
        if r["GroupId"] == {"Fn::GetAtt": [group, "GroupId"]}
    }


def user_data(settings: Any = "defaults") -> dict[str, str]:
    """The parts of the user data by content type."""
    text = launch_template(settings)["UserData"]["Fn::Base64"]
    message = email.message_from_string(text)
    assert message.get_content_type() == "multipart/mixed"
    return {part.get_content_type(): str(part.get_payload()) for part in message.walk() if not part.is_multipart()}


class TestEfaNodeGroup:
    def test_the_network_interface_is_efa_with_both_security_groups_inside(self) -> None:
        [interface] = launch_template()["NetworkInterfaces"]
        assert interface["InterfaceType"] == "efa"
        assert (interface["NetworkCardIndex"], interface["DeviceIndex"]) == (0, 0)
        own, cluster = interface["Groups"]
        assert own == {"Fn::GetAtt": [security_group("Efa"), "GroupId"]}
        assert "ClusterSecurityGroupId" in str(cluster)
        assert "SecurityGroupIds" not in launch_template()

    def test_one_zone_and_one_cluster_placement_group(self) -> None:
        accelerators = template("Accelerators")
        accelerators.has_resource_properties("AWS::EC2::PlacementGroup", {"Strategy": "cluster"})
        [group] = stack("Accelerators").of_type("AWS::EKS::Nodegroup")
        assert len(group["Subnets"]) == 1
        assert "PlacementGroup" in str(launch_template()["Placement"]["GroupName"])

    def test_node_group(self) -> None:
        template("Accelerators").has_resource_properties(
            "AWS::EKS::Nodegroup",
            {
                "AmiType": "AL2023_x86_64_NVIDIA",
                "CapacityType": "ON_DEMAND",
                "ScalingConfig": {"MinSize": 2, "DesiredSize": 2, "MaxSize": 2},
                "Taints": [{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}],
                "Labels": {
                    "ray-llm-eks/node-role": "gpu",
                    "ray-llm-eks/instance-type": "g6.8xlarge",
                    "nvidia.com/gpu.present": "true",
                },
                "UpdateConfig": {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"},
                "NodeRepairConfig": {"Enabled": True},
                # In the launch template; beside it the API would refuse it.
                "InstanceTypes": Match.absent(),
            },
        )
        assert launch_template()["InstanceType"] == "g6.8xlarge"

    def test_metadata_and_root_volume(self) -> None:
        data = launch_template()
        assert data["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
        [root] = data["BlockDeviceMappings"]
        assert root["Ebs"]["Encrypted"] is True
        assert root["Ebs"]["VolumeType"] == "gp3"

    def test_the_efa_security_group_opens_to_itself_and_to_lustre_only(self) -> None:
        efa, lustre = security_group("Efa"), security_group("ModelCache")
        lustre_rules = {(lustre, "tcp", 988, 988), (lustre, "tcp", 1018, 1023)}
        assert rules("Ingress", efa) == {(efa, "-1", None, None)} | lustre_rules
        assert rules("Egress", efa) == {(efa, "-1", None, None)} | lustre_rules
        inline = stack("Accelerators").resources[efa]["Properties"]
        assert not inline.get("SecurityGroupIngress")
        assert not inline.get("SecurityGroupEgress")

    def test_user_data_with_lustre(self) -> None:
        parts = user_data()
        config = json.loads(parts["application/node.eks.aws"])
        assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
        assert config["spec"]["instance"]["localStorage"] == {"strategy": "RAID0"}
        assert config["spec"]["featureGates"] == {"FastImagePull": True}
        assert config["spec"]["kubelet"]["config"]["serializeImagePulls"] is False
        assert "dnf install -y lustre-client" in parts["text/x-shellscript"]

    def test_no_lustre_client_where_the_cache_is_another(self) -> None:
        assert set(user_data("imported")) == {"application/node.eks.aws"}

    def test_a_capacity_reservation_brings_its_own_placement_group_or_none(self) -> None:
        reserved = {"gpu": {"capacity_reservation_id": "cr-0123456789abcdef0"}}
        data = launch_template(reserved)
        assert data["CapacityReservationSpecification"] == {
            "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
        }
        assert "Placement" not in data
        named = {"gpu": {**reserved["gpu"], "placement_group_name": "theirs"}}
        assert launch_template(named)["Placement"] == {"GroupName": "theirs"}
        template("Accelerators", named).resource_count_is("AWS::EC2::PlacementGroup", 0)

    def test_spot_and_capacity_block(self) -> None:
        spot = stack("Accelerators", {"gpu": {"capacity": "spot"}})
        assert spot.of_type("AWS::EKS::Nodegroup")[0]["CapacityType"] == "SPOT"
        block = {
            "gpu": {
                "capacity": "capacity-block",
                "capacity_reservation_id": "cr-0123456789abcdef0",
                "instance_type": "p5.48xlarge",
            }
        }
        assert stack("Accelerators", block).of_type("AWS::EKS::Nodegroup")[0]["CapacityType"] == "CAPACITY_BLOCK"
        assert launch_template(block)["InstanceMarketOptions"] == {"MarketType": "capacity-block"}

    def test_decode_can_have_its_own_nodes_in_the_same_fabric(self) -> None:
        two = {"gpu": {"max_nodes": 2, "decode": {"instance_type": "g6e.8xlarge"}}}
        groups = stack("Accelerators", two).of_type("AWS::EKS::Nodegroup")
        assert {g["Labels"]["ray-llm-eks/node-role"] for g in groups} == {"gpu", "decode"}
        templates = stack("Accelerators", two).of_type("AWS::EC2::LaunchTemplate")
        interfaces = [t["LaunchTemplateData"]["NetworkInterfaces"][0]["Groups"][0] for t in templates]
        assert interfaces[0] == interfaces[1]
        template("Accelerators", two).resource_count_is("AWS::EC2::PlacementGroup", 1)

    @pytest.mark.parametrize("name", efa_gpu_instance_names())
    def test_interfaces_of_every_type(self, name: str) -> None:
        facts = instance_facts(name)
        interfaces = efa_interfaces(facts, ["sg-1"])
        efa = [i for i in interfaces if i.interface_type in ("efa", "efa-only")]
        assert len(efa) == facts.efa_interfaces
        assert len({i.network_card_index for i in interfaces}) == len(interfaces) <= facts.network_cards
        assert [i.device_index for i in interfaces] == [0] + [1] * (len(interfaces) - 1)
        assert interfaces[0].interface_type == ("interface" if facts.efa_first_card else "efa")
        assert all(i.interface_type == "efa-only" for i in interfaces[1:])


class TestLustre:
    def test_file_system(self) -> None:
        accelerators = template("Accelerators")
        accelerators.has_resource(
            "AWS::FSx::FileSystem",
            {
                "DeletionPolicy": "Delete",
                "Properties": Match.object_like(
                    {
                        "FileSystemTypeVersion": "2.15",
                        "StorageCapacity": 1200,
                        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
                    }
                ),
            },
        )
        template("Accelerators", "production").has_resource("AWS::FSx::FileSystem", {"DeletionPolicy": "Retain"})

    def test_it_lies_in_the_nodes_subnet(self) -> None:
        [file_system] = stack("Accelerators").of_type("AWS::FSx::FileSystem")
        [nodes] = stack("Accelerators").of_type("AWS::EKS::Nodegroup")
        assert file_system["SubnetIds"] == nodes["Subnets"]

    def test_its_security_group_opens_lnets_ports_to_the_nodes_only(self) -> None:
        efa, lustre = security_group("Efa"), security_group("ModelCache")
        expected = {(peer, "tcp", *ports) for peer in (efa, lustre) for ports in ((988, 988), (1018, 1023))}
        assert rules("Ingress", lustre) == expected
        assert rules("Egress", lustre) == expected

    def test_it_is_made_after_its_rules_and_beside_the_nodes(self) -> None:
        resources = stack("Accelerators").resources
        [file_system] = [r for r in resources.values() if r["Type"] == "AWS::FSx::FileSystem"]
        own_rules = {
            name
            for name, r in resources.items()
            if r["Type"].startswith("AWS::EC2::SecurityGroup")
            and r["Properties"].get("GroupId") == {"Fn::GetAtt": [security_group("ModelCache"), "GroupId"]}
        }
        assert own_rules <= set(file_system["DependsOn"])
        [nodes] = [r for r in resources.values() if r["Type"] == "AWS::EKS::Nodegroup"]
        assert not any(resources[name]["Type"] == "AWS::FSx::FileSystem" for name in nodes["DependsOn"])

    def test_kept_it_keeps_its_security_group_and_the_rules_between_its_servers(self) -> None:
        kept = [
            r for r in stack("Accelerators", "production").resources.values() if r.get("DeletionPolicy") == "Retain"
        ]
        assert sorted(resource["Type"] for resource in kept) == [
            "AWS::EC2::SecurityGroup",
            *2 * ["AWS::EC2::SecurityGroupEgress"],
            *2 * ["AWS::EC2::SecurityGroupIngress"],
            "AWS::FSx::FileSystem",
        ]
        properties = json.dumps([resource["Properties"] for resource in kept])
        assert security_group("Efa", "production") not in properties, "the nodes' group must be free to go"

    def test_kubernetes_gets_it_as_a_static_volume(self) -> None:
        volume = manifest("PersistentVolume")
        assert volume["spec"]["mountOptions"] == ["flock"]
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        csi = volume["spec"]["csi"]
        assert csi["driver"] == "fsx.csi.aws.com"
        assert "DNSName" in csi["volumeAttributes"]["dnsname"]
        assert "LustreMountName" in csi["volumeAttributes"]["mountname"]
        claim = manifest("PersistentVolumeClaim")
        assert claim["spec"]["storageClassName"] == ""
        assert claim["spec"]["resources"]["requests"]["storage"] == volume["spec"]["capacity"]["storage"]

    def test_the_driver_may_only_look_up_this_file_system(self) -> None:
        accelerators = template("Accelerators")
        accelerators.has_resource_properties(
            "AWS::EKS::Addon",
            {
                "AddonName": "aws-fsx-csi-driver",
                "PodIdentityAssociations": [{"ServiceAccount": "fsx-csi-controller-sa", "RoleArn": Match.any_value()}],
            },
        )
        [policy] = stack("Accelerators").of_type("AWS::IAM::Policy")
        [statement] = policy["PolicyDocument"]["Statement"]
        assert statement["Action"] == "fsx:DescribeFileSystems"
        assert "ModelCacheFileSystem" in str(statement["Resource"])


class TestOtherCaches:
    def test_efs(self) -> None:
        template("Accelerators", EFS).has_resource_properties(
            "AWS::EFS::FileSystem", {"Encrypted": True, "ThroughputMode": "elastic"}
        )
        efa, cache = security_group("Efa", EFS), security_group("ModelCache", EFS)
        assert rules("Ingress", cache, EFS) == {(efa, "tcp", 2049, 2049)}
        assert manifest("PersistentVolume", EFS)["spec"]["csi"]["driver"] == "efs.csi.aws.com"
        [target] = stack("Accelerators", EFS).of_type("AWS::EFS::MountTarget")
        assert target["SubnetId"] == stack("Accelerators", EFS).of_type("AWS::EKS::Nodegroup")[0]["Subnets"][0]

    def test_node_local_makes_nothing(self) -> None:
        resources = stack("Accelerators", "imported").resources.values()
        assert not any(r["Type"].startswith(("AWS::FSx", "AWS::EFS")) for r in resources)
        assert not any(r["Type"] == "AWS::EKS::Addon" for r in resources)


@pytest.mark.parametrize("settings", ["defaults", "production", "imported", EFS], ids=str)
@pytest.mark.parametrize("name", ["Platform", "Accelerators", "Serving"])
def test_no_statement_allows_everything_on_everything(name: str, settings: Any) -> None:
    """Our own roles name their resources; the CDK's kubectl function (its own policy) is listed as what it is."""
    for logical_id, resource in stack(name, settings).resources.items():
        if resource["Type"] != "AWS::IAM::Policy" or "KubectlProvider" in logical_id:
            continue
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
            assert statement["Resource"] != "*", logical_id
            actions = statement["Action"]
            assert not any("*" in action for action in ([actions] if isinstance(actions, str) else actions))
