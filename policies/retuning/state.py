"""State of the service: plain values, which are kept in a file so that a restart goes on from there.

A *deployment* is a network on one device class, of which versions are kept. Times are unix seconds.
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
    """A trigger that was not acted on yet. ``since``: when it was seen; ``detail``: in words."""

    trigger: Trigger
    since: float
    detail: str = ""


@dataclass(frozen=True)
class SlowdownSuspicion:
    """Finding of one device on a deployment, which another one is to confirm from ``again_at`` on."""

    device: str
    finding: Finding
    again_at: float
    lost_log: float = 0.0


@dataclass
class Deployment:
    """What is known of a network on a device class. ``digest``, ``origin``: of the network and of what its records
    depend on, as its last version was made or confirmed; empty while there is none. ``version``: the current one,
    ``secs``: its latency when it was published. ``baselines``: by device. ``effort_secs``: device seconds that were
    spent on this digest and origin, as of ``effort_at``. ``overhead_secs``: what a run takes beside its tuning.
    ``lost_log``: see :func:`policies.retuning.benefit.expected_share`. ``odd``: devices that are slower than they
    were, and others of the class are not. ``retry_at``: not before, after so many ``failures``, the last for
    ``problem``."""

    network: str
    device_class: str
    digest: str = ""
    origin: str = ""
    version: int | None = None
    secs: float | None = None
    baselines: dict[str, Baseline] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    effort_secs: float = 0.0
    effort_at: float = 0.0
    overhead_secs: float | None = None
    lost_log: float = 0.0
    pending: list[PendingTrigger] = field(default_factory=list)
    suspicion: SlowdownSuspicion | None = None
    odd: dict[str, Finding] = field(default_factory=dict)
    failures: int = 0
    retry_at: float = 0.0
    problem: str = ""
    checked_at: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.network} on {self.device_class}"


@dataclass
class DeviceAnswer:
    """What a device of the fleet said last. ``origin``: what its records depend on, as text. ``problem``: why it does
    not answer, empty where it does."""

    name: str
    device_class: str = ""
    origin: str = ""
    problem: str = ""


@dataclass(frozen=True)
class ServiceEvent:
    """Something that people may want to read of."""

    at: float
    kind: str
    network: str
    device_class: str
    text: str


@dataclass
class LookAtFiles:
    """The next thing to do: look at the networks' files."""

    kind: Literal["look"] = "look"


@dataclass
class AskDevices:
    """The next thing to do: ask these devices what they are."""

    devices: list[str]
    limit_secs: float
    kind: Literal["ask"] = "ask"


@dataclass
class CheckVersion:
    """The next thing to do: time the current version of a deployment beside the probe on a device."""

    network: str
    device_class: str
    device: str
    limit_secs: float
    kind: Literal["check"] = "check"


@dataclass
class TuneDeployment:
    """The next thing to do: tune a deployment for ``secs`` on these devices, and publish what is better. ``digest``,
    ``origin``: what it is tuned for. ``limit_secs``: after which it is ended, whatever it does."""

    network: str
    device_class: str
    digest: str
    origin: str
    devices: list[str]
    secs: float
    limit_secs: float
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
    """How a :class:`TuneDeployment` ended. ``problem``: why there is no network, empty where there is one.
    ``tuned_secs``: of the run's tuning. ``secs``: latency of what is published now; ``log_gain``: as in
    :class:`policies.retuning.benefit.Span`. ``version``: the current one, ``published``: whether it is new.
    ``baselines``: by device, of the version that is published now. ``why``: of the decision."""

    problem: str = ""
    tuned_secs: float = 0.0
    secs: float | None = None
    log_gain: float = 0.0
    version: int | None = None
    published: bool = False
    baselines: dict[str, Baseline] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class CheckVersionResult:
    """How a :class:`CheckVersion` ended. ``pairs``: none where ``problem`` says why."""

    pairs: tuple[Timed, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class PendingHook:
    """A version that was published, and of which the hook was not told yet. ``before``: the version before it."""

    network: str
    device_class: str
    before: int | None


@dataclass
class ServiceState:
    """Everything. ``files``: by network the digest of its file when it was looked at, and ``file_problems`` of those
    that cannot be read. ``used``: of the last 24 hours. ``asked_at``: when all devices were asked, ``asked_lost_at``:
    those that did not answer; ``ask_secs``: what it takes for each, None before it was seen. ``untold``: for the hook.
    ``events``: the last ones."""

    schema_version: int = 1
    files: dict[str, str] = field(default_factory=dict)
    file_problems: dict[str, str] = field(default_factory=dict)
    devices: list[DeviceAnswer] = field(default_factory=list)
    deployments: list[Deployment] = field(default_factory=list)
    used: list[UsedTime] = field(default_factory=list)
    events: list[ServiceEvent] = field(default_factory=list)
    looked_at: float = 0.0
    asked_at: float = 0.0
    asked_lost_at: float = 0.0
    ask_secs: float | None = None
    doing: ActionInProgress | None = None
    untold: list[PendingHook] = field(default_factory=list)
    published: int = 0
    hook_failures: int = 0
