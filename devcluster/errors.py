"""What can go wrong, as the user reads it.

DevclusterError                a command failed; one message for people, exit code 1
└── UnsupportedMachineError    this machine cannot run a cluster at all; exit code 2
"""


class DevclusterError(Exception):
    """A command failed for a reason that the message tells whole; shown without a traceback."""

    exit_code = 1


class UnsupportedMachineError(DevclusterError):
    """This machine lacks something that a cluster cannot do without."""

    exit_code = 2
