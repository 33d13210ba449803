"""The command `limpid`, as the binary has it."""

import signal
import sys

from limpid._limpid import command


def main() -> int:
    """Runs the command with the words of `sys.argv`. Returns its exit code."""
    # Python would only note Ctrl-C until the command ends
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return command(["limpid", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
