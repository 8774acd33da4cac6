"""The files of a Jetson, in a folder: those by which its power mode, clocks, heat and memory are read."""

from __future__ import annotations

from pathlib import Path

SETTINGS = """\
# MAXN is the NONE power model to release all constraints
< PARAM TYPE=CLOCK NAME=GPU >
MAX_FREQ /sys/devices/platform/17000000.gpu/devfreq_dev/max_freq

< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
GPU MAX_FREQ -1

< POWER_MODEL ID=2 NAME=30W >
CPU_ONLINE CORE_0 1
GPU MAX_FREQ 612000000

< PM_CONFIG DEFAULT=2 >
"""


class JetsonFiles:
    """An Orin under ``root``, with the names that JetPack 5 or 6 gives. Nothing is hot, and no clock is held."""

    def __init__(self, root: Path, jetpack: int = 6) -> None:
        self.root = root
        five = jetpack == 5
        self.gpu = f"sys/class/devfreq/17000000.{'ga10b' if five else 'gpu'}"
        self.put("proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
        self.put("proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
        self.put("proc/meminfo", "MemTotal:       31357524 kB\nMemFree: 400000 kB\nMemAvailable:   8388608 kB\n")
        self.put("proc/cpuinfo", "processor\t: 0\nmodel name\t: ARMv8 Processor rev 1 (v8l)\n")
        release = "# R35 (release), REVISION: 4.1" if five else "# R36 (release), REVISION: 4.0"
        self.put("etc/nv_tegra_release", f"{release}, GCID: 33958178, BOARD: generic\n")
        self.put("etc/nvpmodel.conf", SETTINGS)
        self.mode(0)
        self.put("sys/class/devfreq/15340000.vic/cur_freq", "115200000\n")
        self.gpu_clock(612_000_000, 306_000_000, 1_300_500_000)
        for cores in (0, 4):
            self.cpu_clock(cores, 729_600, 2_201_600)
        end = "therm" if five else "thermal"
        zones = (
            ("CPU" if five else "cpu", 48125),
            ("GPU" if five else "gpu", 45500),
            ("CV0" if five else "cv0", -256000),
        )
        for number, (name, millidegrees) in enumerate((*zones, ("tj", 49000))):
            self.zone(number, f"{name}-{end}", millidegrees)
        self.zone(9, "PMIC-Die", 100000)
        for number, name in enumerate(("pwm-fan", "cpu-throttle-alert", "gpu-throttle-alert", "hot-surface-alert")):
            self.cooling(number, name, 3 if name == "pwm-fan" else 0)
        self.cooling(8, "cpufreq-cpu0", 0)
        self.cooling(9, f"devfreq-{Path(self.gpu).name}", 0)
        self.put("sys/class/hwmon/hwmon3/name", "soctherm_oc\n")
        for number in (1, 2, 3):
            self.events(number, 0)

    def put(self, name: str, text: str) -> None:
        """Write a file of the system."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mode(self, number: int) -> None:
        """Do as ``nvpmodel -m`` does."""
        self.put("var/lib/nvpmodel/status", f"pmode:{number:04} fmode:quiet")

    def gpu_clock(self, hertz: int, least: int, most: int, governor: str = "nvhost_podgov") -> None:
        """Set the GPU's clock, in hertz, and its limits."""
        for name, text in {"cur_freq": hertz, "min_freq": least, "max_freq": most, "governor": governor}.items():
            self.put(f"{self.gpu}/{name}", f"{text}\n")
        self.put(f"{self.gpu}/device/of_node/name", f"{self.gpu.rpartition('.')[2]}\0")

    def cpu_clock(self, first_core: int, least: int, most: int, governor: str = "schedutil") -> None:
        """Set the limits of the clock of the cores from this one on, in kilohertz."""
        limits = {"scaling_min_freq": least, "scaling_max_freq": most, "scaling_governor": governor}
        for name, text in limits.items():
            self.put(f"sys/devices/system/cpu/cpufreq/policy{first_core}/{name}", f"{text}\n")

    def zone(self, number: int, name: str, millidegrees: int) -> None:
        """Set the temperature of a thermal zone."""
        self.put(f"sys/class/thermal/thermal_zone{number}/type", f"{name}\n")
        self.put(f"sys/class/thermal/thermal_zone{number}/temp", f"{millidegrees}\n")

    def cooling(self, number: int, name: str, state: int) -> None:
        """Set the state of a cooling device."""
        self.put(f"sys/class/thermal/cooling_device{number}/type", f"{name}\n")
        self.put(f"sys/class/thermal/cooling_device{number}/cur_state", f"{state}\n")

    def events(self, counter: int, count: int) -> None:
        """Set the number of over-current events."""
        self.put(f"sys/class/hwmon/hwmon3/oc{counter}_event_cnt", f"{count}\n")
