"""Bytes, times and rates as people read them."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def format_bytes(n_bytes: float) -> str:
    """`44.93 GiB`, `512.0 MiB`, `17 B`: three to four figures and a binary unit."""
    size = abs(n_bytes)
    if size >= GIB:
        return f"{n_bytes / GIB:.2f} GiB"
    if size >= MIB:
        return f"{n_bytes / MIB:.1f} MiB"
    if size >= KIB:
        return f"{n_bytes / KIB:.1f} KiB"
    return f"{n_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `4.21 s`, `12.3 ms`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms"
