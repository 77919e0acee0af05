"""What a plan says of one device."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device."""

    weights: int
    kv_cache: int = 0
    workspace: int = 0
    """Activations, scratch, output buffers; a GPU's context where the engine's profile has one."""
    load_peak: int = 0
    """The most that is taken at one time while weights load, those already there included."""

    @property
    def standing(self) -> int:
        """Once the model is loaded."""
        return self.weights + self.kv_cache + self.workspace

    @property
    def peak(self) -> int:
        """The most that is taken at one time, loading included."""
        return max(self.load_peak, self.standing)
