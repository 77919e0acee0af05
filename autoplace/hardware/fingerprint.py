"""What makes two machines the same for a study, without host names or serial numbers."""

import hashlib
import json

from autoplace.hardware.machine import Machine
from autoplace.units import GIB


def fingerprint(machine: Machine) -> str:
    """Twelve hex digits of the devices' models and memory, cores, NUMA nodes, and `emulated`.

    Host memory counts in whole GiB, since the kernel's own share of it varies; reserves do not
    count, since they follow what else runs at the moment.
    """
    facts = {
        "gpus": [
            [gpu.name, gpu.model, gpu.memory_bytes, gpu.compute_capability] for gpu in machine.gpus
        ],
        "host": [machine.host.model, round(machine.host.memory_bytes / GIB)],
        "cores": [machine.num_cores, machine.numa_nodes],
        "emulated": machine.emulated,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
