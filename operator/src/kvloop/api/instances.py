"""EC2 instance types with accelerators, as far as P/D serving needs them.

Sources of the rows: Karpenter's instance type reference, generated from EC2's DescribeInstanceTypes
(https://karpenter.sh/docs/reference/instance-types/), EFA counts and RDMA support from the EC2 user guide
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html and efa-acc-inst-types.html), GPUDirect from
aws-ofi-nccl's platform table (https://github.com/aws/aws-ofi-nccl/blob/master/src/platform-aws.cpp) and, for g6e, an
AWS engineer's statement (https://github.com/aws/aws-ofi-nccl/issues/547).
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class InstanceType:
    """Facts on one instance type.

    `efa` counts EFA devices, and `efa_gbps` is the line rate of all of them, in Gbit/s. `rdma_write` is False where EFA
    can only read (NIXL READ, which vLLM uses, is fine); `gpudirect` None means unsure; `memory_mi` is what Karpenter
    expects to be allocatable, in MiB, where known.
    """

    name: str
    gpus: int
    efa: int
    efa_gbps: int
    vcpus: int
    memory_mi: int
    rdma_write: bool = True
    gpudirect: bool | None = True
    arm: bool = False

    def efa_for(self, gpus: int) -> int:
        """EFA devices for a pod with `gpus` GPUs: its share of the node's, rounded up, at least one."""
        if not self.efa:
            return 0
        return max(1, min(self.efa, -(-self.efa * max(gpus, 1) // self.gpus)))


GIB: Final = 1024
_ROWS: Final = (
    InstanceType("p4d.24xlarge", 8, 4, 400, 96, 1082712, rdma_write=False),
    InstanceType("p4de.24xlarge", 8, 4, 400, 96, 1082712, rdma_write=False),
    InstanceType("p5.4xlarge", 1, 1, 100, 16, 240830, gpudirect=None),
    InstanceType("p5.48xlarge", 8, 32, 3200, 192, 1938410),
    InstanceType("p5e.48xlarge", 8, 32, 3200, 192, 1938410),
    InstanceType("p5en.48xlarge", 8, 16, 3200, 192, 1937332),
    InstanceType("p6-b200.48xlarge", 8, 8, 3200, 192, 1937332),
    InstanceType("p6-b300.48xlarge", 8, 16, 6400, 192, 3877198),
    InstanceType("p6e-gb200.36xlarge", 4, 4, 1600, 144, 900 * GIB, arm=True),
    InstanceType("g6e.xlarge", 1, 0, 0, 4, 28 * GIB, gpudirect=False),
    InstanceType("g6e.2xlarge", 1, 0, 0, 8, 58 * GIB, gpudirect=False),
    InstanceType("g6e.4xlarge", 1, 0, 0, 16, 118 * GIB, gpudirect=False),
    InstanceType("g6e.8xlarge", 1, 1, 25, 32, 240 * GIB, gpudirect=False),
    InstanceType("g6e.16xlarge", 1, 1, 35, 64, 482 * GIB, gpudirect=False),
    InstanceType("g6e.12xlarge", 4, 1, 100, 48, 362 * GIB, gpudirect=False),
    InstanceType("g6e.24xlarge", 4, 2, 200, 96, 724 * GIB, gpudirect=False),
    InstanceType("g6e.48xlarge", 8, 4, 400, 192, 1448 * GIB, gpudirect=False),
    InstanceType("g7e.2xlarge", 1, 0, 0, 8, 58 * GIB, gpudirect=False),
    InstanceType("g7e.4xlarge", 1, 0, 0, 16, 118 * GIB, gpudirect=False),
    InstanceType("g7e.8xlarge", 1, 1, 100, 32, 240 * GIB, gpudirect=None),
    InstanceType("g7e.12xlarge", 2, 1, 400, 48, 482 * GIB),
    InstanceType("g7e.24xlarge", 4, 2, 800, 96, 966 * GIB),
    InstanceType("g7e.48xlarge", 8, 4, 1600, 192, 1932 * GIB),
)
INSTANCE_TYPES: Final = {row.name: row for row in _ROWS}
