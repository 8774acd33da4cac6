"""State of the service: plain values, which are kept in a file so that a restarted service continues from there.

A *deployment* is a network on one device class; its versions are kept. Times are unix seconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from policies.retuning.allowance import UsedTime
from policies.retuning.benefit import Span
from policies.retuning.slowdown import Baseline, Finding, Timed

MOST_SPANS = 32
MOST_EVENTS = 500


class Trigger(enum.StrEnum):
    """Why a deployment is to be tuned at once."""

    NEW_NETWORK = "new network"
    CHANGED_NETWORK = "changed network"
    NEW_CLASS = "new class"
    CHANGED_FINGERPRINT = "changed fingerprint"
    SLOWER = "slower"
    DRIFTED = "drifted"


@dataclass(frozen=True)
class PendingTrigger:
    """A trigger that has not been acted on yet."""

    trigger: Trigger
    since: float
    """Time at which it was seen."""
    detail: str = ""
    """Detail in words."""


@dataclass(frozen=True)
class SlowdownSuspicion:
    """Finding of one device on a deployment, which another device confirms at once, or, if there is none, the same
    device from ``again_at`` on."""

    device: str
    finding: Finding
    again_at: float
    lost_log: float = 0.0


@dataclass
class Deployment:
    """A network on a device class, and what is known of it."""

    network: str
    device_class: str
    digest: str = ""
    """Digest of the network when its last version was made or confirmed. Empty while there is none."""
    origin: str = ""
    """Origin of its records when its last version was made or confirmed. Empty while there is none."""
    version: int | None = None
    """Current version. None while there is none."""
    secs: float | None = None
    """Latency of the current version when it was published."""
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """Baseline by device."""
    spans: list[Span] = field(default_factory=list)
    effort_secs: float = 0.0
    """Device seconds that were spent on this digest and origin, as of ``effort_at``."""
    effort_at: float = 0.0
    overhead_secs: float | None = None
    """Seconds that a run takes beside its tuning. None before a run was seen."""
    lost_log: float = 0.0
    """Logarithm of the slowdown; see :func:`policies.retuning.benefit.expected_share`."""
    pending: list[PendingTrigger] = field(default_factory=list)
    """Triggers that have not been acted on yet."""
    suspicion: SlowdownSuspicion | None = None
    odd: dict[str, Finding] = field(default_factory=dict)
    """Devices that are slower than they were, while others of the class are not."""
    failures: int = 0
    """Number of failures in a row."""
    retry_at: float = 0.0
    """Time before which it is not tuned again after a failure."""
    failed_digest: str = ""
    """Digest of the network that failed last."""
    problem: str = ""
    """Problem of the last failure."""
    checked_at: float = 0.0
    """Time of the last check."""

    @property
    def name(self) -> str:
        return f"{self.network} on {self.device_class}"


@dataclass
class DeviceAnswer:
    """Last answer of a device of the fleet."""

    name: str
    device_class: str = ""
    origin: str = ""
    """Origin of its records, as text."""
    problem: str = ""
    """Reason why it does not answer. Empty if it does."""


@dataclass(frozen=True)
class ServiceEvent:
    """An event that people may want to read of."""

    at: float
    kind: str
    network: str
    device_class: str
    text: str


@dataclass
class LookAtFiles:
    """The next action: look at the networks' files."""

    kind: Literal["look"] = "look"


@dataclass
class AskDevices:
    """The next action: ask these devices what they are."""

    devices: list[str]
    limit_secs: float
    kind: Literal["ask"] = "ask"


@dataclass
class CheckVersion:
    """The next action: time the current version of a deployment beside the probe on a device."""

    network: str
    device_class: str
    device: str
    limit_secs: float
    kind: Literal["check"] = "check"


@dataclass
class TuneDeployment:
    """The next action: tune a deployment on these devices, and publish the result if it is better."""

    network: str
    device_class: str
    digest: str
    """Digest of the network for which it is tuned."""
    origin: str
    """Origin for which it is tuned."""
    devices: list[str]
    secs: float
    """Seconds of tuning."""
    limit_secs: float
    """Seconds after which the action is ended by force."""
    why: str
    triggers: list[Trigger]
    kind: Literal["tune"] = "tune"


@dataclass
class Wait:
    """The next action: wait until ``until``, for the reason ``why``."""

    until: float
    why: str
    kind: Literal["wait"] = "wait"


UsesDevices = AskDevices | CheckVersion | TuneDeployment
Action = LookAtFiles | UsesDevices | Wait


@dataclass
class ActionInProgress:
    """An action that was begun and has not ended."""

    action: UsesDevices
    began: float


@dataclass(frozen=True)
class TuneDeploymentResult:
    """End of a :class:`TuneDeployment`."""

    problem: str = ""
    """Reason why there is no network. Empty if there is one."""
    tuned_secs: float = 0.0
    """Seconds of the run's tuning."""
    secs: float | None = None
    """Latency of the version that is published now."""
    log_gain: float = 0.0
    """Gain as in :class:`policies.retuning.benefit.Span`."""
    version: int | None = None
    """Current version."""
    published: bool = False
    """True if the current version is new."""
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """Baselines of the version that is published now, by device."""
    why: str = ""
    """Reason of the decision."""


@dataclass(frozen=True)
class CheckVersionResult:
    """End of a :class:`CheckVersion`."""

    pairs: tuple[Timed, ...] = ()
    """Pairs of runs. Empty if there is a problem."""
    problem: str = ""
    """Reason why there are no pairs."""


@dataclass(frozen=True)
class PendingHook:
    """A published version that the hook has not been told about yet."""

    network: str
    device_class: str
    before: int | None
    """The version before it."""


@dataclass
class ServiceState:
    """State of the service, as it is stored."""

    schema_version: int = 1
    probe: str = ""
    """Version of the devices' probe (:data:`fleet_tune.base.records.stores.reader.PROBE`) in the baselines."""
    files: dict[str, str] = field(default_factory=dict)
    """Digest of each network's file when it was looked at."""
    file_problems: dict[str, str] = field(default_factory=dict)
    """Problem of each file that cannot be read, by network."""
    devices: list[DeviceAnswer] = field(default_factory=list)
    deployments: list[Deployment] = field(default_factory=list)
    used: list[UsedTime] = field(default_factory=list)
    """Used device time of the last 24 hours."""
    events: list[ServiceEvent] = field(default_factory=list)
    """The last events."""
    looked_at: float = 0.0
    asked_at: float = 0.0
    """Time at which all devices were asked."""
    asked_lost_at: float = 0.0
    """Time at which the lost devices were asked."""
    ask_secs: float | None = None
    """Seconds that asking one device takes. None before a device was asked."""
    doing: ActionInProgress | None = None
    """Action in progress. None while there is none."""
    untold: list[PendingHook] = field(default_factory=list)
    """Versions that the hook has not been told about yet."""
    published: int = 0
    """Number of published versions."""
    hook_failures: int = 0
