"""What makes two machines the same for a study, without host names or serial numbers."""

import hashlib
import json

from autoplace.hardware.machine import Machine
from autoplace.units import GIB


def description(machine: Machine) -> str:
    """The same facts for people: `AMD-EPYC, 2 cores, 24 GiB, no GPU`."""
    host = machine.host
    gpus = [f"{gpu.model} {gpu.memory_bytes / GIB:.3g} GiB" for gpu in machine.gpus]
    nodes = f", {machine.numa_nodes} NUMA nodes" if machine.numa_nodes > 1 else ""
    return (
        f"{host.model}, {machine.num_cores} cores, {round(host.memory_bytes / GIB)} GiB{nodes}, "
        + (" + ".join(gpus) or "no GPU")
    )


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
