"""A real Prometheus that scrapes one target."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Query = Callable[[str], list[float]]
"""The values that an expression has now; none before there are any."""


@contextmanager
def scraping(programs: Path, target_port: int, port: int, folder: Path) -> Iterator[Query]:
    """Scrape a port of this machine ten times a second. ``port``: its own; ``folder``: for its files."""
    scrape = {
        "job_name": "fleet-tune",
        "scrape_interval": "100ms",
        "scrape_timeout": "100ms",
        "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}],
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML
    command = [
        programs / "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:

        def query(expression: str) -> list[float]:
            assert server.poll() is None, (folder / "log").read_text()
            arguments = urllib.parse.urlencode({"query": expression})
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{arguments}", timeout=5) as answer:
                    result = json.load(answer)["data"]["result"]
            except (urllib.error.URLError, ConnectionError):
                return []
            return [float(sample["value"][1]) for sample in result]

        try:
            yield query
        finally:
            server.terminate()
