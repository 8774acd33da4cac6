"""Errors of fleet-tune, named after what the caller does next.

Every error that a user can cause derives from :class:`UserError`: the command line prints it as one line with the
next step and exits with code 2. Everything else is a fault of ours or of the machine and keeps its traceback.
All of them pickle (they cross actors): they are built from positional arguments only.

A failed build or run of a candidate is not an exception: it is a :class:`fleet_tune.base.domain.Measurement`.
"""

from __future__ import annotations


class FleetTuneError(Exception):
    """Root of all errors raised by fleet-tune."""


class UserError(FleetTuneError):
    """A mistake that the user can correct. ``problem`` describes it, ``next_step`` says what to do."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(problem, next_step)
        self.problem = problem
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.problem}; {self.next_step}"


class RequestError(UserError):
    """A value in a request is out of its range: give another one."""


class CheckupError(UserError):
    """A checkup has found a problem that makes runs fail."""


class NetworkError(UserError):
    """The network cannot be read or imported: give another one."""


class UnsupportedNetworkError(NetworkError):
    """The network was read but uses something we cannot compile: change the network."""


class FleetFileError(UserError):
    """The fleet file is wrong: edit it."""


class RetuneFileError(UserError):
    """The file of ``fleet-tune retune`` is wrong: edit it."""


class RetuneError(UserError):
    """The service that keeps networks tuned cannot do what was asked: see the next step."""


class FleetOrdersError(UserError):
    """The file with the orders for a fleet's devices cannot be used: mend it or move it away."""


class HomeError(UserError):
    """The user has no folder for keys, caches and stores: name one."""


class OutputFolderError(UserError):
    """The output folder cannot be used for this run: choose another one."""


class RecordStoreError(UserError):
    """The record database cannot be used: see the next step."""


class DamagedStoreError(RecordStoreError):
    """SQLite cannot read the file, or a part of it: restore it from a copy, or save the sound parts."""


class StoreInUseError(RecordStoreError):
    """Another process writes to the record database: wait for it, or choose another one."""


class DiskFullError(RecordStoreError):
    """No space left where the records or results are written: free some and run again."""


class StoreUnreachableError(RecordStoreError):
    """The server of a team's store does not answer: the local copy is used, and new records go to the server later."""


class UnreadableRecordError(RecordStoreError):
    """One record is damaged: it is set aside, and the others are used."""


class RecordFileError(UserError):
    """The file of exported records cannot be read or written: give another one."""


class ServerError(UserError):
    """The server of a team's store cannot be made or does not run: see the next step."""


class DatasetError(UserError):
    """The dataset file cannot be read or written: give another one."""


class ModelFileError(UserError):
    """The file of a pre-trained cost model cannot be read, written or used: give another one."""


class TransferError(UserError):
    """The source of ``--transfer-from`` holds nothing to learn from: give another one."""


class WindowFolderError(UserError):
    """The folder of this host's quiet windows may be another user's: remove it, or use another one."""


class ClusterError(UserError):
    """The Ray cluster cannot be reached or used."""


class StartInterruptedError(KeyboardInterrupt):
    """A signal asked the process to end while its Ray cluster started: end the process."""


class VersionsDifferError(UserError):
    """Two machines of a run have different versions of TVM: install the same one on both."""


class DeviceKeyError(UserError):
    """A device server asks for a key that we do not have, or a key file cannot be used: give the right file."""


class DevicesLostError(UserError):
    """No device of a class answers any more: bring one back and run again."""


class RecorderLostError(UserError):
    """The process that stores the records is gone, or does not answer: run again."""


class MemoryLackedError(UserError):
    """This machine had too little memory for a network, or its process was killed: free some and run again."""


class BuildersLostError(UserError):
    """No builder works any more: fix the cause and run again."""


class DeviceUnreachableError(FleetTuneError):
    """A device did not answer within its deadline: its trials go to another device or wait for it."""

    def __init__(self, device_id: str, detail: str) -> None:
        super().__init__(device_id, detail)
        self.device_id = device_id
        self.detail = detail

    def __str__(self) -> str:
        return f"device {self.device_id}: {self.detail}"


class NetworkRunError(FleetTuneError):
    """A compiled network crashed, failed, or ran for too long: it is wrong."""


class UncheckedError(FleetTuneError):
    """A check or timing of a compiled network was not completed, because its device does not answer, for example: the
    network counts as unchecked."""


class StaleLeaseError(FleetTuneError):
    """A result came from a device whose lease had ended: drop it, because its trials were given to other devices."""

    def __init__(self, device_id: str, epoch: int, newest: int) -> None:
        super().__init__(device_id, epoch, newest)
        self.device_id = device_id
        self.epoch = epoch
        self.newest = newest

    def __str__(self) -> str:
        return f"device {self.device_id}: lease {self.epoch} has ended (the newest is {self.newest})"


class ProbeError(FleetTuneError):
    """The device answers, but its probe fails: the device gets no work until the cause is fixed."""

    def __init__(self, device_id: str, detail: str) -> None:
        super().__init__(device_id, detail)
        self.device_id = device_id
        self.detail = detail

    def __str__(self) -> str:
        return f"device {self.device_id}: the probe fails: {self.detail}"
