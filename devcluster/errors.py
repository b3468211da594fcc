"""The errors of devcluster, with messages for its user.

DevclusterError                a command failed; one message for people, exit code 1
└── UnsupportedMachineError    this machine cannot run a cluster at all; exit code 2
"""


class DevclusterError(Exception):
    """A command failed; the message has the whole reason, so the traceback is not shown."""

    exit_code = 1


class UnsupportedMachineError(DevclusterError):
    """This machine lacks something that a cluster cannot do without."""

    exit_code = 2
