"""For tests that interrupt a process of ours."""

import signal


def listen_to_ctrl_c() -> None:
    """A shell makes its background jobs deaf to Ctrl-C, and children inherit that: undo it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
