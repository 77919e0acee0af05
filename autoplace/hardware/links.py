"""What the links of a machine carry, from the PCIe generation of both ends."""

from collections.abc import Sequence

from autoplace.hardware.machine import Link

HOST_LINK_BYTES_PER_S = {3: 13.1e9, 4: 26.2e9, 5: 52.4e9}
"""x16, pinned memory. Measured for generation 4; half and twice of it for 3 and 5."""
HOST_LINK_LATENCY_S = 10e-6
PEER_SHARE = 20.7 / 26.2
"""A GPU to GPU hop without peer access, over the host link; measured for generation 4."""
PEER_LATENCY_S = 46e-6


def pcie_links(host_gen: int, gpu_gens: Sequence[int]) -> tuple[Link, ...]:
    """Links both ways between the host and every GPU, and between any two GPUs.

    `gpu_gens`: PCIe generation per GPU; a link runs at that of its slower end.
    """
    speeds = {
        f"cuda:{i}": HOST_LINK_BYTES_PER_S[max(3, min(5, host_gen, gen))]
        for i, gen in enumerate(gpu_gens)
    }
    links = []
    for name, speed in speeds.items():
        links += [
            Link("cpu", name, speed, HOST_LINK_LATENCY_S),
            Link(name, "cpu", speed, HOST_LINK_LATENCY_S),
        ]
        links += [
            Link(name, peer, min(speed, peer_speed) * PEER_SHARE, PEER_LATENCY_S)
            for peer, peer_speed in speeds.items()
            if peer != name
        ]
    return tuple(links)
