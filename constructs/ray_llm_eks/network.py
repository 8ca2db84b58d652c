"""The network: two zones for the control plane and the system nodes, one subnet in one zone for the GPU nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import cast

from aws_cdk import Annotations, Fn, Token
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from .acknowledgements import acknowledge
from .errors import ConfigurationError
from .forms import ZONE_ID, vpc_range, vpc_zones, zone

INTERFACE_ENDPOINTS = {
    "Ecr": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Sts": ec2.InterfaceVpcEndpointAwsService.STS,
    "Ec2": ec2.InterfaceVpcEndpointAwsService.EC2,
    "Eks": ec2.InterfaceVpcEndpointAwsService.EKS,
    "EksAuth": ec2.InterfaceVpcEndpointAwsService.EKS_AUTH,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
}


@dataclass(frozen=True, kw_only=True)
class ExistingSubnet:
    """A subnet that exists already, by id and zone."""

    subnet_id: str
    zone: str


class Network(Construct):
    """A VPC whose private subnets span two zones, plus one private GPU subnet in one zone.

    EFA traffic cannot cross zones, so everything that uses it, and the model cache, lives in ``gpu_subnet``; the
    control plane and the system nodes use ``private_subnets``, because EKS wants two zones. The GPU zone may be any
    zone of the region, not only one of those two.

    Attributes:
        vpc: the VPC.
        private_subnets: for the control plane, the system nodes and kubectl's Lambda function.
        gpu_subnet: for the GPU nodes and the model cache; one zone.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cidr: IPv4Network | None = None,
        gpu_zone: str | None = None,
        nat_gateways: int = 1,
        interface_endpoints: bool = False,
        flow_logs: bool = False,
    ) -> None:
        """Makes a new VPC.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            cidr: address range, /16 to /20; default 10.0.0.0/16. The GPU subnet takes the last sixteenth.
            gpu_zone: zone name (us-west-2b) or zone id (usw2-az2); default the region's first zone, which
                CloudFormation resolves when it deploys.
            nat_gateways: 1 or 2; default 1.
            interface_endpoints: ECR, STS, EC2, EKS, EKS-auth and CloudWatch Logs endpoints; default none. The S3
                gateway endpoint, which is free, is always there.
            flow_logs: all traffic to a CloudWatch log group kept for a month; default none.

        Raises:
            ConfigurationError: an address range that no VPC may have, no zone, or no NAT gateway.
        """
        super().__init__(scope, id)
        cidr = cidr or IPv4Network("10.0.0.0/16")
        vpc_range(cidr)
        if gpu_zone is not None and not Token.is_unresolved(gpu_zone):
            zone(gpu_zone)
        if nat_gateways not in (1, 2):
            raise ConfigurationError(f"{self.node.path}: nat_gateways must be 1 or 2, not {nat_gateways}")
        blocks = list(cidr.subnets(prefixlen_diff=4))

        self.vpc: ec2.IVpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(str(cidr)),
            max_azs=2,
            nat_gateways=nat_gateways,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=min(28, cidr.prefixlen + 8),
                    map_public_ip_on_launch=False,
                ),
                ec2.SubnetConfiguration(
                    name="Private",
                    subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS,
                    cidr_mask=blocks[0].prefixlen,
                ),
            ],
        )
        self.private_subnets: Sequence[ec2.ISubnet] = self.vpc.private_subnets
        self.gpu_subnet: ec2.ISubnet = self._gpu_subnet(blocks[-1], gpu_zone)

        self.vpc.add_gateway_endpoint(
            "S3",
            service=ec2.GatewayVpcEndpointAwsService.S3,
            subnets=[ec2.SubnetSelection(subnets=[*self.private_subnets, self.gpu_subnet])],
        )
        if interface_endpoints:
            for name, service in INTERFACE_ENDPOINTS.items():
                self.vpc.add_interface_endpoint(
                    name, service=service, subnets=ec2.SubnetSelection(subnets=list(self.private_subnets))
                )
            acknowledge(
                self.vpc,
                "AwsSolutions-EC23",
                reason="The endpoints' security groups let in the VPC's own address range; the rule cannot read it "
                "because it is a CloudFormation reference.",
            )
        if flow_logs:
            self.vpc.add_flow_log(
                "FlowLog",
                destination=ec2.FlowLogDestination.to_cloud_watch_logs(
                    logs.LogGroup(self, "FlowLogGroup", retention=logs.RetentionDays.ONE_MONTH)
                ),
            )
        else:
            acknowledge(
                self.vpc,
                "AwsSolutions-VPC7",
                reason="Flow logs cost by the gigabyte and are off for evaluation; the production profile has them.",
            )

    def _gpu_subnet(self, block: IPv4Network, zone: str | None) -> ec2.ISubnet:
        by_id = zone is not None and ZONE_ID.fullmatch(zone) is not None
        subnet = ec2.PrivateSubnet(
            self,
            "GpuSubnet",
            vpc_id=self.vpc.vpc_id,
            cidr_block=str(block),
            availability_zone=zone if zone and not by_id else Fn.select(0, Fn.get_azs()),
        )
        if by_id:
            # The L2 takes zone names only.
            resource = subnet.node.default_child
            assert isinstance(resource, ec2.CfnSubnet)
            resource.availability_zone_id = zone
            resource.availability_zone = None
        nat = self.vpc.public_subnets[0].node.find_child("NATGateway")
        assert isinstance(nat, ec2.CfnNatGateway)
        subnet.add_default_nat_route(nat.ref)
        return cast(ec2.ISubnet, subnet)

    @staticmethod
    def from_existing(
        scope: Construct,
        id: str,
        *,
        vpc_id: str,
        private_subnets: Sequence[ExistingSubnet],
        gpu_subnet: ExistingSubnet,
    ) -> ImportedNetwork:
        """Uses an existing VPC. Its subnets need routes to the internet, or endpoints for all that nodes pull.

        Args:
            scope: the construct that owns the references.
            id: their id within the scope.
            vpc_id: the VPC.
            private_subnets: for the control plane and system nodes, in at least two zones.
            gpu_subnet: for the GPU nodes and the model cache.

        Raises:
            ConfigurationError: fewer than two zones, or zones of several regions.
        """
        return ImportedNetwork(scope, id, vpc_id=vpc_id, private_subnets=private_subnets, gpu_subnet=gpu_subnet)


class ImportedNetwork(Construct):
    """An existing VPC with the same three attributes as :class:`Network`; see :meth:`Network.from_existing`."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc_id: str,
        private_subnets: Sequence[ExistingSubnet],
        gpu_subnet: ExistingSubnet,
    ) -> None:
        super().__init__(scope, id)
        zones = [subnet.zone for subnet in private_subnets]
        vpc_zones(zones, gpu_subnet.zone)
        self.gpu_subnet: ec2.ISubnet = ec2.Subnet.from_subnet_attributes(
            self, "Gpu", subnet_id=gpu_subnet.subnet_id, availability_zone=gpu_subnet.zone
        )
        self.vpc: ec2.IVpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id=vpc_id,
            availability_zones=zones,
            private_subnet_ids=[subnet.subnet_id for subnet in private_subnets],
        )
        self.private_subnets: Sequence[ec2.ISubnet] = self.vpc.private_subnets
        for subnet in (*self.private_subnets, self.gpu_subnet):
            Annotations.of(subnet).acknowledge_warning(
                "@aws-cdk/aws-ec2:noSubnetRouteTableId", "nothing here adds routes to an existing subnet"
            )


AnyNetwork = Network | ImportedNetwork
"""Either kind; both have ``vpc``, ``private_subnets`` and ``gpu_subnet``."""
